"""What torch.compile made: it trains exactly, as it was written, and is left as it was."""

import copy
import gc
import shutil

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import quietgrad
import quietgrad as qg
from quietgrad.capture.compiled import _STANCE
from quietgrad.errors import EngineStateError, EscapedGradientError, QuietgradError

from .helpers import (
    FEATURES,
    Net,
    assert_same_state,
    attach,
    clipped_one_by_one,
    only_batch,
    samples,
    squares,
    state,
    trainable,
)

X = samples(4)
inductor = pytest.param(
    {"backend": "inductor"},
    marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
    id="inductor",
)
OPTIONS = [
    pytest.param({"backend": "eager"}, id="eager"),
    pytest.param({"backend": "eager", "fullgraph": True}, id="fullgraph"),
    pytest.param({"backend": "aot_eager", "dynamic": True}, id="aot_eager"),
    inductor,
    pytest.param({"mode": "reduce-overhead"}, id="reduce-overhead", marks=inductor.marks),
]


@pytest.fixture(autouse=True)
def clean():
    """Dynamo before a test, and its stance after it."""
    for hold in [*_STANCE.holders]:  # of engines that other tests' errors keep, with samples out
        hold.stop()
    assert stance() == "default"
    torch._dynamo.reset()
    yield
    assert stance() == "default"
    torch._dynamo.reset()


def stance():
    return torch._dynamo.eval_frame._stance.stance


def layers():
    """Layers of several kinds whose forward Dynamo does not skip, unlike Sequential's."""
    return Net(lambda net, x: net.last(net.first(x * net.vector).tanh() @ net.matrix))


def train(model, losses=squares, *, called=None, steps=3, **options):
    """Steps of an engine without noise worth mentioning, each against the oracle on a copy."""
    rate = 1e-3
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(trainable(model), lr=rate)
    plain = getattr(model, "_orig_mod", model)
    engine = attach(
        model, X, optimizer=optimizer, noise_multiplier=1e-9, physical_batch_size=2, **options
    )
    called = called(model) if called else model
    for _ in range(steps):
        for batch in engine.batches():
            engine_steps(engine, batch, plain, called, losses, rate)
    engine.detach()
    return engine


def engine_steps(engine, batch, plain, called, losses, rate):
    twin = uncompiled_copy(plain)
    before = [p.detach().clone() for p in trainable(plain)]
    expected = [torch.zeros_like(p) for p in before]
    for (x,) in batch:
        grads = clipped_one_by_one(twin, squares, x)
        expected = [total + own for total, own in zip(expected, grads, strict=True)]
        engine.backward(losses(called, x))
    assert stance() == "default"
    engine.step()
    for was, now, total in zip(before, trainable(plain), expected, strict=True):
        torch.testing.assert_close(
            (was - now.detach()) * len(X) / rate, total, rtol=1e-6, atol=1e-6
        )


def uncompiled_copy(model):
    """Of modules alone: what was compiled in it is replaced by what it was made of."""
    twin = copy.deepcopy(model)
    for module in list(twin.modules()):
        for name, child in module.named_children():
            if hasattr(child, "_orig_mod"):
                setattr(module, name, child._orig_mod)
    return twin


# -- the model -----------------------------------------------------------------------------------


def in_place(model, **options):
    model.compile(**options)
    return model


