"""``PrivacyEngine(..., compile=)``: the same steps, and a fall back to what was written."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.errors import QuietgradError
from quietgrad.reduction import ClippedReducer

inductor = pytest.param(
    "inductor",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
    ],
)


@pytest.fixture(autouse=True)
def _reset():
    yield
    torch._dynamo.reset()


class Attention(nn.Module):
    """A small text model with most of what transformers use: positions, a tied head, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(9, 8)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.words(ids) + self.places(torch.arange(length))
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.gelu(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return self.head(x * self.scale).mean(1)


class Convolutions(nn.Module):
    """Convolutions, group norms, activations in place, a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, stride=2)
        self.token, self.last = nn.Parameter(torch.randn(1, 1, 4)), nn.Linear(4, 5)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.second(self.act(self.norm(self.first(x)))))
        rows = x.flatten(2).mT
        rows = torch.cat([self.token.expand(len(rows), -1, -1), rows], 1)
        return self.last(rows.tanh()).mean(1)


class Derived(nn.Module):
    """Weights that are computed of parameters alone: standardized, transposed, of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(6, 6))
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(5, 2))
        self.register_buffer("shift", torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean(0)) * self.shift
        x = F.linear(x, self.other).tanh()
        return x @ weight + x @ self.down.T @ self.up.T


class Adapted(nn.Module):
    """Frozen layers that are all alike, each with an adapter of low rank and a norm (LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.bases = nn.ModuleList(nn.Linear(6, 6).requires_grad_(False) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(6, 2, bias=False) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(2, 6) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for base, down, up, norm in zip(self.bases, self.downs, self.ups, self.norms, strict=True):
            x = norm(x + base(x).tanh() + up(down(x)))
        return x


def _slow(value: Any) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def ids(count: int) -> Tensor:
    return torch.randint(0, 11, (count, 7))


PROBLEMS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "linear": (linear, lambda n: torch.randn(n, 6)),
    "attention": (Attention, ids),
    "convolutions": (Convolutions, lambda n: torch.randn(n, 3, 6, 6)),
    "derived": (Derived, lambda n: torch.randn(n, 6)),
    "adapted": (Adapted, lambda n: torch.randn(n, 3, 6)),
}


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().flatten(1).sum(1)


class Recorder(torch.optim.SGD):
    """Keeps what it is given."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.01)
        self.released: list[list[Tensor]] = []

    def step(self, closure: Any = None) -> None:
        self.released.append([p.grad.clone() for g in self.param_groups for p in g["params"]])
        super().step(closure)


def train(
    model: nn.Module,
    data: Any,
    compile: bool | str,
    *,
    steps: int = 5,
    losses: Callable[[nn.Module, Tensor], Tensor] = squares,
    **options: Any,
) -> tuple[list[list[Tensor]], qg.PrivacyEngine]:
    """So many steps with seeded draws; what the optimizer got, and the engine."""
    optimizer = Recorder([p for p in model.parameters() if p.requires_grad])
    defaults = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-9, "seed": 1, "epochs": 9}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = qg.PrivacyEngine(
            model.train(), optimizer, data, compile=compile, **(defaults | options)
        )
    torch.manual_seed(7)
    while engine.steps_taken < steps:
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(losses(model, x))
            engine.step()
            if engine.steps_taken == steps:
                break
    return optimizer.released, engine


def both(
    build: Callable[[], nn.Module], data: Any, backend: bool | str, **options: Any
) -> qg.PrivacyEngine:
    """Train as it was written, and compiled: both must get the same."""
    found = []
    for each in (False, backend):
        torch.manual_seed(0)
        released, engine = train(build(), data, each, **options)
        engine.detach()
        found.append(released)
    tolerance = 1e-4
    for eager, compiled in zip(*found, strict=True):
        for one, other in zip(eager, compiled, strict=True):
            assert (one - other).abs().max() <= tolerance * one.abs().max()
    return engine


def compiled_calls(engine: qg.PrivacyEngine) -> int:
    compiler = engine._capture.compiler
    assert compiler is not None
    return compiler.calls


