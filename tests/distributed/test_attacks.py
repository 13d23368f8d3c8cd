"""Programs that might train wrongly in parts or in stages: exact, or refused by all."""

import pytest

from . import attack_jobs
from .ranks import run

pytestmark = pytest.mark.slow  # two of them are fast, among the tests of parts

EXACT = {
    "words of one rank": ("silent", {"what": "words", "grouping": "layer-wise"}),
    "words of one rank, one group": ("silent", {"what": "words"}),
    "a dead part": ("silent", {"what": "dead", "grouping": "layer-wise", "clipping": "abadi"}),
    "odd sizes": ("odd", {}),
    "odd sizes, layer-wise": ("odd", {"grouping": "layer-wise", "clipped": "abadi"}),
    "a rank without a part": ("odd", {"outer": 1}),
    "biases alone": ("odd", {"inner": 6, "frozen": ("up.weight", "down.weight", "words.weight")}),
    "norms alone": (
        "odd",
        {"inner": 6, "frozen": ("up.weight", "up.bias", "down.weight", "words.weight")},
    ),
}
APART = ["data", "dropout", "weights"]
STAGED = {
    "a mean": "SampleMixingError",
    "a norm": "SampleMixingError",
    "the next one": "SampleMixingError",
    "the largest": "SampleMixingError",
    "what it keeps": "UnsupportedOperationError",
    "batch statistics": "SampleMixingError",
    "module hook": "SampleMixingError",
    "another module": "DistributedTrainingError",
    "a step of the schedule": "StrayGradientError",
}
JOBS = {
    **EXACT,
    **{f"apart: {what}": ("apart", {"what": what}) for what in APART},
    **{f"alike: {what}": ("apart", {"what": what, "alike": True}) for what in APART},
    "half of the outputs": ("half_of_the_outputs", {}),
}


@pytest.fixture(scope="module")
def two():
    jobs = [(f"attack_jobs.{name}", options) for name, options in JOBS.values()]
    return dict(zip(JOBS, run(jobs, 2), strict=True))


def assert_same_as_one(several, job):
    name, options = job
    alone = getattr(attack_jobs, name)(**options)
    for each in several:
        assert "error" not in each, each["message"]
        for place, values in alone["weights"].items():
            assert each["weights"][place] == pytest.approx(values, rel=1e-9, abs=1e-11), place


@pytest.mark.parametrize("name", EXACT)
def test_parts_that_differ_train_as_one_process(two, name):
    assert_same_as_one(two[name], EXACT[name])


@pytest.mark.parametrize("what", APART)
def test_ranks_that_do_not_run_the_same_are_refused(two, what):
    for each in two[f"apart: {what}"]:
        assert each["error"] == "UnsupportedOperationError", each
        assert "ranks do not run the same samples alike" in each["message"]
        assert each["steps"] == (1 if what == "weights" else 0)


@pytest.mark.parametrize("what", APART)
def test_ranks_that_draw_alike_are_not(two, what):
    for each in two[f"alike: {what}"]:
        assert each == {"error": None, "message": "", "steps": 2}


def test_a_loss_of_a_part_of_the_outputs_is_refused(two):
    for each in two["half of the outputs"]:
        assert each["error"] == "UnsupportedOperationError", each
        assert "computed different losses" in each["message"]
        assert each["steps"] == 0


def test_sharded_parts_that_differ_train_as_one_process():
    jobs = [(name, options | {"sharded": True}) for name, options in EXACT.values()]
    found = run([(f"attack_jobs.{name}", options) for name, options in jobs], 4)
    for job, each in zip(EXACT.values(), found, strict=True):
        assert_same_as_one(each, job)


@pytest.mark.parametrize("what", STAGED)
def test_stages_that_are_refused(what):
    (found,) = run([("attack_jobs.staged", {"what": what})], 2)
    assert STAGED[what] in [each["error"] for each in found], found
    for each in found:
        assert each["error"] in (STAGED[what], "RankError"), each
        assert each["steps"] == 0
