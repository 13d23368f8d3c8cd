"""Stages of one model, each of which clips by itself, train as one process does."""

import math

import pytest
import torch

from . import stages
from .ranks import finish, run, start

CASES = {
    "GPipe": {},
    "1F1B": {"schedule": "Schedule1F1B", "clipping": "abadi", "radius": 0.5},
    "interleaved": {"schedule": "ScheduleInterleaved1F1B", "stages_here": 2, "steps": 3},
    "a sample that is not finite": {"broken": True, "batch_size": 32},
    "mostly empty batches": {"batch_size": 1, "steps": 8, "schedule": "Schedule1F1B"},
    "one run for each batch": {"samples": 8},
    "micro-batches of one": {"samples": 1, "micro": 2, "batch_size": 5, "steps": 3},
    "layers of a stage": {"within": "layer-wise", "clipping": "abadi"},
    "a loss scale": {"loss_scale": 1024.0, "schedule": "Schedule1F1B"},
}
MISUSED = {
    "zero bubble": "ScheduleInterleavedZeroBubble",
    "all-layer": "per-device",
    "adaptive": "AdaptiveRadius",
    "momentum": "InnerOuter",
    "compile": "compile=",
    "diagnostics": "diagnostics",
    "no size": "physical_batch_size",
    "no loss": "loss_fn",
    "another model": "not what the 1 stage of the schedule runs",
    "no schedule": "pipeline= is a str",
    "micro-batches": "micro-batches of their schedules",
}
REFUSED = {
    "a stage mixes": ("SampleMixingError", 0),
    "something is shared": ("SampleMixingError", 0),
    "a mean loss": ("LossError", 1),
    "a loss mixes": ("SampleMixingError", 1),
    "an error": ("ZeroDivisionError", 0),
}
CLIPPINGS = ["auto-s", "abadi", "psac"]


def results(ranks, **more):
    jobs = {
        **{f"same: {name}": ("stages.same_as_one", o | more) for name, o in CASES.items()},
        "noise": ("stages.noise", {**more}),
        "seeded noise": ("stages.noise", {"seeded": True, **more}),
    }
    if not more:
        jobs |= {f"misuse: {name}": ("stages.misuse", {"what": name}) for name in MISUSED}
        jobs |= {f"moved: {each}": ("stages.sensitivity", {"clipping": each}) for each in CLIPPINGS}
        jobs["backward"] = ("stages.use_backward", {})
        jobs["reorder"] = ("stages.reorder", {})
        jobs["reorder, equal labels"] = ("stages.reorder", {"targets": False})
    return dict(zip(jobs, run([*jobs.values()], ranks), strict=True))


@pytest.fixture(scope="module")
def two():
    """What two ranks made of all jobs: to start processes takes longer than the jobs."""
    return results(2)