MODELS = {
    "forward": layers,
    "sequential": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_compiled_model_is_attached(options, make):
    train(torch.compile(make(), **options))


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_model_compiled_in_place_is_attached(options, make):
    train(in_place(make(), **options))


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_model_that_was_compiled_after_attaching_is_called(options, make):
    train(make(), called=lambda model: torch.compile(model, **options))


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_model_that_was_compiled_in_place_after_attaching(options, make):
    train(make(), called=lambda model: in_place(model, **options))


def test_a_compiled_model_and_what_it_was_made_of_share_a_state():
    compiled = torch.compile(layers(), backend="eager")
    engine = attach(compiled, X)
    (x,) = only_batch(engine)
    engine.backward(squares(compiled, x))
    engine.step()
    assert all("_orig_mod" not in name for group in engine.groups for name in group.parameters)
    saved = engine.state_dict()
    engine.detach()
    plain = layers()
    other = attach(plain, X)
    other.load_state_dict(saved)
    other.detach()
    assert_same_state(plain, state(compiled._orig_mod))


# -- parts of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
def test_a_compiled_layer(options):
    model = layers()
    model.first = torch.compile(model.first, **options)
    train(model)
    model = layers()
    model.first.compile(**options)
    train(model)


FUNCTIONS = {
    "without parameters": lambda options: _inside(
        torch.compile(lambda x: F.gelu(x) * 2, **options), lambda net: ()
    ),
    "with parameters": lambda options: _inside(
        torch.compile(lambda x, weight, bias: F.linear(x, weight, bias).tanh(), **options),
        lambda net: (net.matrix, net.vector),
    ),
}


def _inside(function, parameters):
    return Net(lambda net, x: net.last(function(net.first(x), *parameters(net))))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_compiled_function_in_a_forward(options, name):
    train(FUNCTIONS[name](options), steps=2)


def test_a_compiled_method_that_uses_parameters():
    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(FEATURES, FEATURES)

        @torch.compile(backend="eager", fullgraph=True)
        def forward(self, x):
            return self.inner(x).relu()

    train(nn.Sequential(Owner(), nn.Linear(FEATURES, 2)).double())


# -- losses, and functions around everything -----------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
def test_a_compiled_loss(options):
    loss = torch.compile(lambda outputs: outputs.square().flatten(1).sum(1), **options)
    train(layers(), lambda model, x: loss(model(x)))
    train(torch.compile(layers(), **options), lambda model, x: loss(model(x)))


@pytest.mark.parametrize("options", OPTIONS)
def test_a_compiled_function_of_model_and_loss(options):
    train(layers(), torch.compile(squares, **options))


def test_a_compiled_function_that_calls_backward():
    model = layers()
    engine = attach(model, X, noise_multiplier=1e-9)

    @torch.compile(backend="eager")
    def run(x):
        engine.backward(squares(model, x))

    before = state(model)
    expected = clipped_one_by_one(uncompiled_copy(model), squares, X)
    for batch in engine.batches():
        for (x,) in batch:
            run(x)
        engine.step()
    for (name, was), total in zip(before.items(), expected, strict=True):
        moved = (was - model.get_parameter(name).detach()) * len(X)
        torch.testing.assert_close(moved, total, rtol=1e-6, atol=1e-6)
    engine.detach()


def test_momentum_runs_compiled_losses_again():
    model = torch.compile(layers(), backend="aot_eager", fullgraph=True)
    plain = layers()
    moved = []
    for called in (model, plain):
        engine = attach(
            called,
            X,
            momentum=qg.InnerOuter(),
            optimizer=torch.optim.SGD(trainable(called), lr=0.1),
        )
        for _ in range(4):
            for batch in engine.batches():
                for (x,) in batch:
                    engine.backward(lambda x=x, called=called: squares(called, x))
                engine.step()
        engine.detach()
        moved.append([p.detach().clone() for p in called.parameters()])
    torch.testing.assert_close(*moved)


# -- the optimizer -------------------------------------------------------------------------------


# Not fullgraph: torch's own optimizers break the graph, with or without an engine.
@pytest.mark.every_nth(3)
@pytest.mark.parametrize("options", [OPTIONS[0], *OPTIONS[2:]])
def test_a_compiled_step_of_the_optimizer(options):
    model = layers()
    optimizer = torch.optim.SGD(trainable(model), lr=1e-3)
    optimizer.step = torch.compile(optimizer.step, **options)
    train(model, optimizer=optimizer)


def test_a_compiled_step_of_the_optimizer_is_refused_outside_of_the_engines():
    model = layers()
    optimizer = torch.optim.SGD(trainable(model), lr=1e-3)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    engine = attach(model, X, optimizer=optimizer)
    (x,) = only_batch(engine)
    engine.backward(squares(model, x))
    engine.step()
    before = state(model)
    with pytest.raises(QuietgradError, match=r"engine\.step\(\)"):
        optimizer.step()
    assert_same_state(model, before)
    engine.detach()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_step_of_the_engine_is_refused_and_the_remedy_holds(fullgraph):
    model = layers()
    engine = attach(model, X)
    before = state(model)
    (x,) = only_batch(engine)
    engine.backward(squares(model, x))
    with pytest.raises(
        (EngineStateError, torch._dynamo.exc.Unsupported), match=r"torch\.compiler\.disable"
    ):
        torch.compile(engine.step, backend="eager", fullgraph=fullgraph)()
    assert engine.steps_taken == engine.ledger.steps == 0
    assert_same_state(model, before)
    step = torch.compiler.disable(engine.step)
    torch.compile(lambda: step(), backend="eager")()
    assert engine.steps_taken == engine.ledger.steps == 1
    engine.detach()


# -- in between ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_an_evaluation_runs_compiled(make, options):
    model = make()
    engine = attach(model, X)
    compiled = torch.compile(model, **options)
    for _ in range(2):
        (x,) = only_batch(engine)
        engine.backward(squares(compiled, x))
        engine.step()
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), model(X))
        model.train()
    engine.detach()


