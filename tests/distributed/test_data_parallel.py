"""Ranks with whole copies of a model train as one process does."""

import math

import pytest
import torch

from quietgrad.errors import DistributedTrainingError

from . import jobs
from .ranks import finish, run, start

CASES = {
    "all-layer": {},
    "layer-wise, clipped": {"grouping": "layer-wise", "clipping": "abadi", "radius": 0.5},
    "block-wise": {"grouping": "uniform:2"},
    "a sample that is not finite": {"broken": True, "batch_size": 32},
    "mostly empty ranks": {"batch_size": 1, "steps": 8},
    "an adaptive radius": {"adaptive": True},
    "inner-outer momentum": {"inner": True},
    "shuffled": {"sampling": "shuffled", "adjacency": "replace-one"},
    "sums in parts": {"parts": True},
    "sums in parts, not finite": {"parts": True, "broken": True},
    "whole batches": {"physical_batch_size": None},
    "units of several records": {"by_person": True, "batch_size": 10, "physical_batch_size": 5},
}
DIFFERENT = {
    "weights": "ranks differ in the weights",
    "data": "ranks differ in the data",
    "quietgrad": "ranks differ in the version of quietgrad: rank 0 has 9.0, rank 1 has 9.1",
    "torch": "ranks differ in the version of torch: rank 0 has 2.99.0, rank 1 has 2.99.1",
    "size": "ranks differ in the setting dataset size: rank 0 has 64, rank 1 has 60",
    "units": "ranks differ in units=",
    "settings": "ranks differ in the setting clipping",
    "parameters": "ranks differ in the model's parameters",
    "wrapped": "DistributedDataParallel",
    "diagnostics": "diagnostics= is given in a process group of 2 ranks",
}
MOVED = [("all-layer", "auto-s"), ("layer-wise", "psac"), ("uniform:2", "abadi")]
JOBS = {
    **{f"same: {name}": ("same_as_one", options) for name, options in CASES.items()},
    **{f"differ: {name}": ("differ", {"what": name}) for name in DIFFERENT},
    "secure noise": ("noise", {"noise": "secure"}),
    "fast noise": ("noise", {"noise": "fast"}),
    "seeded noise": ("noise", {"seeded": True}),
    "draws": ("draws", {}),
    **{
        f"moved: {grouping}, {clipping}": (
            "sensitivity",
            {"grouping": grouping, "clipping": clipping},
        )
        for grouping, clipping in MOVED
    },
    "refusal": ("refuse_on_one", {}),
}


def results(ranks):
    return dict(zip(JOBS, run([*JOBS.values()], ranks), strict=True))


@pytest.fixture(scope="session")
def two():
    """What two ranks made of all jobs: to start processes takes longer than the jobs."""
    return results(2)


