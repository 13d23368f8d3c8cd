"""Timed choices: all are tried, the fastest is kept, and what they compute is the same."""

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.factors import Outer
from quietgrad.strategies import Evaluator, Kernel, Timings

WAYS = ("slow", "quick", "middling")
SECONDS = {"slow": 3.0, "quick": 1.0, "middling": 2.0}


def test_each_way_is_tried_twice_and_the_fastest_kept():
    timings = Timings[str]()
    tried = []
    while True:
        way, is_trial = timings.choose("shape", WAYS)
        if not is_trial:
            break
        tried.append(way)
        timings.record("shape", way, SECONDS[way])
    assert sorted(tried) == sorted(WAYS * 2)
    assert way == "quick"
    assert timings.choose("another shape", WAYS) == ("slow", True)


def test_one_slow_run_does_not_condemn_a_way():
    timings = Timings[str]()
    for way, seconds in [("a", 9.0), ("b", 2.0), ("a", 1.0), ("b", 2.0)]:
        timings.record("shape", way, seconds)
    assert timings.choose("shape", ("a", "b")) == ("a", False)


def test_a_run_in_memory_new_to_the_process_counts_only_if_there_is_no_other():
    timings = Timings[str]()
    for _ in range(2):
        timings.record("shape", "a", 2.0)
    for number in range(4):
        timings.record("shape", "b", 3.0, new_pages=4096)
        assert timings.choose("shape", ("a", "b")) == ("b", True), number
    for _ in range(2):
        timings.record("shape", "b", 1.0)
    assert timings.choose("shape", ("a", "b")) == ("b", False)
    for _ in range(8):
        timings.record("shape", "c", 1.9, new_pages=4096)
    assert timings.choose("shape", ("a", "b", "c")) == ("b", False)
    for _ in range(2):
        timings.record("shape", "d", 9.0, new_pages=4096)  # so slow that it need not be known
    assert timings.choose("shape", ("a", "b", "c", "d")) == ("b", False)


def test_a_way_that_is_out_of_the_question_is_not_chosen():
    timings = Timings[str]()
    for way in WAYS * 2:
        timings.record("shape", way, SECONDS[way])
    assert timings.choose("shape", ("slow", "middling")) == ("middling", False)
    assert timings.choose("shape", ("slow",)) == ("slow", False)


def test_what_is_tried_changes_nothing_but_rounding():
    timings = Timings[Kernel]()
    found = set()
    for _ in range(8):
        torch.manual_seed(0)
        factor = Outer(torch.randn(6, 90, 60).double(), torch.randn(6, 90, 60).double())
        evaluator = Evaluator("auto", timings=timings)
        squares, held = evaluator.evaluate(factor)
        total = evaluator.weighted_sum(held, torch.arange(6.0).double(), None)
        found.add(type(held).__name__)
        torch.testing.assert_close(squares, factor.materialize().flatten(1).square().sum(1))
        torch.testing.assert_close(total, factor.weighted_sum(torch.arange(6.0).double()))
    assert found == {"Dense", "Outer"}  # kept, and by ghost norms


def test_sequences_of_any_length_share_what_is_known():
    lengths = range(1, 2000)
    keys = {Outer(torch.empty(2, n, 3), torch.empty(2, n, 4)).signature() for n in lengths}
    assert len(keys) <= 2 * 11


@pytest.mark.parametrize("seed", [None, 3])
def test_a_seeded_run_goes_by_formulas_and_repeats_itself(seed):
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3))
        data = torch.utils.data.TensorDataset(torch.randn(40, 2, 8, 8), torch.randint(3, (40,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = qg.PrivacyEngine(
            model, optimizer, data, batch_size=10, noise_multiplier=1.0, delta=1e-3, seed=seed
        )
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
            engine.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    first, second = train(), train()
    assert torch.equal(first, second) == (seed is not None)


@pytest.mark.parametrize("budget", ["1GB", -1, 1.5, True])
def test_a_budget_is_a_number_of_bytes(budget):
    with pytest.raises(ValueError, match="memory_budget"):
        Evaluator("auto", budget)


def test_without_a_budget_what_may_be_kept_follows_from_the_factors():
    long = torch.ones(4, 304, 1024)  # so many positions that to keep is cheapest by the formula
    factor = Outer(long, long.clone())
    more = 4 * 4 * 1024 * 1024 - factor.held_bytes()
    evaluator = Evaluator("auto")
    kept = []
    while evaluator.choice(factor) == "keep":
        kept.append(evaluator.measure(factor)[1])
    assert len(kept) == (1 << 26) // more
    evaluator.release(kept.pop())
    assert evaluator.choice(factor) == "keep"
    evaluator.measure(factor)
    large = Outer(torch.ones(1, 1, 1 << 27).expand(1, 2, -1), torch.ones(1, 2, 1))  # 1 GiB by name
    evaluator.measure(large)
    assert evaluator.choice(factor) == "keep"


def test_what_holds_more_has_to_be_faster():
    timings = Timings[Kernel]()
    keep, ghost = Kernel("keep"), Kernel("ghost")
    for way, seconds in ((keep, 0.95), (ghost, 1.0)) * 2:
        timings.record("shape", way, seconds)
    assert timings.choose("shape", (keep, ghost))[0] == keep
    assert timings.choose("shape", (keep, ghost), lambda w: 1.1 if w == keep else 1)[0] == ghost