def counting(graphs):
    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return backend


def test_nothing_is_compiled_while_samples_are_out_and_everything_after():
    graphs, model = [], layers()
    engine = attach(model, X)
    compiled = torch.compile(model, backend=counting(graphs), fullgraph=True)
    (x,) = only_batch(engine)
    engine.backward(squares(compiled, x))
    engine.step()
    assert not graphs
    model.eval()
    compiled(X)
    assert len(graphs) == 1
    engine.detach()
    model.train()
    compiled(X)
    assert len(graphs) == 2


def test_gradients_of_a_compiled_model_outside_of_batches_go_nowhere():
    model = layers()
    engine = attach(model, X)
    compiled = torch.compile(model, backend="eager")
    before = state(model)
    compiled(X).square().sum().backward()
    (x,) = only_batch(engine)
    with pytest.raises(QuietgradError, match=r"\.grad that did not come from quietgrad"):
        engine.backward(squares(compiled, x))
    assert_same_state(model, before)
    engine.detach()


def test_a_training_loop_in_a_compiled_function_is_refused_and_the_remedy_holds():
    model = layers()
    engine = attach(model, X)

    @torch.compile(backend="eager")
    def epoch():
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(squares(model, x))
            engine.step()

    with pytest.raises(EngineStateError, match=r"not compiled"):
        epoch()
    assert engine.steps_taken == 0
    losses = torch.compile(squares, backend="eager")
    for batch in engine.batches():
        for (x,) in batch:
            engine.backward(losses(model, x))
        engine.step()
    assert engine.steps_taken == 1
    engine.detach()


def test_compiled_autograd_is_refused_and_the_remedy_holds():
    model = layers()
    engine = attach(torch.compile(model, backend="eager"), X)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        (x,) = only_batch(engine)
        with pytest.raises(QuietgradError, match="outside of compiled autograd"):
            engine.backward(squares(model, x))
    engine.detach()

    def losses(model, x):
        # With samples out, torch leaves compiled autograd off: there is nothing to refuse.
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            return squares(model, x)

    train(torch.compile(model, backend="eager"), losses)


# -- the compiler is left as it was --------------------------------------------------------------


def test_after_a_refusal():
    model = Net(lambda net, x: net.last(x - net.first(x).mean(0)))
    engine = attach(torch.compile(model, backend="eager"), X)
    (x,) = only_batch(engine)
    assert stance() == "force_eager"
    with pytest.raises(QuietgradError, match="mixed"):
        engine.backward(squares(model, x))
    assert stance() == "default"
    engine.detach()


def test_after_a_refusal_in_a_forward():
    model = Net(lambda net, x: net.last(F.batch_norm(net.first(x), None, None, training=True)))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    engine = attach(compiled, X)
    (x,) = only_batch(engine)
    with pytest.raises(QuietgradError, match="batch_norm"):
        compiled(x)
    assert stance() == "default"
    engine.detach()