def assert_same_as_one(several, options):
    alone = jobs.same_as_one(**options)
    for each in several:
        assert "error" not in each, each["message"]
        assert each["weights"] == several[0]["weights"]  # to the last bit
        assert each["weights"] == pytest.approx(alone["weights"], rel=1e-9, abs=1e-12)
        assert each["radii"] == pytest.approx(alone["radii"], rel=1e-12)
        assert (each["epsilon"], each["steps"]) == (alone["epsilon"], alone["steps"])
    values = sorted(x for each in several for micro in each["seen"] for x in micro if x == x)
    own = sorted(x for micro in alone["seen"] for x in micro if x == x)
    assert values == own  # the same samples took part, each once


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_process(two, name):
    assert_same_as_one(two[f"same: {name}"], CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_several_ranks_train_as_one_process(ranks):
    found = results(ranks)
    for name, options in CASES.items():
        assert_same_as_one(found[f"same: {name}"], options)
    for name, moved in found.items():
        if name.startswith("moved"):
            assert all(0 < each <= 1 + 1e-6 for each in moved)


@pytest.mark.parametrize("source", ["secure noise", "fast noise"])
def test_every_entry_gets_noise_once(two, source):
    one, other = (torch.tensor(each) for each in two[source])
    assert torch.equal(one, other)
    count = one.shape[1]
    for step in one:
        assert step.ne(0).float().mean() > 0.99  # a grid has a zero
        assert float(step.std()) == pytest.approx(1, abs=5 / math.sqrt(2 * count))
        halves = step.view(2, -1)  # of the two owners
        assert abs(float(torch.corrcoef(halves)[0, 1])) < 5 / math.sqrt(count / 2)
    assert abs(float(torch.corrcoef(one)[0, 1])) < 5 / math.sqrt(count)


def test_seeded_noise_is_that_of_one_process(two):
    alone = jobs.noise(seeded=True)
    assert two["seeded noise"] == [alone, alone]


def test_one_draw_for_all(two):
    one, other = two["draws"]
    sizes = [len(a) + len(b) for a, b in zip(one, other, strict=True)]
    assert all(not set(a) & set(b) for a, b in zip(one, other, strict=True))
    assert all(abs(len(a) - len(b)) <= 1 for a, b in zip(one, other, strict=True))
    assert len(set(sizes)) > 3  # 8 of 64 samples are expected; Poisson batches vary
    assert sum(sizes) / len(sizes) == pytest.approx(8, abs=6 * math.sqrt(7 / len(sizes)))


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_differ_are_refused(two, what):
    for each in two[f"differ: {what}"]:
        assert each["error"] == "DistributedTrainingError", each
        assert DIFFERENT[what] in each["message"]


def test_processes_without_a_group_are_refused(monkeypatch):
    """What a launcher tells each of them is enough."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(DistributedTrainingError, match="init_process_group"):
        jobs.attach()


def test_a_refusal_on_one_rank_stops_all(two):
    first, second = two["refusal"]
    assert second["error"] == "SampleMixingError"
    assert first["error"] == "RankError"
    assert "rank 1 stopped: SampleMixingError" in first["message"]
    assert first["steps"] == second["steps"] == 1


@pytest.mark.parametrize(("grouping", "clipping"), MOVED)
def test_one_sample_moves_the_sum_by_at_most_the_sensitivity(two, grouping, clipping):
    for moved in two[f"moved: {grouping}, {clipping}"]:
        assert 0 < moved <= 1 + 1e-6


@pytest.mark.slow
def test_states_of_other_numbers_of_ranks(tmp_path):
    """One process that goes through; and two ranks, one and four in turn."""
    whole = jobs.save_and_load(str(tmp_path), first=0, then=6)
    run([("save_and_load", {"folder": str(tmp_path), "first": 0, "then": 2})], 2)
    jobs.save_and_load(str(tmp_path), first=2, then=2)
    (found,) = run([("save_and_load", {"folder": str(tmp_path), "first": 4, "then": 2})], 4)
    for each in found:
        assert each["weights"] == found[0]["weights"]  # to the last bit
        assert each["weights"] == pytest.approx(whole["weights"], rel=1e-9, abs=1e-12)
        assert (each["steps"], each["ledger"]) == (6, 6)


PLACES = [
    "before the vote",
    "before the ledger",
    "before the noise",
    "after the noise",
    "before the optimizer",
]


def kill_and_resume(tmp_path, where, victim, ranks=2):
    options = {"folder": str(tmp_path), "where": where, "victim": victim}
    ended = finish(start([("die", options)], ranks, timeout=5))
    assert ended[victim].code == -9
    for rank, each in enumerate(ended):
        if rank != victim:
            assert each.result is not None, each.output
            assert each.result[0]["error"] == "RankError", each.output
            assert f"rank {victim} ended without a word" in each.result[0]["message"]
    (again,) = run([("die", options | {"restart": True})], ranks)
    for each in again:
        assert each["steps"] == 6
        assert each["recorded"] >= each["steps"]
        # Steps that were recorded before the kill, and not saved, count.
        lost = 1 if where in PLACES[2:] or (where == PLACES[1] and victim) else 0
        assert each["recorded"] == 6 + lost


@pytest.mark.parametrize(
    ("where", "victim"),
    [("before the noise", 1), pytest.param("after the noise", 0, marks=pytest.mark.slow)],
)
def test_a_rank_that_is_killed(tmp_path, where, victim):
    kill_and_resume(tmp_path, where, victim)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("where", PLACES)
def test_any_rank_killed_anywhere(tmp_path, where, victim):
    kill_and_resume(tmp_path, where, victim, ranks=3)