def assert_same_as_one(several, options, replicas=1):
    for each in several:
        assert "error" not in each, each["message"]
    count = len(several) // replicas * options.get("stages_here", 1)
    alone = stages.one_process(count, **options)
    found = {}
    for each in several:
        own = dict(enumerate(each["stages"]))
        for name, values in each["weights"].items():
            if len(own) > 1:
                place, _, name = name.partition(".")
                stage = own[int(place)]
            else:
                stage = own[0]
            known = found.setdefault((stage, name), values)
            assert known == values  # replicas, to the last bit
        assert (each["epsilon"], each["steps"]) == (alone["epsilon"], alone["steps"])
        assert each["sensitivity"] == pytest.approx(alone["sensitivity"], rel=1e-12)
        assert each["groups"] == several[0]["groups"]
    assert sum(each["broken"] for each in several) == alone["broken"] * (len(several) // replicas)
    expected = {
        (stage, name): values
        for stage, weights in enumerate(alone["weights"])
        for name, values in weights.items()
    }
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize("name", CASES)
def test_two_stages_train_as_one_process(two, name):
    assert_same_as_one(two[f"same: {name}"], CASES[name])


@pytest.mark.slow
def test_pipelines_beside_each_other_train_as_one_process():
    found = results(4, replicas=2)
    for name, options in CASES.items():
        assert_same_as_one(found[f"same: {name}"], options, replicas=2)
    for name in ("noise", "seeded noise"):
        first, second, third, fourth = found[name]
        assert (first, second) == (third, fourth)  # to the last bit
        assert_independent([first, second])


def assert_independent(ranks):
    """Normal, of deviation one, in every entry; and different everywhere."""
    parts = [torch.tensor(step) for rank in ranks for step in rank]
    count = parts[0].numel()
    for part in parts:
        assert part.ne(0).float().mean() > 0.99  # a grid has a zero
        assert float(part.std()) == pytest.approx(1, abs=5 / math.sqrt(2 * count))
    for i, one in enumerate(parts):
        for other in parts[:i]:
            assert abs(float((one * other).mean())) < 5 / math.sqrt(count)


@pytest.mark.parametrize("name", ["noise", "seeded noise"])
def test_stages_have_noise_of_their_own(two, name):
    assert_independent(two[name])


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_one_sample_moves_all_stages_by_at_most_the_sensitivity(two, clipping):
    for parts in zip(*two[f"moved: {clipping}"], strict=True):
        assert 0 < sum(parts) <= 1 + 1e-6
        assert all(part > 0 for part in parts)


@pytest.mark.parametrize("what", MISUSED)
def test_misuse_is_refused_by_name(two, what):
    for each in two[f"misuse: {what}"]:
        assert each["error"] == "DistributedTrainingError", each
        assert MISUSED[what] in each["message"]


def test_the_schedule_runs_the_backward_pass(two):
    for each in two["backward"]:
        assert "engine.run" in each["message"]


@pytest.mark.parametrize("name", ["reorder", "reorder, equal labels"])
def test_what_fills_micro_batches_up_must_stay_at_their_end(two, name):
    for each in two[name]:
        assert "not in the order in which they were handed out" in each["message"]


@pytest.mark.slow
def test_a_first_batch_of_one_sample_settles_nothing():
    """Copies of it fill micro-batches up, and mixing them changes nothing that could be seen."""
    for each in run([("stages.one_sample_first", {"seed": 2})], 2, timeout=5)[0]:
        assert each["error"] in ("SampleMixingError", "RankError"), each
        assert each["seen"][-1] <= 2


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_what_one_stage_refuses_stops_all(what):
    kind, rank = REFUSED[what]
    (found,) = run([("stages.refuse", {"what": what, "victim": rank})], 2)
    assert found[rank]["error"] == kind, found
    other = found[1 - rank]
    assert other["error"] == "RankError"
    assert f"rank {rank} stopped: {kind}" in other["message"]
    assert [each["steps"] for each in found] == [0, 0]


@pytest.mark.slow
def test_a_pipeline_goes_on_where_it_was_saved(tmp_path):
    (tmp_path / "states").mkdir()
    jobs = [("stages.resume", {"folder": str(tmp_path / "states"), "loads": x}) for x in (0, 1)]
    whole, resumed = run(jobs, 2)
    for one, other in zip(whole, resumed, strict=True):
        assert other["weights"] == one["weights"]
        assert other["steps"] == one["steps"] == 6
        assert other["files"] == ["state.pt", "state.pt.1-3"]


PLACES = [
    "in the schedule",
    "before the ledger",
    "before the noise",
    "after the noise",
    "in a save",
]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("where", PLACES)
def test_a_stage_that_is_killed(tmp_path, where, victim):
    options = {"folder": str(tmp_path), "where": where, "victim": victim}
    ended = finish(start([("stages.die", options)], 2, timeout=5))
    assert ended[victim].code == -9
    other = ended[1 - victim]
    assert other.result is not None, other.output
    assert other.result[0]["error"] == "RankError", other.output
    assert f"rank {victim} ended without a word" in other.result[0]["message"]
    (again,) = run([("stages.die", options | {"restart": True})], 2)
    for each in again:
        assert each["steps"] == 6
        assert each["recorded"] >= 6
    assert again[0]["recorded"] == again[1]["recorded"]


def test_per_device_needs_a_pipeline():
    import quietgrad as qg

    model = stages.build(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"batch_size": 4, "noise_multiplier": 1.0, "delta": 1e-5, "grouping": "per-device"}
    with pytest.raises(ValueError, match="pipeline=schedule"):
        qg.PrivacyEngine(model, optimizer, stages.data(), **options)
