"""Several ranks or devices are refused by name: each would clip and add noise for itself."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

import quietgrad as qg
from quietgrad.errors import DistributedTrainingError, QuietgradError

from .helpers import FEATURES, assert_exact, attach, only_batch, samples, squares, state

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
X = samples()


@contextmanager
def process_group(ranks: int):
    """One process that believes to be the first of so many: nothing is sent anywhere."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=fake_pg.FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def alone():
    with process_group(1):
        yield


def plain() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, 2)
    return nn.Sequential(*layers).double()


def checked(model: nn.Module) -> None:
    report = qg.check(model, X, squares)
    assert report.ok or len(report.findings) == 1
    report.require_ok()


ENTRANCES = {
    "engine": lambda model: attach(model, X),
    "clipped_sum": lambda model: qg.clipped_sum(model, lambda: squares(model, X)),
    "per_sample_grads": lambda model: qg.per_sample_grads(model, lambda: squares(model, X)),
    "check": checked,
    "plan": lambda model: qg.plan(model, X, squares, memory="1GB"),
}


@pytest.mark.parametrize("entrance", [name for name in ENTRANCES if name != "engine"])
def test_a_process_group_of_several_ranks(entrance):
    with process_group(2), pytest.raises(QuietgradError) as caught:
        ENTRANCES[entrance](plain())
    for words in ("process group of 2 ranks", "for itself", "accounting", "one process"):
        assert words in str(caught.value)
    ENTRANCES[entrance](plain())  # it is over


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_process_group_of_one_rank_is_no_fault(entrance):
    ENTRANCES[entrance](plain())


def test_statistics_of_several_ranks_are_not_released():
    ledger = qg.accounting.Ledger()
    with process_group(2), pytest.raises(DistributedTrainingError, match="2 ranks"):
        qg.features.private_statistics(X, ledger)
    assert not ledger.steps


@pytest.mark.usefixtures("alone")
def test_one_rank_computes_the_same():
    assert_exact(plain(), squares, X)


def fully_sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def sharded_in_place(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def of_distributed_tensors(model: nn.Module, kind=nn.Parameter) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    whole = distribute_tensor(torch.zeros(2), init_device_mesh("cpu", (1,)))
    if kind is nn.Parameter:
        model.register_parameter("spread", nn.Parameter(whole))
    else:
        model.register_buffer("spread", whole)
    return model


class OwnParallel(nn.DataParallel):
    """A subclass with a name of its own, as libraries have them."""


WRAPPED = {
    "data parallel": (nn.DataParallel, "is a DataParallel", ".module"),
    "a subclass": (OwnParallel, "is a OwnParallel (DataParallel", ".module"),
    "distributed": (nn.parallel.DistributedDataParallel, "DistributedDataParallel", ".module"),
    "fully sharded": (fully_sharded, "FullyShardedDataParallel", "anew"),
    "what a fully sharded one wraps": (lambda m: fully_sharded(m).module, "_flat_param'", "anew"),
    "sharded in place": (sharded_in_place, "is a FSDPSequential", "anew"),
    "a distributed parameter": (of_distributed_tensors, "spread' is a DTensor", "anew"),
    "a distributed buffer": (lambda m: of_distributed_tensors(m, None), "is a DTensor", "anew"),
}
NOISY = pytest.mark.filterwarnings("ignore:.*FSDP is switching:UserWarning")


@NOISY
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("place", ["all", "a part"])
@pytest.mark.parametrize("name", WRAPPED)
def test_a_model_spread_over_ranks_or_devices(name, place):
    wrap, what, remedy = WRAPPED[name]
    model = wrap(plain()) if place == "all" else nn.Sequential(wrap(plain()), nn.Tanh())
    before = {path: len(m._forward_pre_hooks) for path, m in model.named_modules()}
    for entrance in ENTRANCES.values():
        with pytest.raises(QuietgradError) as caught:
            entrance(model)
        for words in (what, remedy, "for itself", "accounting"):
            assert words in str(caught.value)
    assert {path: len(m._forward_pre_hooks) for path, m in model.named_modules()} == before


def test_the_wrapped_module_itself_is_trained():
    model = nn.DataParallel(plain())
    assert_exact(model.module, squares, X)


@pytest.mark.parametrize("verb", ["batches", "next batch", "backward", "step", "load"])
def test_a_process_group_that_comes_later(verb, tmp_path):
    model = plain()
    engine = attach(model, X)
    engine.save(tmp_path / "state")
    verbs = {"batches": engine.batches, "load": lambda: engine.load(tmp_path / "state")}
    if verb == "next batch":
        batches = engine.batches()
        verbs[verb] = lambda: next(batches)
    elif verb not in verbs:
        losses = squares(model, *only_batch(engine))
        verbs |= {"backward": lambda: engine.backward(losses), "step": engine.step}
        if verb == "step":
            engine.backward(losses)
    before = state(model)
    with process_group(2), pytest.raises(DistributedTrainingError, match="process group of 2"):
        verbs[verb]()
    assert engine.steps_taken == 0
    assert all(torch.equal(value, before[name]) for name, value in state(model).items())
    with process_group(1):
        verbs["batches" if verb == "next batch" else verb]()


def test_a_build_without_distributed_training(monkeypatch):
    """Where torch was built without it, the functions do not exist."""
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    assert_exact(plain(), squares, X)


def test_wrappers_that_stay_in_one_process_pass():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    assert_exact(nn.Sequential(checkpoint_wrapper(plain())), squares, X)
