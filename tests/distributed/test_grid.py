"""Ranks that have parts of layers, whose rows shard them (FSDP2), train as one process does."""

import pytest
import torch

from . import tensor_jobs
from .ranks import run
from .test_tensors import CASES, assert_noise

# Four processes on two cores take longer to begin than all other tests of a kind together.
pytestmark = pytest.mark.slow
GRID = {"replicas": 2, "sharded": True}
REFUSED = {
    "a dimension that is left out": "the two dimensions of one mesh",
    "copies of shards": "HSDP",
    "a layer that is left out": "is whole, and others are sharded",
    "momentum": "InnerOuter",
    "compile": "compile=",
    "diagnostics": "diagnostics=",
    "sequence parallel": "is used by no linear layer or embedding",
    "whole on parts": "parameter 'blocks.0.scale' is whole on every rank",
}
MOVED = {"all-layer": "auto-s", "layer-wise": "abadi", "block-wise": "psac"}
FAST, FAST_MOVED = "block-wise", "layer-wise"


def same(name):
    return ("tensor_jobs.same_as_one", CASES[name] | GRID)


def moved(grouping):
    options = {"grouping": grouping, "clipping": MOVED[grouping]}
    return ("tensor_jobs.sensitivity", options | GRID)


JOBS = {
    "same": same(FAST),
    "float32": ("tensor_jobs.same_as_one", {"half": True, "steps": 3, **GRID}),
    "noise": ("tensor_jobs.noise", GRID),
    "seeded noise": ("tensor_jobs.noise", {"seeded": True, **GRID}),
    "moved": moved(FAST_MOVED),
    **{f"refused: {what}": ("tensor_jobs.refuse_grid", {"what": what}) for what in REFUSED},
    "mixing": ("tensor_jobs.refuse", GRID),
}


@pytest.fixture(scope="module")
def four():
    """What 2 x 2 ranks made of all jobs: to start processes takes longer than the jobs."""
    return dict(zip(JOBS, run([*JOBS.values()], 4), strict=True))


def assert_same_as_one(several, options, **tolerance):
    alone = tensor_jobs.same_as_one(**options)
    for each in several:
        assert "error" not in each, each["message"]
        assert each["weights"] == several[0]["weights"]  # to the last bit
        for name, values in alone["weights"].items():
            assert each["weights"][name] == pytest.approx(values, **tolerance), name
        assert (each["epsilon"], each["sensitivity"]) == (alone["epsilon"], alone["sensitivity"])
        assert each["radii"] == pytest.approx(alone["radii"], rel=1e-6)
    first, _, third, _ = several
    assert first["broken"] + third["broken"] == alone["broken"]


def test_two_rows_of_two_parts_train_as_one_process(four):
    assert_same_as_one(four["same"], CASES[FAST], rel=1e-9, abs=1e-11)


@pytest.mark.slow
def test_all_else_trains_as_in_one_process():
    names = [name for name in CASES if name != FAST]
    groupings = [grouping for grouping in MOVED if grouping != FAST_MOVED]
    found = run([*map(same, names), *map(moved, groupings)], 4)
    for name, each in zip(names, found, strict=False):
        assert_same_as_one(each, CASES[name], rel=1e-9, abs=1e-11)
    for several in found[len(names) :]:
        assert all(0 < each <= 1 + 1e-6 for each in several)


def test_in_single_precision(four):
    assert_same_as_one(four["float32"], {"half": True, "steps": 3}, rel=0, abs=1e-6)


@pytest.mark.parametrize("name", ["noise", "seeded noise"])
def test_every_entry_gets_noise_once(four, name):
    first, second, *others = four[name]
    assert [first, second] == others
    assert_noise([first, second])


def test_one_sample_moves_the_sum_by_at_most_the_sensitivity(four):
    for each in four["moved"]:
        assert 0 < each <= 1 + 1e-6


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_trained_is_refused_by_name(four, what):
    for each in four[f"refused: {what}"]:
        assert REFUSED[what] in each["message"], each


def test_mixing_is_refused_by_all(four):
    for each in four["mixing"]:
        assert each["steps"] == 0
        assert each["error"] in ("SampleMixingError", "RankError")
    assert any(each["error"] == "SampleMixingError" for each in four["mixing"])


@pytest.mark.slow
def test_states_of_other_numbers_of_ranks(tmp_path):
    """2 x 2 ranks, one process, two ranks with parts, two with shards, and 2 x 2 again."""
    whole = tensor_jobs.states(str(tmp_path), first=0, then=10, target="whole")
    turns = [
        (4, GRID),
        (1, {}),
        (2, {}),
        (2, {"replicas": 2, "sharded": True}),
        (4, GRID),
    ]
    source = None
    for number, (ranks, more) in enumerate(turns):
        options = {"folder": str(tmp_path), "first": 2 * number, "then": 2, "source": source}
        options |= {"target": f"state {number}"} | more
        if ranks == 1:
            found = [tensor_jobs.states(**options)]
        else:
            (found,) = run([("tensor_jobs.states", options)], ranks)
        for each in found:
            assert "error" not in each, each["message"]
            assert (each["steps"], each["ledger"]) == (2 * number + 2, 2 * number + 2)
        source = f"state {number}"
    for each in found:
        for name, values in whole["weights"].items():
            assert each["weights"][name] == pytest.approx(values, rel=1e-9, abs=1e-11), name


@pytest.mark.slow
@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise", "block-wise"])
def test_a_stock_llama(grouping):
    pytest.importorskip("transformers")
    options = {"grouping": grouping, "steps": 5}
    (found,) = run([("tensor_jobs.llama", GRID | options)], 4)
    alone = tensor_jobs.llama(alone=True, **options)
    for each in found:
        assert "error" not in each, each["message"]
        for name, values in alone.items():
            apart = (torch.tensor(each[name]) - torch.tensor(values)).abs().max()
            assert float(apart) <= 1e-6, name
