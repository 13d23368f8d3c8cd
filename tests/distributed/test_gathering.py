"""Ranks with sharded weights verify micro-batches, each with passes of its own."""

import pytest

from . import gathering_jobs

ALIKE = {
    "other numbers of samples": ("sizes", {"samples": 25}),
    "other numbers of passes": ("sizes", {"samples": 129, "steps": 1}),
    "clipped in blocks": ("sizes", {"samples": 25, "grouping": "block-wise"}),
}
GROUPINGS = ["all-layer", "layer-wise", "block-wise"]
REFUSED = {
    "escape": ({}, "EscapedGradientError"),
    "mixing": ({"where": "forward"}, "SampleMixingError"),
    "mixing, backward": ({"where": "backward"}, "SampleMixingError"),
}
JOBS = {
    **ALIKE,
    "one size": ("one_size", {"samples": 24, "each": 12}),
    "dropout": ("dropout", {}),
    "kink": ("kink", {}),
    "moved": ("moved", {}),
    **{f"room: {each}": ("room", {"grouping": each}) for each in GROUPINGS},
    **{f"refused: {n}": (n.partition(",")[0], options) for n, (options, _) in REFUSED.items()},
}


@pytest.fixture(scope="module")
def two(sharded_pair):
    """What two ranks made of all jobs."""
    return sharded_pair["gathering"]


@pytest.mark.parametrize("name", ALIKE)
def test_ranks_that_verify_otherwise_train_as_one_process(two, name):
    job, options = ALIKE[name]
    alone = getattr(gathering_jobs, job)(**options)
    for each in two[name]:
        assert "error" not in each, each["message"]
        assert each["weights"] == pytest.approx(alone["weights"], rel=1e-9, abs=1e-12)


def test_a_pass_that_fails_half_way_stops_nobody(two):
    alone = gathering_jobs.one_size(24, 24)
    for each in two["one size"]:
        assert "error" not in each, each["message"]
        assert each["weights"] == pytest.approx(alone["weights"], rel=1e-9, abs=1e-12)


def test_each_rank_draws_for_itself(two):
    assert two["dropout"] == [{"trained": True}] * 2


def test_weights_are_moved_by_one_rank_alone(two):
    for apart in two["moved"]:
        assert max(apart) < 1e-12


def test_a_hidden_value_that_is_nothing_but_rounding_is_not_refused(two):
    assert two["kink"] == [{"error": None}] * 2


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_few_weights_are_whole_while_a_micro_batch_is_verified(two, grouping):
    """Those of the outermost module, those in use, and those that another rank asked for."""
    for each in two[f"room: {grouping}"]:
        assert "error" not in each, each["message"]
        assert each["block"] < each["most"] <= each["root"] + 2 * each["block"]
        assert each["most"] < each["total"] / 2


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_rank_refuses_stops_all(two, name):
    first, second = two[f"refused: {name}"]
    assert second["error"] == REFUSED[name][1], second
    assert first["error"] == "RankError", first
    assert f"rank 1 stopped: {REFUSED[name][1]}" in first["message"]
    assert first["steps"] == second["steps"] == 0
