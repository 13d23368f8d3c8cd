"""Inner-outer momentum against a loop that keeps every sample's gradient at every weight."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.errors import EngineStateError, LossError, SampleMixingError

from .helpers import (
    COUNT,
    MODELS,
    attach,
    clipped,
    grads_at,
    losses,
    made,
    step,
    weights_of,
)

CLIPPINGS = ["abadi", "auto-s", "psac"]
GROUPINGS = ["all-layer", "layer-wise", "param-wise"]


class Reference:
    """Algorithm 2, word for word: gradients of all samples at all past weights."""

    def __init__(self, model, data, engine, function, options):
        self.model, self.data, self.engine = model, data, engine
        self.function, self.options = function, options
        self.iterates, self.outer = [], None

    def step(self, weights, lr=0.5):
        """The next weights, by name."""
        self.iterates.insert(0, weights)
        known = self.iterates[: self.options.past + 1]
        if self.options.start == "repeat":
            known = known + known[-1:] * (self.options.past + 1 - len(known))
        momenta = None
        for age, past in enumerate(known):
            grads = grads_at(self.model, past, self.data)
            scaled = {name: self.options.inner**age * grad for name, grad in grads.items()}
            if momenta is None:
                momenta = scaled
            else:
                momenta = {name: momenta[name] + scaled[name] for name in momenta}
        sums = clipped(momenta, self.engine.groups, self.function)
        released = {name: total / COUNT for name, total in sums.items()}
        carried = self.options.carried
        if carried and self.outer is not None:
            released = {n: carried * self.outer[n] + released[n] for n in released}
        self.outer = released
        return {name: weights[name] - lr * released[name] for name in weights}


def combinations():
    """Each model meets each clipping and each grouping by default; all pairs of them are `slow`."""
    for i, name in enumerate(MODELS):
        for j, function in enumerate(CLIPPINGS):
            for k, grouping in enumerate(GROUPINGS):
                marks = () if (i + j + k) % 3 == 0 else pytest.mark.slow
                yield pytest.param(name, function, grouping, marks=marks)


@pytest.mark.parametrize(("name", "function", "grouping"), [*combinations()])
def test_four_steps_are_those_of_the_loop(name, function, grouping):
    options = qg.InnerOuter(length=2, inner=0.3, outer=0.6)
    assert_as_reference(name, function, grouping, options, steps=4)


@pytest.mark.parametrize(
    "options",
    [
        qg.InnerOuter(length=1, inner=1.0, outer=None),
        qg.InnerOuter(length=3, inner=0.5, outer=0.9, outer_means="carried"),
        qg.InnerOuter(length=2, inner=0.5, outer=1.0, length_counts="all"),
        qg.InnerOuter(length=2, inner=0.5, outer=0.5, start="repeat"),
        qg.InnerOuter(length=0, outer=0.4),
    ],
    ids=str,
)
def test_every_option(options):
    assert_as_reference("mlp", "auto-s", "layer-wise", options, steps=5)


def strategies():
    """Each model with one strategy in turn; all pairs are `slow`."""
    for i, name in enumerate(MODELS):
        for j, strategy in enumerate(["ghost", "keep", "discard"]):
            yield pytest.param(name, strategy, marks=() if j == i % 3 else pytest.mark.slow)


@pytest.mark.parametrize(("name", "strategy"), [*strategies()])
def test_every_strategy(name, strategy):
    options = qg.InnerOuter(length=2, inner=0.3, outer=None)
    assert_as_reference(name, "auto-s", "all-layer", options, steps=3, strategy=strategy)


def assert_as_reference(name, function, grouping, options, steps, **more):
    model, data = made(name)
    engine = attach(model, data, clipping=function, grouping=grouping, momentum=options, **more)
    reference = Reference(model, data, engine, function, options)
    for _ in range(steps):
        expected = reference.step(weights_of(model))
        step(engine, model)
        for key, value in weights_of(model).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_without_past_weights_it_is_the_plain_engine(name):
    found = []
    for momentum in (None, qg.InnerOuter(length=0, outer=None)):
        model, data = made(name)
        engine = attach(model, data, momentum=momentum, seed=3, noise_multiplier=1.0)
        for _ in range(3):
            step(engine, model)
        found.append(weights_of(model))
    for key in found[0]:
        assert torch.equal(found[0][key], found[1][key])


def test_adaptive_optimizers_see_the_momentum():
    model, data = made("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        data,
        batch_size=3,
        noise_multiplier=1.0,
        delta=0.1,
        momentum=qg.InnerOuter(),
    )
    for _ in range(3):
        step(engine, model)
    assert engine.steps_taken == 3 * engine.steps_per_epoch


def test_losses_that_are_computed_already_are_refused():
    model, data = made("mlp")
    engine = attach(model, data, momentum=qg.InnerOuter())
    before = weights_of(model)
    x, y = next(iter(next(iter(engine.batches()))))
    with pytest.raises(LossError, match=r"past weights.*lambda"):
        engine.backward(losses(model, x, y))
    engine.discard_batch()
    assert all(torch.equal(before[n], now) for n, now in weights_of(model).items())
    assert engine.ledger.steps == 0


def test_weights_are_put_back_when_a_loss_function_fails():
    model, data = made("mlp")
    engine = attach(model, data, momentum=qg.InnerOuter(length=1))
    step(engine, model)
    before = weights_of(model)
    places = [parameter.data_ptr() for parameter in model.parameters()]

    def failing():
        raise KeyboardInterrupt

    next(iter(next(iter(engine.batches()))))
    with pytest.raises(KeyboardInterrupt):
        engine.backward(failing)
    engine.discard_batch()
    assert places == [parameter.data_ptr() for parameter in model.parameters()]
    assert all(torch.equal(before[n], now) for n, now in weights_of(model).items())
    step(engine, model)


def test_a_run_is_resumed_where_it_was(tmp_path):
    options = qg.InnerOuter(length=2, inner=0.3, outer=0.6)
    model, data = made("words")
    engine = attach(model, data, momentum=options, seed=1)
    for _ in range(3):
        step(engine, model)
    engine.save(tmp_path / "state.pt")
    twin, _ = made("words")
    other = attach(twin, data, momentum=options, seed=1)
    other.load(tmp_path / "state.pt")
    for each, net in ((engine, model), (other, twin)):
        step(each, net)
    for key, value in weights_of(model).items():
        assert torch.equal(value, weights_of(twin)[key])


def test_a_state_of_another_momentum_is_refused():
    model, data = made("mlp")
    engine = attach(model, data, momentum=qg.InnerOuter(length=1))
    step(engine, model)
    state = engine.state_dict()
    other = attach(copy.deepcopy(made("mlp")[0]), data, momentum=qg.InnerOuter(length=2))
    with pytest.raises(EngineStateError, match="momentum"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"length": -1}, "length"),
        ({"length": 1.5}, "length"),
        ({"length": 0, "length_counts": "all"}, "length"),
        ({"inner": 0.0}, "inner"),
        ({"inner": 1.1}, "inner"),
        ({"inner": float("nan")}, "inner"),
        ({"outer": 0.0}, "outer"),
        ({"outer": 1.5}, "outer"),
        ({"outer": 1.0, "outer_means": "carried"}, "outer"),
        ({"outer": -0.1, "outer_means": "carried"}, "outer"),
        ({"start": "later"}, "start"),
        ({"length_counts": "some"}, "length_counts"),
        ({"outer_means": "lost"}, "outer_means"),
    ],
)
def test_options_out_of_range(given, named):
    with pytest.raises(ValueError, match=named):
        qg.InnerOuter(**given)


def test_other_momentum_is_the_optimizers():
    model, data = made("mlp")
    with pytest.raises(TypeError, match=r"InnerOuter.*optimizer"):
        attach(model, data, momentum=0.9)


def _engine_of(model, x, **options):
    return qg.PrivacyEngine(
        model, torch.optim.SGD(model.parameters(), lr=0.0), TensorDataset(x), batch_size=len(x),
        delta=1e-7, sampling="full-batch", noise_multiplier=1e-6, seed=0,
        momentum=qg.InnerOuter(length=3, inner=1.0, outer=None), **options,
    )  # fmt: skip


class _Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 1, bias=False)

    def forward(self, x):
        return self.a(x * 1.0)[:, 0]


def _written_in_place(model, x):
    x.copy_(x.roll(1, 0))
    return model(x)


def _targets_in_turn(turn):
    def losses(model, x):
        turn.append(None)
        return model(torch.ones_like(x)) * x.roll(len(turn), 0)[:, 0]

    return losses


def _targets_that_move_once(turn):
    """In the same places at first, and in others from some call on."""

    def losses(model, x):
        turn.append(None)
        return model(torch.ones_like(x)) * x.roll(int(len(turn) % 5 > 2), 0)[:, 0]

    return losses


@pytest.mark.parametrize(
    "losses", [_written_in_place, _targets_in_turn([]), _targets_that_move_once([])]
)
def test_samples_that_change_places_unseen_by_the_model_are_refused(losses):
    model = _Scaled()
    x = torch.randn(8, 4)
    engine = _engine_of(model, x)
    with pytest.raises(SampleMixingError, match="change places"):
        for _ in range(3):
            for batch in engine.batches():
                for (rows,) in batch:
                    engine.backward(lambda rows=rows: losses(model, rows))
                engine.step()


def test_past_weights_in_a_state_must_be_possible():
    model = _Scaled()
    x = torch.randn(8, 4)
    engine = _engine_of(model, x)
    for batch in engine.batches():
        for (rows,) in batch:
            engine.backward(lambda rows=rows: model(rows))
        engine.step()
    for spoil in (
        lambda past: past.extend(past * 4),
        lambda past: past[0]["a.weight"].fill_(float("nan")),
    ):
        state = engine.state_dict()
        spoil(state["momentum"]["past"])
        with pytest.raises(EngineStateError):
            _engine_of(model, x).load_state_dict(state)


@pytest.mark.parametrize("wrong", [{"inner": 1.5}, {"inner": True}, {"inner": 0}, {"outer": 2}])
def test_weights_are_called_weights(wrong):
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))}=.*a weight in \(0, 1\]"):
        qg.InnerOuter(**wrong)


def test_momentum_upon_momentum_is_told_of():
    model, data = made("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = {"batch_size": COUNT, "noise_multiplier": 1.0, "delta": 1e-3}
    with pytest.warns(UserWarning, match=r"carries 0\.1 .*momentum=0\.9.*outer=None") as caught:
        qg.PrivacyEngine(model, optimizer, data, momentum=qg.InnerOuter(), **given).detach()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inner = qg.InnerOuter(outer=None)
        qg.PrivacyEngine(model, optimizer, data, momentum=inner, **given).detach()
