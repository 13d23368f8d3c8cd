"""Canaries in real training: what is seen of them is theirs alone."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from quietgrad import audit, clipping

from .broken import no_noise
from .helpers import DELTA, data, gradient_canaries, linear, losses, sgd

PRESENT = np.arange(60) % 3 == 0


def seen(**options):
    """What a run without noise shows."""
    with no_noise():
        return gradient_canaries(batch_size=50, **options)(PRESENT, 0)


@pytest.mark.parametrize("name", clipping.names())
def test_a_score_counts_how_often_a_present_canary_took_part(name):
    observation = seen(clipping=name, epochs=4)
    rate, steps = 50 / 100, 4 * 2
    length = 2 * observation.threshold / (rate * steps)
    counts = observation.scores / length
    assert counts == pytest.approx(counts.round(), abs=2e-3)
    assert (counts[~PRESENT].round() == 0).all()
    assert counts[PRESENT].mean() == pytest.approx(rate * steps, abs=2)
    assert counts.max().round() <= steps


def test_absent_canaries_leave_the_model_as_it_is():
    """What is released about the rest of the model is the same whoever is there."""
    weights = []

    def keeping(model):
        weights.append(model.model.weight)
        return sgd(model)

    options = {"epochs": 2, "batch_size": 50, "delta": DELTA, "noise_multiplier": 1.0}
    train = audit.gradient_canaries(linear, data(), losses, keeping, **options)
    train(PRESENT, 0)
    train(~PRESENT, 0)
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("sampling", "adjacency"),
    [("shuffled", "zero-out-one"), ("shuffled", "replace-one"), ("full-batch", None)],
)
def test_other_samplings(sampling, adjacency):
    size = 100 if sampling == "full-batch" else 50
    with no_noise():
        train = gradient_canaries(epochs=2, batch_size=size, sampling=sampling, adjacency=adjacency)
        scores = train(PRESENT, 0).scores
    assert scores[~PRESENT] == pytest.approx(0, abs=1e-5)
    assert scores[PRESENT] == pytest.approx(2, rel=1e-3)  # once in each pass


def test_cut_batches_make_canaries_dependent():
    assert (
        gradient_canaries(sampling="poisson:70", batch_size=50, epochs=1)(PRESENT, 0).threshold
        is None
    )


@pytest.mark.parametrize("grouping", ["layer-wise", "param-wise"])
def test_groups_leave_canaries_what_is_theirs(grouping):
    observation = seen(grouping=grouping, epochs=1)
    assert observation.scores[PRESENT].sum() > 100 * abs(observation.scores[~PRESENT]).max()


def test_micro_batches_and_other_batches_than_pairs():
    def collate(elements):
        return {
            "x": torch.stack([x for x, _ in elements]),
            "y": torch.stack([y for _, y in elements]),
        }

    options = {"epochs": 1, "batch_size": 50, "delta": DELTA, "noise_multiplier": 1.0}
    whole = audit.gradient_canaries(linear, data(), losses, sgd, **options)
    parts = audit.gradient_canaries(
        linear,
        data(),
        lambda model, batch: losses(model, (batch["x"], batch["y"])),
        sgd,
        collate=collate,
        physical_batch_size=7,
        **options,
    )
    assert parts(PRESENT, 0).scores == pytest.approx(whole(PRESENT, 0).scores, rel=1e-5)


def test_without_a_seed_nothing_repeats():
    first, second = (
        gradient_canaries(batch_size=50, epochs=1)(PRESENT, None).scores for _ in range(2)
    )
    assert (first == second).sum() < len(first) / 10  # single scores may agree by chance


@pytest.mark.parametrize("name", ["seed", "ledger", "collate_fn"])
def test_what_an_audit_decides_is_no_option(name):
    with pytest.raises(ValueError, match=f"{name}= is not an option of an audit"):
        gradient_canaries(**{name: 1})


def memorable(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 300, generator=generator)
    return TensorDataset(x, torch.randint(2, (count,), generator=generator))


def example_canaries(count):
    given = {"epochs": 5, "batch_size": 40, "delta": DELTA, "noise_multiplier": 6.0}
    return audit.example_canaries(
        lambda: torch.nn.Linear(300, 2), memorable(20, 0), memorable(count, 1), losses, sgd, **given
    )


def test_examples_find_what_is_grossly_wrong():
    train = example_canaries(100)
    assert not audit.one_run(train, canaries=100, seed=0).violated
    with no_noise():
        result = audit.one_run(train, canaries=100, guesses=50, seed=0)
    assert result.violated
    assert result.rates is None  # canaries of one model meet


def test_examples_must_be_as_many_as_coins():
    with pytest.raises(ValueError, match=r"100 examples for 99 canaries"):
        audit.one_run(example_canaries(100), canaries=99)


def test_mislabeled_examples_have_wrong_labels():
    held_out = data(30)
    chosen = audit.mislabeled(held_out, 30, classes=2, seed=0)
    assert all(y.dtype == torch.long for _, y in chosen)  # as the labels they are mixed with
    right = {tuple(x.tolist()): int(y) for x, y in held_out}
    assert len({tuple(x.tolist()) for x, _ in chosen}) == 30
    assert all(right[tuple(x.tolist())] != y for x, y in chosen)
    with pytest.raises(ValueError, match="canaries=31 is more than the 30 held-out"):
        audit.mislabeled(held_out, 31, classes=2)
