"""Stock transformers with sharded weights train as they do in one process."""

import pytest
import torch

from . import transformer_jobs
from .ranks import run

pytest.importorskip("transformers")
KINDS = ["gpt2", "llama", "roberta", "bert", "vit", "lora", "checkpointed llama"]
GROUPINGS = ["all-layer", "layer-wise", "block-wise"]


def assert_same_as_one(cases, ranks, tolerance=1e-6):
    for case, several in zip(cases, run([("transformer", c) for c in cases], ranks), strict=True):
        own = {key: each for key, each in case.items() if key not in ("copies", "half", "reshard")}
        alone = transformer_jobs.transformer(**own)
        assert alone["moved"] > 0.01
        expected = torch.tensor(alone["weights"])
        for each in several:
            assert "error" not in each, each["message"]
            apart = (torch.tensor(each["weights"]) - expected).abs().max()
            assert float(apart) <= tolerance, case


@pytest.mark.slow
def test_a_tied_gpt2_on_two_ranks():
    assert_same_as_one([{"kind": "gpt2", "steps": 2, "grouping": "block-wise"}], 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_on_two_ranks(kind):
    pytest.importorskip("peft")
    cases = [{"kind": kind, "grouping": grouping} for grouping in GROUPINGS]
    cases += [{"kind": kind, "reshard": False}, {"kind": kind, "grouping": "uniform:2"}]
    assert_same_as_one(cases, 2)


@pytest.mark.slow
def test_on_four_ranks_with_two_copies():
    cases = [
        {"kind": kind, "grouping": grouping, "copies": 2}
        for kind in ("gpt2", "llama")
        for grouping in GROUPINGS
    ]
    assert_same_as_one(cases, 4)


@pytest.mark.slow
def test_bfloat16_weights_on_two_ranks():
    """Gradients are rounded to a few hundredths of themselves, and added up in float32."""
    cases = [{"kind": kind, "half": True} for kind in ("gpt2", "roberta", "lora")]
    assert_same_as_one(cases, 2, tolerance=3e-3)