@pytest.mark.parametrize("backend", ["aot_eager", inductor])
@pytest.mark.parametrize("name", ["attention", *(_slow(n) for n in PROBLEMS if n != "attention")])
def test_compiled_steps_are_the_same_for_batches_of_any_size(name, backend):
    build, make = PROBLEMS[name]
    torch.manual_seed(3)
    engine = both(build, TensorDataset(make(32)), backend)
    assert engine.compilation == "compiled"
    assert compiled_calls(engine) >= 3  # all but the first micro-batch, and what has one sample
    assert len(engine._capture.compiler.graphs) == 1


def test_sites_that_are_alike_give_their_factors_at_once(monkeypatch: pytest.MonkeyPatch):
    joined: list[tuple[str, ...]] = []
    take = ClippedReducer.joined_done

    def note(self: ClippedReducer, names: Any, factor: Any) -> None:
        joined.append(tuple(names))
        take(self, names, factor)

    monkeypatch.setattr(ClippedReducer, "joined_done", note)
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(32, 3, 6))
    both(Adapted, data, "aot_eager", steps=3, verification="once")
    kinds = ["downs.{}.weight", "norms.{}.bias", "norms.{}.weight", "ups.{}.bias", "ups.{}.weight"]
    assert {*joined} == {tuple(kind.format(i) for i in range(2)) for kind in kinds}


def test_a_resumed_run_goes_on_as_if_it_had_not_ended(tmp_path: Path):
    def run(steps: int, compile: bool | str, *, ends: bool) -> list[list[Tensor]]:
        torch.manual_seed(3)
        data, released = TensorDataset(torch.randn(32, 6)), list[list[Tensor]]()
        for part in range(2 if ends else 1):
            torch.manual_seed(part)  # other weights, if they were not loaded
            model = linear().train()
            optimizer = Recorder(model.parameters())
            path = tmp_path / f"{compile}-{ends}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                engine = qg.PrivacyEngine(
                    model,
                    optimizer,
                    data,
                    batch_size=8,
                    epochs=9,
                    noise_multiplier=1.0,
                    delta=1e-9,
                    seed=1,
                    compile=compile,
                    ledger=path.with_suffix(".ledger"),
                )
            if part:
                engine.load(path)
            until = steps if part or not ends else steps // 2
            while engine.steps_taken < until:
                for batch in engine.batches():
                    for (x,) in batch:
                        engine.backward(squares(model, x))
                    engine.step()
                    if engine.steps_taken == until:
                        break
            assert not compile or engine.compilation == "compiled"
            if ends and not part:
                engine.save(path)
            engine.detach()
            released += optimizer.released
        return released

    for one, other in zip(run(6, False, ends=False), run(6, "aot_eager", ends=True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_of_other_lengths_there_is_one_more_graph():
    """A dimension that was seen to change is taken for one that may."""
    lengths = 2 * [4, 6, 5, 7, 4, 6, 7, 5]
    left = [*lengths]

    def cut(model: nn.Module, x: Tensor) -> Tensor:
        return squares(model, x[:, : left.pop(0)])

    torch.manual_seed(3)
    engine = both(Attention, TensorDataset(ids(32)), "aot_eager", losses=cut, steps=8)
    assert engine.compilation == "compiled"
    assert len(engine._capture.compiler.graphs) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"grouping": "layer-wise"},
        {"clipping": "abadi", "radius": 0.1},
        {"clipping": "psac", "grouping": "param-wise"},
        {"strategy": "keep"},
        {"strategy": "ghost"},
        {"physical_batch_size": 3},
        {"loss_scale": 64.0},
        {"verification": "every"},
        {"verification": "once"},
        {"sampling": "shuffled", "adjacency": "replace-one"},
        {"batch_size": 1, "steps": 12},  # batches are empty, or have one sample, or two
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["attention", "adapted"])
def test_options_are_the_same(name, options):
    build, make = PROBLEMS[name]
    torch.manual_seed(3)
    both(build, TensorDataset(make(32)), "aot_eager", **options)


