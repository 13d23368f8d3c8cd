"""Every mode trains as one process does, with every grouping, whatever parts batches fall into."""

import pytest

from . import mode_jobs
from .ranks import run
from .test_sharded import documented

GROUPINGS = ["all-layer", "layer-wise", "block-wise"]
WHOLE = {"sampling": "full-batch"}
PARTS = {
    "unequal micro-batches": {"samples": 7, "batch_size": 7, **WHOLE},
    "an empty rank": {"samples": 1, "batch_size": 1, **WHOLE},
    "empty batches": {"batch_size": 1},
    "a sample that is not finite": {"samples": 9, "batch_size": 9, "broken": True, **WHOLE},
}
UNITS = {"units": [place // 3 for place in range(24)], "records_per_unit": 3, "batch_size": 3}
TOLERANCES = {"float64": {"rel": 1e-9, "abs": 1e-11}, "float32": {"rel": 0, "abs": 1e-6}}
RANKS = {
    "data parallel": 2,
    "FSDP2": 2,
    "tensor parallel": 2,
    "pipeline": 2,
    "HSDP": 4,
    "tensor parallel, copies": 4,
    "FSDP2 x tensor parallel": 4,
    "pipelines": 4,
}


def cases(mode):
    groupings = ["per-device"] if mode in mode_jobs.PIPELINES else GROUPINGS
    return [
        {"mode": mode, "grouping": grouping, "dtype": dtype, **PARTS[name]}
        for grouping in groupings
        for dtype in TOLERANCES
        for name in PARTS
    ] + ([UNITS | {"mode": mode, "grouping": "layer-wise"}] if mode == "data parallel" else [])


# What the table of the documents says is refused, by its rows; the rest is tested with each mode.
REFUSED = {
    "AdaptiveRadius": ["pipeline"],
    "InnerOuter": ["FSDP2", "tensor parallel", "pipeline"],
    "diagnostics": ["data parallel", "FSDP2", "tensor parallel", "pipeline"],
    "compile": ["FSDP2", "tensor parallel", "pipeline"],
    "units": ["FSDP2", "tensor parallel", "pipeline"],
}


def assert_same_as_one(several, case):
    alone = mode_jobs.same_as_one(**case)
    for each in several:
        assert "error" not in each, (case, each)
        for name, values in each["weights"].items():
            assert values == pytest.approx(
                alone["weights"][name], **TOLERANCES[case.get("dtype", "float64")]
            ), (
                case,
                name,
            )
        assert (each["epsilon"], each["steps"]) == (alone["epsilon"], alone["steps"])
    assert {name for each in several for name in each["weights"]} == alone["weights"].keys()
    assert max(each["broken"] for each in several) > 0 if case.get("broken") else True
    if case["mode"] == "data parallel" and case.get("samples") in (1, 7):
        assert several[0]["counts"] != several[1]["counts"]
    if case["batch_size"] == 1 and "samples" not in case:
        assert 0 in alone["counts"]


SMALL = [mode for mode, ranks in RANKS.items() if ranks == 2]
CHOSEN = {mode: cases(mode)[(5 * place + 2) % 8] for place, mode in enumerate(SMALL)}
REFUSALS = [(what, mode) for what, modes in REFUSED.items() for mode in modes]


@pytest.fixture(scope="module")
def two():
    """One group of ranks takes all modes in turn: to start processes takes longer than the jobs."""
    jobs = {mode: ("mode_jobs.same_as_one", case) for mode, case in CHOSEN.items()}
    jobs |= {
        each: ("mode_jobs.refuse", {"what": each[0], "mode": each[1]} | UNITS) for each in REFUSALS
    }
    return dict(zip(jobs, run([*jobs.values()]), strict=True))


@pytest.mark.parametrize("mode", CHOSEN)
def test_one_case_of_each_mode(two, mode):
    assert_same_as_one(two[mode], CHOSEN[mode])


@pytest.mark.parametrize(("what", "mode"), REFUSALS)
def test_what_is_refused_in_a_mode_is_named_and_documented(two, what, mode):
    column = "FSDP2, HSDP" if mode == "FSDP2" else mode
    assert documented(what, column).startswith("refused")
    for each in two[what, mode]:
        assert each["error"] == "DistributedTrainingError", each
        assert what in each["message"]


def test_no_other_cell_says_that_it_is_refused():
    for what, modes in REFUSED.items():
        for mode in SMALL:
            said = documented(what, "FSDP2, HSDP" if mode == "FSDP2" else mode)
            assert said.startswith("refused") == (mode in modes), (what, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", RANKS)
def test_all_cases(mode):
    found = run([("mode_jobs.same_as_one", case) for case in cases(mode)], RANKS[mode])
    for case, several in zip(cases(mode), found, strict=True):
        assert_same_as_one(several, case)
