"""Ranks with sharded weights (FSDP2, HSDP) train as one process does."""

import math

import pytest
import torch

from . import sharded_jobs
from .ranks import ROOT, finish, run, start

CASES = {
    "all-layer": {},
    "layer-wise, clipped": {"grouping": "layer-wise", "clipping": "abadi", "radius": 0.5},
    "two groups": {"grouping": "uniform:2"},
    "a sample that is not finite": {"broken": True, "batch_size": 32},
    "mostly empty ranks": {"batch_size": 1, "steps": 8},
    "an adaptive radius": {"adaptive": True},
    "weights that stay gathered": {"reshard": False},
    "evaluation in between": {"evaluate": True},
    "whole batches": {"physical_batch_size": None},
    "shuffled": {"sampling": "shuffled", "adjacency": "replace-one"},
}
DIFFERENT = {
    "parts": "is whole, and others are sharded",
    "copies": "ranks differ in part 0 of the weights",
    "inner": "momentum=InnerOuter is given, and the model is sharded",
    "diagnostics": "diagnostics= is given in a process group of 2 ranks",
    "settings": "ranks differ in the setting clipping",
}
REFUSED = {
    "samples": "SampleMixingError",
    "trainable set": "TrainableSetError",
    "losses": "LossError",
}
GROUPINGS, CLIPPINGS = ["all-layer", "layer-wise"], ["auto-s", "abadi"]
METHODS = ["AdaptiveRadius", "InnerOuter", "SelfAugmentation", "BatchClipping", "diagnostics"]
KINDS = {"copies": "data parallel", "sharded": "FSDP2, HSDP"}
JOBS = {
    **{
        f"{method}, {kind}": ("methods", {"method": method, "kind": kind})
        for method in METHODS
        for kind in KINDS
    },
    **{f"same: {name}": ("sharded_as_one", options) for name, options in CASES.items()},
    **{f"differ: {name}": ("sharded_differ", {"what": name}) for name in DIFFERENT},
    "secure noise": ("sharded_noise", {"noise": "secure"}),
    "fast noise": ("sharded_noise", {"noise": "fast"}),
    "seeded noise": ("sharded_noise", {"seeded": True}),
    "copied noise": ("sharded_noise", {"copies": 2}),
    **{
        f"moved: {grouping}, {clipping}": (
            "sharded_sensitivity",
            {"grouping": grouping, "clipping": clipping},
        )
        for grouping in GROUPINGS
        for clipping in CLIPPINGS
    },
    "torch's own checkpoints": ("sharded_with_torch", {"folder": ""}),
    **{f"room: {each}": ("sharded_room", {"grouping": each}) for each in GROUPINGS},
    **{f"refused: {where}": ("sharded_refusal", {"where": where}) for where in REFUSED},
}


def results(ranks):
    return dict(zip(JOBS, run([*JOBS.values()], ranks), strict=True))


@pytest.fixture(scope="module")
def two():
    """What two ranks made of all jobs: to start processes takes longer than the jobs."""
    return results(2)


def assert_same_as_one(several, options):
    alone = sharded_jobs.sharded_as_one(**options)
    for each in several:
        assert "error" not in each, each["message"]
        assert each["weights"] == pytest.approx(alone["weights"], rel=1e-9, abs=1e-12)
        assert each["radii"] == pytest.approx(alone["radii"], rel=1e-12)
        assert (each["epsilon"], each["steps"]) == (alone["epsilon"], alone["steps"])
    assert sum(each["nonfinite"] for each in several) == alone["nonfinite"]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_process(two, name):
    assert_same_as_one(two[f"same: {name}"], CASES[name])