def test_after_an_error_in_a_loss_and_a_second_try():
    model = torch.compile(layers(), backend="eager", fullgraph=True)
    engine = attach(model, X)
    (x,) = only_batch(engine)
    with pytest.raises(QuietgradError, match="scalar"):
        engine.backward(squares(model, x).sum())
    engine.backward(squares(model, x))
    assert stance() == "default"
    engine.step()
    only_batch(engine)
    assert stance() == "force_eager"
    engine.discard_batch()
    assert stance() == "default"
    engine.detach()


def test_an_engine_that_is_lost():
    model = layers()
    engine = attach(model, X)
    only_batch(engine)
    quietgrad.detach(model)
    assert stance() == "default"
    engine = attach(model, X)
    (x,) = only_batch(engine)
    with pytest.raises(QuietgradError, match="scalar"):
        engine.backward(squares(model, x).sum())
    assert stance() == "force_eager"
    batches = engine.batches
    gc.disable()  # nothing is to wait for it
    try:
        del engine
        assert stance() == "force_eager"  # somebody may go on with its method
        del batches
        assert stance() == "default"
    finally:
        gc.enable()
    # The model is still attached, and can be detached without an engine.
    with pytest.raises(EngineStateError, match="already attached"):
        attach(model, X)
    quietgrad.detach(model)
    attach(model, X).detach()


def test_batches_of_an_engine_that_is_lost():
    engine = attach(layers(), X)
    batches = iter(engine.batches())
    del engine
    with pytest.raises(EngineStateError, match="keep it in a variable"):
        next(batches)


def test_two_engines_at_once():
    models = [torch.compile(layers(), backend="eager", fullgraph=True) for _ in range(2)]
    engines = [attach(model, X) for model in models]
    batches = [only_batch(engine) for engine in engines]
    for engine, model, (x,) in zip(engines, models, batches, strict=True):
        assert stance() == "force_eager"
        engine.backward(squares(model, x))
        engine.step()
    assert stance() == "default"
    for engine in engines:
        engine.detach()


def test_a_stance_of_the_users_own():
    model = torch.compile(layers(), backend="eager")
    with torch.compiler.set_stance("eager_on_recompile"):
        engine = attach(model, X)
        (x,) = only_batch(engine)
        engine.backward(squares(model, x))
        assert stance() == "eager_on_recompile"
        engine.detach()


def test_a_stance_that_is_taken_back_while_samples_are_out_is_noticed():
    model = layers()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    engine = attach(model, X)
    before = state(model)
    (x,) = only_batch(engine)
    with torch.compiler.set_stance("default"):
        losses = squares(compiled, x)
    with pytest.raises(EscapedGradientError, match="model's forward"):
        engine.backward(losses)
    assert all(p.grad is None for p in model.parameters())
    assert_same_state(model, before)
    engine.detach()


# -- what else takes models ----------------------------------------------------------------------


def test_a_compiled_function_that_asks_for_gradients_of_samples_is_refused():
    model = layers()

    def run(x):
        return quietgrad.per_sample_grads(model, lambda: squares(model, x))

    with pytest.raises(EngineStateError, match="not compiled"):
        torch.compile(run, backend="eager")(X)
    assert not model._forward_pre_hooks
    plainly = torch.compiler.disable(run)
    torch.compile(lambda x: plainly(x), backend="eager")(X)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("options", OPTIONS[:3])
def test_functions_and_checks_and_plans(options):
    nested = layers()
    nested.first = torch.compile(nested.first, **options)
    compiled = torch.compile(layers(), **options)
    for model in (compiled, nested, in_place(layers(), **options)):
        found = quietgrad.per_sample_grads(model, lambda model=model: squares(model, X))
        expected = quietgrad.per_sample_grads(plain := layers(), lambda: squares(plain, X))
        assert found.keys() == dict(model.named_parameters()).keys()
        torch.testing.assert_close(list(found.values()), list(expected.values()))
        report = qg.check(model, X, squares)
        assert report.ok, str(report)
        qg.plan(model, X, squares)
    loss = torch.compile(squares, **options)
    assert qg.check(layers(), X, loss).ok
    qg.plan(layers(), X, loss)