@pytest.mark.slow
def test_inner_momentum_is_the_same():
    def train_with(compile: bool | str) -> list[list[Tensor]]:
        torch.manual_seed(0)
        model = linear().train()
        optimizer = Recorder(model.parameters())
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = qg.PrivacyEngine(
                model,
                optimizer,
                TensorDataset(torch.randn(24, 6)),
                batch_size=8,
                noise_multiplier=1.0,
                delta=1e-9,
                seed=1,
                compile=compile,
                momentum=qg.InnerOuter(),
            )
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(lambda x=x: squares(model, x))
            engine.step()
        engine.detach()
        return optimizer.released

    for one, other in zip(train_with(False), train_with("aot_eager"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_nan_samples_are_dropped():
    data = torch.randn(32, 6)
    data[::5] = torch.nan
    engine = both(linear, TensorDataset(data), "aot_eager")
    assert engine.nonfinite_samples
    assert compiled_calls(engine)


@pytest.mark.slow
def test_dropout_draws_the_same_or_is_not_compiled():
    torch.manual_seed(3)
    both(lambda: Function(draws), TensorDataset(torch.randn(32, 6)), "aot_eager")


def draws(model: Any, x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, model.training)


# -- what is not compiled ------------------------------------------------------------------------


class Function(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 4)
        self.between, self.count = between, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self, self.first(x)))


def mixes_when_compiled(model: Any, x: Tensor) -> Tensor:
    return x - x.mean(0) if torch.compiler.is_compiling() else x


def counts(model: Any, x: Tensor) -> Tensor:
    model.count += 1
    return x


def prints(model: Any, x: Tensor) -> Tensor:
    print(end="")
    return x


def branches(model: Any, x: Tensor) -> Tensor:
    return x if float(x.detach().sum()) > 1e9 else 2 * x


def computes_again(model: Any, x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=False)


class Own(torch.autograd.Function):
    """An identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clone()


def applies(model: Any, x: Tensor) -> Tensor:
    return Own.apply(x)


def takes_rows(model: Any, x: Tensor) -> Tensor:
    order = x.detach()[:, 0].argsort()
    return x[order][order.argsort()]


@pytest.mark.parametrize(
    "between",
    [
        mixes_when_compiled,
        counts,
        *map(_slow, [prints, branches, computes_again, applies, takes_rows]),
    ],
)
def test_what_cannot_be_compiled_runs_as_it_was_written(between):
    torch.manual_seed(3)
    engine = both(lambda: Function(between), TensorDataset(torch.randn(32, 6)), "aot_eager")
    assert not compiled_calls(engine), engine.compilation
    assert engine.compilation.startswith("runs as it was written: ")


class Cached(nn.Module):
    """Gives its keys back beside what it computes of them, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.keys(x).tanh()
        return self.last(keys), keys


class OfBoth:
    """Losses of the first output, and from some step on of its keys, too."""

    def __init__(self, begin: int, steps: int) -> None:
        self._begin, self._steps, self._calls = begin, steps, 0

    def __call__(self, model: nn.Module, x: Tensor) -> Tensor:
        logits, keys = model(x)
        losses = logits.square().sum(1)
        is_later = self._calls % self._steps >= self._begin
        self._calls += 1
        return losses + keys.sum(1) if is_later else losses


@pytest.mark.parametrize("begin", [3, 6], ids=["later of both", "of one"])
def test_an_output_that_another_is_computed_of_is_given_back_compiled(begin):
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(32, 6))
    engine = both(Cached, data, "aot_eager", steps=6, losses=OfBoth(begin, 6))
    assert engine.compilation == "compiled"
    assert compiled_calls(engine) >= 4


def test_losses_of_both_from_the_start_run_as_it_was_written_with_advice_that_holds():
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(32, 6))
    engine = both(Cached, data, "aot_eager", steps=2, losses=OfBoth(0, 2))
    assert "computed of the other (return only one of them)" in engine.compilation

    class One(Cached):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[0]

    engine = both(One, data, "aot_eager", steps=2)
    assert engine.compilation == "compiled"


