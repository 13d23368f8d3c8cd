"""What is planned for a rank is what two ranks of gloo send, to the byte, and hold, nearly."""

import os

import pytest

import quietgrad as qg

from . import plan_jobs
from .ranks import run

SAMPLES = 8
MOMENTS = ("micro-batch", "verified", "release")
# Mode, grouping and micro-batches of a step. One is fast: to start processes takes longest.
FAST = [("fsdp2", "block-wise", 1)]
CASES = [
    ("data-parallel", "all-layer", 1),
    ("data-parallel", "all-layer", 2),
    ("data-parallel", "block-wise", 2),
    ("fsdp2", "all-layer", 1),
    ("fsdp2", "all-layer", 2),
    ("fsdp2", "layer-wise", 2),
    ("tensor-parallel:2", "all-layer", 1),
    ("tensor-parallel:2", "layer-wise", 1),
    ("pipeline:2", "per-device", 2),
    ("pipeline:2", "per-device", 4),
    ("pipeline:2:gpipe", "per-device", 4),
]


def planned(size, mode, grouping, micro_batches, world=2):
    sets = 1 if mode.startswith(("tensor", "pipeline")) else world
    return qg.plan_ranks(
        plan_jobs.whole(size),
        plan_jobs.data(size, 2).tensors[0],
        plan_jobs.losses,
        world=world,
        mode=mode,
        grouping=grouping,
        batch_size=SAMPLES * micro_batches * sets,
        physical_batch_size=SAMPLES,
        tensor_plan=plan_jobs.TENSOR_PLAN if mode.startswith("tensor") else None,
    )


def spent(size, cases, ranks=2):
    jobs = [
        ("plan_jobs.spend", {"size": size, "mode": m, "grouping": g, "micro_batches": k})
        for m, g, k in cases
    ]
    return dict(zip(cases, run(jobs, ranks), strict=True))


def assert_planned(size, case, found):
    plan = planned(size, *case)
    for rank, each in enumerate(found):
        assert "error" not in each, each
        share = plan.ranks[rank % len(plan.ranks)]
        sent = {}
        for one in share.sent:
            sent[one.collective] = sent.get(one.collective, 0) + one.size
        assert sent == pytest.approx(each["sent"]), case
        if rank and len(plan.ranks) == 1:
            continue  # the first one's parts are the largest, and that is the one that is planned
        for moment in MOMENTS:
            held = share.memory[moment].total
            assert held == pytest.approx(each[moment], rel=0.1), (case, rank, moment)


def test_two_ranks_send_and_hold_what_was_planned():
    for case, found in spent("small", FAST).items():
        assert_planned("small", case, found)


@pytest.mark.slow
@pytest.mark.parametrize("size", plan_jobs.SIZES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_mode_sends_and_holds_what_was_planned(size, case):
    assert_planned(size, case, spent(size, [case])[case])


@pytest.mark.slow
def test_copies_of_sharded_weights_send_what_was_planned():
    case = ("hsdp:2x2", "block-wise", 1)
    plan = planned("small", *case, world=4)
    (found,) = spent("small", [case], ranks=4).values()
    sent = {}
    for each in plan.rank.sent:
        sent[each.collective] = sent.get(each.collective, 0) + each.size
    for each in found:
        votes = each["sent"].pop("all-reduce")  # among all four; counted as among two
        assert votes < 200
        assert {kind: sent[kind] for kind in each["sent"]} == pytest.approx(each["sent"])


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
@pytest.mark.parametrize("mode", ["data-parallel", "fsdp2"])
@pytest.mark.parametrize("size", plan_jobs.LARGER)
def test_resident_memory_is_as_planned(monkeypatch, mode, size):
    """Of processes that give freed blocks back at once, beyond what they held before."""
    for name in ("MMAP", "TRIM"):
        monkeypatch.setenv(f"MALLOC_{name}_THRESHOLD_", "65536")
    grouping = "block-wise" if mode == "fsdp2" else "all-layer"
    job = ("plan_jobs.resident", {"size": size, "mode": mode, "grouping": grouping})
    plan = planned(size, mode, grouping, 1)
    for each in run([job])[0]:
        assert "error" not in each, each
        predicted = max(plan.rank.memory[moment].total for moment in ("micro-batch", "release"))
        assert predicted == pytest.approx(each["steady"], rel=0.1)
        assert plan.rank.memory["verified"].total == pytest.approx(each["verified"], rel=0.1)
