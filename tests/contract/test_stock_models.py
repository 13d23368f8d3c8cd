"""Unmodified models of other libraries are exact, too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
import transformers

import quietgrad as qg
from quietgrad import clipping as clippings

from .cases import Problem, precision
from .oracle import TOLERANCES, assert_same_grads, assert_same_outcome, loop
from .stock import STOCK, B


def problem_of(name: str, dtype: torch.dtype) -> Problem:
    with precision(dtype), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, batch, losses = STOCK[name]()
    names = tuple(batch)

    def called(model, *tensors):
        return losses(model, dict(zip(names, tensors, strict=True)))

    return Problem(model.to(dtype).train(), tuple(batch.values()), called)


# Clipping, grouping, strategy; each has its turn by default.
WAYS = (
    ("auto-s", "all-layer", "ghost"),
    ("psac", "layer-wise", "auto"),
    ("abadi", "type-wise", "discard"),
    ("global", "param-wise", "keep"),
)


def check(name: str, dtype: torch.dtype, ways: Sequence[tuple[str, str, str]]) -> None:
    problem, tolerance = problem_of(name, dtype), TOLERANCES[dtype]
    with precision(dtype):
        truth = loop(problem.model, problem, B)
        assert_same_grads(qg.per_sample_grads(problem.model, problem), truth, tolerance)
        for clipping, grouping, strategy in ways:
            options = {"clipping": clipping, "grouping": grouping, "strategy": strategy}
            found = qg.clipped_sum(problem.model, problem, verify=False, **options)
            assert_same_outcome(found, truth, clippings.resolve(clipping).weights, tolerance)


@pytest.mark.every_nth(2)
@pytest.mark.parametrize(("position", "name"), [*enumerate(STOCK)], ids=str)
def test_a_stock_model_is_exact(position, name):
    check(name, torch.float64, [WAYS[position % len(WAYS)]])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", STOCK)
def test_a_stock_model_is_exact_in_every_way(name, dtype):
    check(name, dtype, WAYS)


@pytest.mark.slow
def test_gpt2_small_with_its_tied_head():
    torch.manual_seed(0)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.randint(config.vocab_size, (4, 100))

    def losses(samples: slice = slice(None)) -> torch.Tensor:
        logits = model(ids[samples]).logits[:, :-1]
        return F.cross_entropy(logits.mT, ids[samples, 1:], reduction="none").mean(1)

    truth = []
    for sample in range(4):
        losses(slice(sample, sample + 1)).sum().backward()
        truth.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
        model.zero_grad()
    norms = qg.clipped_sum(model, losses).norms[:, 0]
    assert torch.allclose(norms, torch.stack(truth), rtol=1e-4, atol=0)