def test_what_begins_to_mix_later_is_refused():
    def between(model: Any, x: Tensor) -> Tensor:
        return x - x.mean(0) if model.flag else x

    torch.manual_seed(0)
    model = Function(between)
    model.flag = False
    data = TensorDataset(torch.randn(32, 6))
    engine = train(model, data, "aot_eager")[1]
    assert compiled_calls(engine)
    model.flag = True
    with pytest.raises(QuietgradError, match="mix"):
        for _ in range(3):
            for batch in engine.batches():
                for (x,) in batch:
                    engine.backward(squares(model, x))
                engine.step()
    engine.detach()


def doubled_backward(model: nn.Module) -> None:
    model.second.register_full_backward_hook(lambda module, into, out: (2 * into[0],))


def doubled_everywhere(model: nn.Module) -> Any:
    first = model.second
    return nn.modules.module.register_module_full_backward_hook(
        lambda module, into, out: (2 * into[0],) if module is first else None
    )


def replaced_function(model: nn.Module) -> None:
    type(model).forward = lambda self, x: 2 * Function.forward(self, x)


def replaced_function_of_what_it_holds(model: nn.Module) -> None:
    type(model.held[0]).__call__ = lambda self, x: 2 * x  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change",
    [
        doubled_backward,
        replaced_function_of_what_it_holds,
        _slow(doubled_everywhere),
        _slow(replaced_function),
    ],
)
def test_what_dynamo_does_not_guard_runs_as_it_was_written(change):
    """Hooks of backward passes and functions of classes, changed after compiling."""

    def train_with(compile: bool | str) -> list[list[Tensor]]:
        torch.manual_seed(0)
        model = type("Own", (Function,), {})(lambda model, x: model.held[0](x))
        model.held = [type("Tanh", (), {"__call__": lambda self, x: x.tanh()})()]
        handles = list[Any]()

        def losses(model: nn.Module, x: Tensor) -> Tensor:
            count.append(len(x))
            if len(count) == 4:
                handles.append(change(model))
            return squares(model, x)

        count = list[int]()
        data = TensorDataset(torch.randn(32, 6))
        try:
            released, engine = train(model, data, compile, losses=losses, verification="once")
        finally:
            for handle in filter(None, handles):
                handle.remove()
        assert not compile or compiled_calls(engine) == 2
        engine.detach()
        return released

    for one, other in zip(train_with(False), train_with("aot_eager"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_detached_the_model_is_as_it_was():
    torch.manual_seed(0)
    model = linear()
    before = dict(vars(model))
    _, engine = train(model, TensorDataset(torch.randn(32, 6)), "aot_eager")
    assert compiled_calls(engine)
    engine.detach()
    assert vars(model).keys() == before.keys()
    assert model._compiled_call_impl is None


@pytest.mark.parametrize(
    "copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "pickled"]
)
def test_a_copy_of_the_model_is_not_compiled(copy):
    """Also of one that says itself what belongs to its state."""
    model = nn.GRU(3, 2, batch_first=True)
    x = torch.randn(8, 4, 3)
    _, engine = train(model, TensorDataset(x), "aot_eager", steps=0)
    other = copy(model)
    assert other._compiled_call_impl is None
    expected = model.eval()(x)[0]
    engine.detach()
    torch.testing.assert_close(other.eval()(x)[0], expected)


@pytest.mark.slow
def test_a_tensor_that_is_given_twice():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.layer(x) * y[:, :3]

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return model(x, x).square().sum(1)

    engine = both(Both, TensorDataset(torch.randn(32, 6)), "aot_eager", losses=losses)
    assert compiled_calls(engine) >= 3


@pytest.mark.parametrize("compile", ["no backend", 3])
def test_another_backend_is_refused(compile):
    with pytest.raises(ValueError, match="compile="):
        train(linear(), TensorDataset(torch.randn(32, 6)), compile)
