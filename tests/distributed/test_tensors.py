"""Ranks that have parts of the layers' weights train as one process does."""

import math

import pytest
import torch

from . import attack_jobs, tensor_jobs
from .ranks import run

CASES = {
    "all-layer": {"clipping": "abadi", "radius": 0.3},
    "layer-wise": {"grouping": "layer-wise"},
    "block-wise": {"grouping": "uniform:2", "verification": "every"},
    "a sample that is not finite": {"broken": True, "batch_size": 20},
    "mostly empty batches": {"batch_size": 1, "steps": 6},
    "an adaptive radius": {"adaptive": True, "batch_size": 24, "steps": 3},
    "a loss scale": {"loss_scale": 1024.0, "steps": 3},
}
MISUSED = {
    "sequence parallel": "is used by no linear layer or embedding",
    "another layer": "is used by no linear layer or embedding",
    "momentum": "InnerOuter",
    "whole on parts": "parameter 'blocks.0.scale' is whole on every rank",
}


UNLIKE = {"silent": {"what": "words", "grouping": "layer-wise"}, "odd": {}}


def results(ranks, **more):
    jobs = {
        **{f"same: {n}": ("tensor_jobs.same_as_one", o | more) for n, o in CASES.items()},
        "noise": ("tensor_jobs.noise", {**more}),
        "seeded noise": ("tensor_jobs.noise", {"seeded": True, **more}),
    }
    if not more:
        for grouping, clipping in (("all-layer", "auto-s"), ("layer-wise", "abadi")):
            options = {"grouping": grouping, "clipping": clipping}
            jobs[f"moved: {grouping}"] = ("tensor_jobs.sensitivity", options)
        jobs |= {f"misuse: {name}": ("tensor_jobs.misuse", {"what": name}) for name in MISUSED}
        jobs["refuse"] = ("tensor_jobs.refuse", {})
        jobs |= {f"unlike: {n}": (f"attack_jobs.{n}", options) for n, options in UNLIKE.items()}
    return dict(zip(jobs, run([*jobs.values()], ranks), strict=True))


@pytest.fixture(scope="module")
def two():
    return results(2)


def assert_same_as_one(several, options):
    alone = tensor_jobs.same_as_one(**options)
    for each in several:
        assert "error" not in each, each["message"]
        assert each["weights"] == several[0]["weights"]  # to the last bit
        for name, values in alone["weights"].items():
            assert each["weights"][name] == pytest.approx(values, rel=1e-8, abs=1e-11), name
        assert (each["epsilon"], each["sensitivity"]) == (alone["epsilon"], alone["sensitivity"])
        assert each["radii"] == pytest.approx(alone["radii"], rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_two_parts_train_as_one_process(two, name):
    assert_same_as_one(two[f"same: {name}"], CASES[name])


@pytest.mark.parametrize("name", UNLIKE)
def test_parts_that_differ_train_as_one_process(two, name):
    """A part without a gradient, and parts of unequal size."""
    alone = getattr(attack_jobs, name)(**UNLIKE[name])
    for each in two[f"unlike: {name}"]:
        assert "error" not in each, each["message"]
        for place, values in alone["weights"].items():
            assert each["weights"][place] == pytest.approx(values, rel=1e-9, abs=1e-11), place


@pytest.mark.parametrize("name", ["noise", "seeded noise"])
def test_every_entry_gets_noise_once(two, name):
    assert_noise(two[name])


def assert_noise(parts):
    for step in range(2):
        wholes = [torch.tensor(each[step]["whole"]) for each in parts]
        assert all(torch.equal(each, wholes[0]) for each in wholes)  # to the last bit
    kinds = [torch.tensor(part[step]["spread"]) for part in parts for step in range(2)]
    kinds += [torch.tensor(parts[0][step]["whole"]) for step in range(2)]
    for i, one in enumerate(kinds):
        assert one.ne(0).float().mean() > 0.99  # a grid has a zero
        assert float(one.std()) == pytest.approx(1, abs=5 / math.sqrt(2 * one.numel()))
        for other in kinds[:i]:
            count = min(len(one), len(other))
            assert abs(float((one[:count] * other[:count]).mean())) < 5 / math.sqrt(count)


@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise"])
def test_one_sample_moves_the_sum_by_at_most_the_sensitivity(two, grouping):
    for moved in two[f"moved: {grouping}"]:
        assert 0 < moved <= 1 + 1e-6


@pytest.mark.parametrize("what", MISUSED)
def test_misuse_is_refused_by_name(two, what):
    for each in two[f"misuse: {what}"]:
        assert MISUSED[what] in each["message"], each


def test_mixing_is_refused_by_all(two):
    for each in two["refuse"]:
        assert each == {"error": "SampleMixingError", "steps": 0}


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_saved(tmp_path):
    options = {"folder": str(tmp_path / "state")}
    jobs = [("tensor_jobs.resume", options | {"loads": loads}) for loads in (False, True)]
    whole, resumed = run(jobs, 2)
    assert resumed == whole


@pytest.mark.slow
def test_parts_beside_copies_train_as_one_process():
    found = results(4, replicas=2)
    for name, options in CASES.items():
        assert_same_as_one(found[f"same: {name}"], options)
    first, second, *others = found["noise"]
    assert [first, second] == others
    assert_noise([first, second])


@pytest.mark.slow
def test_a_stock_llama():
    pytest.importorskip("transformers")
    (found,) = run([("tensor_jobs.llama", {})], 2)
    alone = tensor_jobs.llama(alone=True)
    for each in found:
        assert "error" not in each, each["message"]
        for name, values in alone.items():
            assert each[name] == pytest.approx(values, rel=1e-4, abs=1e-6), name
