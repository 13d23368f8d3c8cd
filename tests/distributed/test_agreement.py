"""Ranks that do not do the same are all stopped, before anything is released."""

from itertools import count

import pytest
import torch.distributed as dist

from quietgrad.distributed import world

from . import agreement_jobs
from .ranks import finish, run, start

STRAY = {
    "discarded": "ranks differ in the step of the batch: rank 0 has 2, rank 1 has 3",
    "pass begun again": "rank 0 called step(), rank 1 called batches()",
    "saved": "rank 0 called step(), rank 1 called save()",
    "loaded alone": "rank 0 called step(), rank 1 called load()",
    "other state": "ranks differ in the number of steps taken: rank 0 has 2, rank 1 has 1",
    "no file": "missing",
    "radii": "ranks differ in the radius of group",
    "learning rate": "ranks differ in option lr of the optimizer's group 0",
    "sharded later": "FSDPSequential",
}
STARTS = {"lengths": "copies", "physical_batch_size": "sharded"}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two ranks were told."""
    folder = tmp_path_factory.mktemp("states")
    jobs = {
        **{
            what: ("agreement_jobs.stray", {"what": what, "folder": str(folder / what)})
            for what in STRAY
        },
        **{
            what: ("agreement_jobs.differ_at_start", {"what": what, "kind": kind})
            for what, kind in STARTS.items()
        },
    }
    return dict(zip(jobs, run([*jobs.values()], timeout=20), strict=True))


@pytest.mark.parametrize("what", STRAY)
def test_what_one_rank_does_alone_stops_all(two, what):
    for each in two[what]:
        assert each["error"], each
        assert STRAY[what] in each["message"]
        assert each["steps"] == 2


@pytest.mark.parametrize("what", STARTS)
def test_what_decides_who_computes_which_samples_must_be_the_same(two, what):
    for each in two[what]:
        assert each["error"] == "DistributedTrainingError"
        assert f"ranks differ in {what}=" in each["message"]


def test_a_rank_that_ends_by_an_error_says_so():
    first, second = finish(start([("agreement_jobs.end_by_an_error", {})], 2))
    assert second.result is None
    assert first.result[0]["error"] == "RankError", first.output
    assert "rank 1 stopped: KeyboardInterrupt: in the loop of rank 1" in first.result[0]["message"]
    assert first.result[0]["steps"] == 0


def test_a_step_of_nothing_has_no_closure():
    found = agreement_jobs.step_of_nothing_with_a_closure()
    assert (found["error"], found["kept"]) == ("StrayGradientError", 0)


def test_what_was_said_before_a_restart_answers_nothing(monkeypatch):
    """torchrun keeps the store when it starts the ranks again, and they count from zero."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = []
        for attempt in ("0", "1"):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
            monkeypatch.setattr(world, "_engines", count())
            found.append(world.Replicas())
        found[0].note_failure(ValueError("before"))
        assert found[0]._store.check(["0/0"])
        assert not found[1]._store.check(["0/0"])
    finally:
        dist.destroy_process_group()
