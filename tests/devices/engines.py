"""Engines on devices: checkpoints from one to another, dropout, pinned memory."""

import copy

import pytest
import torch
from tests.devices import pretend
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

import quietgrad as qg

pretend.register()  # before the first backward pass, for which torch counts the devices


@pytest.fixture(autouse=True)
def _same_noise():
    with pretend.noise_of_the_host():
        yield


PLACES = ["cpu", pretend.NAME]
KINDS = {
    "adam": {},
    "momentum": {"momentum": qg.InnerOuter(outer=0.9, outer_means="carried")},
    "adaptive radius": {"radius": qg.AdaptiveRadius(), "clipping": "abadi"},
}


class Training:
    """A small network with a buffer on a device, and its engine."""

    def __init__(self, place, **options):
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.model.register_buffer("scale", torch.ones(3))
        self.model.to(place)
        self.place = place
        build = torch.optim.SGD if "momentum" in options else torch.optim.Adam
        self.engine = qg.PrivacyEngine(
            self.model,
            build(self.model.parameters(), lr=0.05),
            data,
            batch_size=12,
            epochs=4,
            noise_multiplier=1.0,
            delta=1e-3,
            seed=1,
            **options,
        )

    def epoch(self):
        for batch in self.engine.batches():
            for x, y in batch:
                self.backward(x.to(self.place), y.to(self.place))
            self.engine.step()
        return self

    def backward(self, x, y):
        self.engine.backward(
            lambda: F.cross_entropy(self.model(x) * self.model.scale, y, reduction="none")
        )


def require_same(one, other):
    """All tensors and numbers, wherever they are."""
    ones, others = tree_leaves(one), tree_leaves(other)
    assert len(ones) == len(others)
    for a, b in zip(ones, others, strict=True):
        if isinstance(a, torch.Tensor):
            assert torch.equal(a.cpu(), b.cpu())
        else:
            assert a == b


@pytest.mark.filterwarnings("ignore:seed=")
@pytest.mark.every_nth(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saved_on", PLACES)
@pytest.mark.parametrize("loaded_on", PLACES)
def test_a_run_goes_on_elsewhere(tmp_path, kind, saved_on, loaded_on):
    path = tmp_path / "checkpoint.pt"
    first = Training(saved_on, **KINDS[kind]).epoch()
    first.engine.save(path)
    saved = first.engine.state_dict()
    second = Training(loaded_on, **KINDS[kind])
    second.engine.load(path)
    require_same(second.engine.state_dict(), saved)
    assert {p.device.type for p in second.model.parameters()} == {loaded_on}
    one, other = second.epoch().engine.state_dict(), first.epoch().engine.state_dict()
    for part in ("model", "optimizer", "momentum", "radii", "steps_taken"):
        require_same(one[part], other[part])


@pytest.mark.filterwarnings("ignore:seed=")
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_holds_nothing_on_the_device(kind):
    state = Training(pretend.NAME, **KINDS[kind]).epoch().engine.state_dict()
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    assert tensors
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert state["model"]._metadata  # which versions of modules a state is of


@pytest.mark.filterwarnings("ignore:seed=")
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_whose_tensors_are_on_a_device_is_moved(kind):
    first = Training("cpu", **KINDS[kind]).epoch()
    state = first.engine.state_dict()

    def moved(part):
        if isinstance(part, torch.Tensor):
            return part.to(pretend.NAME)
        if isinstance(part, dict):
            return {name: moved(each) for name, each in part.items()}
        return [moved(each) for each in part] if isinstance(part, list) else part

    there = {name: moved(part) for name, part in state.items()}
    second = Training("cpu", **KINDS[kind])
    second.engine.load_state_dict(there)
    require_same(second.engine.state_dict(), state)
    require_same(second.epoch().model.state_dict(), first.epoch().model.state_dict())


@pytest.mark.filterwarnings("ignore:seed=")
def test_a_state_on_the_cpu_is_a_copy():
    training = Training("cpu", **KINDS["momentum"]).epoch()
    state = training.engine.state_dict()
    before = copy.deepcopy(state)
    training.epoch()
    require_same(state, before)


@pytest.mark.parametrize("place", PLACES)
def test_inner_momentum_repeats_the_dropout_of_the_device(place):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)).to(place)
    data = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        data,
        batch_size=12,
        epochs=1,
        noise_multiplier=1.0,
        delta=1e-3,
        momentum=qg.InnerOuter(),
        verification="every",
    )
    for batch in engine.batches():
        for x, y in batch:
            x, y = x.to(place), y.to(place)
            engine.backward(lambda: F.cross_entropy(model(x), y, reduction="none"))  # noqa: B023
        engine.step()
    assert engine.steps_taken == 4


def engine_with(**options):
    model = nn.Linear(6, 3)
    data = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"batch_size": 12, "epochs": 1, "noise_multiplier": 1.0, "delta": 1e-3, **options}
    return model, qg.PrivacyEngine(model, optimizer, data, **given)


def batches_of(model, engine):
    """What is handed out in an epoch of training."""
    found = []
    for batch in engine.batches():
        for x, y in batch:
            found.append((x, y))
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
    return found


@pytest.fixture
def pinnable(monkeypatch):
    """The pretend device has pinned memory."""

    def pin_memory(self, device=None):
        self.is_pinned_here = True
        return self

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)


@pytest.mark.parametrize("collate", [None, torch.utils.data.default_collate])
def test_batches_are_pinned_where_that_helps(pinnable, recwarn, collate):
    found = batches_of(*engine_with(pin_memory=True, collate_fn=collate))
    assert found
    assert all(column.is_pinned_here for batch in found for column in batch)
    assert not [warning for warning in recwarn if "pin_memory" in str(warning.message)]


def test_nothing_is_pinned_unless_asked_for(pinnable):
    found = batches_of(*engine_with())
    assert not any(hasattr(column, "is_pinned_here") for batch in found for column in batch)


def test_without_an_accelerator_a_note_says_that_nothing_is_pinned(pinnable, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="no effect: no accelerator is available") as notes:
        model, engine = engine_with(pin_memory=True)
    assert notes[0].filename == __file__
    found = batches_of(model, engine)
    assert not any(hasattr(column, "is_pinned_here") for batch in found for column in batch)


def test_a_device_without_pinned_memory_gets_a_note():
    with pytest.warns(UserWarning, match="no effect: pretend has no pinned memory"):
        model, engine = engine_with(pin_memory=True)
    assert batches_of(model, engine)


@pytest.mark.parametrize("value", [1, None, "cuda"])
def test_pin_memory_is_a_bool(value):
    with pytest.raises(TypeError, match="pin_memory"):
        engine_with(pin_memory=value)