def assert_noise_once(one, other):
    """Of each entry, from whoever owns it, and the same on all ranks that gather it."""
    one, other = torch.tensor(one["noise"]), torch.tensor(other["noise"])
    assert torch.equal(one, other)
    count = one.shape[1]
    for step in one:
        assert step.ne(0).float().mean() > 0.99  # a grid has a zero
        assert float(step.std()) == pytest.approx(1, abs=5 / math.sqrt(2 * count))
        halves = step[: 2 * (count // 2)].view(2, -1)
        assert abs(float(torch.corrcoef(halves)[0, 1])) < 5 / math.sqrt(count / 2)
    assert abs(float(torch.corrcoef(one)[0, 1])) < 5 / math.sqrt(count)


@pytest.mark.parametrize("source", ["secure noise", "fast noise", "copied noise"])
def test_every_entry_gets_noise_once(two, source):
    assert_noise_once(*two[source])


def test_copies_are_equal_to_the_last_bit(two):
    one, other = two["copied noise"]
    assert one["local"] == other["local"]


def test_seeded_noise_is_that_of_one_process(two):
    alone = sharded_jobs.sharded_noise(seeded=True)
    for each in two["seeded noise"]:
        assert each["noise"] == alone["noise"]


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_cannot_be_trained_is_refused(two, what):
    for each in two[f"differ: {what}"]:
        assert each["error"] == "DistributedTrainingError", each
        assert DIFFERENT[what] in each["message"]


@pytest.mark.parametrize("where", REFUSED)
def test_a_refusal_on_one_rank_stops_all(two, where):
    first, second = two[f"refused: {where}"]
    assert second["error"] == REFUSED[where], second
    assert first["error"] == "RankError", first
    assert f"rank 1 stopped: {REFUSED[where]}" in first["message"]
    assert first["steps"] == second["steps"] == 1


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_one_sample_moves_the_sum_by_at_most_the_sensitivity(two, grouping, clipping):
    for moved in two[f"moved: {grouping}, {clipping}"]:
        assert 0 < moved <= 1 + 1e-6


def documented(method, kind):
    """What the table of the documents says."""
    lines = (ROOT / "docs/distributed.md").read_text().splitlines()
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in lines]
    column = KINDS.get(kind, kind)
    (head,) = (row for row in rows if column in row and not row[0])
    (row,) = (row for row in rows if f"{method}" in row[0] and len(row) == len(head))
    return row[head.index(column)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_methods_work_or_are_refused_as_documented(two, method, kind):
    found = two[f"{method}, {kind}"]
    if documented(method, kind).startswith("refused"):
        for each in found:
            assert each["error"] == "DistributedTrainingError", each
            assert method.lower() in each["message"].lower()
    else:
        alone = sharded_jobs.methods(method, kind)
        for each in found:
            assert each == pytest.approx(alone, rel=1e-9, abs=1e-12), each


def test_few_sums_are_whole_at_a_time(two):
    """All-layer one parameter's; else those of a module, and of what is clipped outside of any.

    Some small ones are made together.
    """
    for each in two["room: all-layer"]:
        assert each["most"] < each["all"] / 2
    for each in two["room: layer-wise"]:
        assert each["most"] <= each["block"] + each["largest"]


def test_torch_makes_room_for_a_state(two):
    for each in two["torch's own checkpoints"]:
        assert each == {"unchanged": True, "moved": True, "refused": True}


def assert_states(tmp_path, ranks, copies):
    """One process that goes through; and several ranks, one and several in turn."""
    alone = {"folder": str(tmp_path), "first": 0, "then": 6, "target": "whole"}
    whole = sharded_jobs.sharded_states(**alone)
    first, second = ranks
    options = {"folder": str(tmp_path), "first": 0, "then": 2, "target": "several"}
    run([("sharded_states", options)], first)
    options |= {"first": 2, "source": "several", "target": "one"}
    sharded_jobs.sharded_states(**options)
    options |= {"first": 4, "source": "one", "target": "last", "copies": copies}
    (found,) = run([("sharded_states", options)], second)
    for each in found:
        assert each["weights"] == pytest.approx(whole["weights"], rel=1e-9, abs=1e-12)
        assert each["weights"] == each["gathered"]
        assert (each["steps"], each["ledger"]) == (6, 6)
    assert len(list((tmp_path / "several").glob("parts-*"))) == 1


@pytest.mark.slow
def test_states_of_other_numbers_of_ranks(tmp_path):
    assert_states(tmp_path, (2, 2), 1)


@pytest.mark.slow
def test_states_of_four_ranks(tmp_path):
    assert_states(tmp_path, (2, 4), 2)


PLACES = ["in the backward pass", "before the ledger", "before the noise", "after the noise"]


def kill_and_resume(tmp_path, where, victim, ranks=2):
    options = {"folder": str(tmp_path), "where": where, "victim": victim}
    ended = finish(start([("sharded_die", options)], ranks, timeout=5))
    assert ended[victim].code == -9
    for rank, each in enumerate(ended):
        if rank != victim:
            assert each.result is not None, each.output
            # Of torch, if it waits for weights in a forward.
            assert each.result[0]["error"] in ("RankError", "RuntimeError"), each.output
            assert f"rank {victim} ended without a word" in each.result[0]["message"]
    (again,) = run([("sharded_die", options | {"restart": True})], ranks)
    for each in again:
        assert each["steps"] == 6
        # Steps that were recorded before the kill, and not saved, count.
        lost = {PLACES[0]: 0, PLACES[1]: int(victim > 0)}.get(where, 1)
        assert each["recorded"] == 6 + lost


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("where", PLACES)
def test_any_rank_killed_anywhere(tmp_path, where, victim):
    kill_and_resume(tmp_path, where, victim)


@pytest.mark.slow
def test_four_ranks_with_two_copies_of_each_part():
    cases = {name: options | {"copies": 2} for name, options in CASES.items()}
    moved = ("sharded_sensitivity", {"grouping": "all-layer", "clipping": "abadi", "copies": 2})
    noise = [("sharded_noise", {"copies": 2}), ("sharded_noise", {"copies": 2, "seeded": True})]
    own = [("sharded_as_one", options) for options in cases.values()]
    *found, norms, drawn, seeded = run([*own, moved, *noise], 4)
    for options, each in zip(CASES.values(), found, strict=True):
        assert_same_as_one(each, options)
    assert all(0 < each <= 1 + 1e-6 for each in norms)
    assert_noise_once(*drawn[:2])
    assert_noise_once(*drawn[2:])
    assert drawn[0]["local"] == drawn[2]["local"]
    assert drawn[0]["local"] != drawn[1]["local"]
    alone = sharded_jobs.sharded_noise(seeded=True)
    assert all(each["noise"] == alone["noise"] for each in seeded)
