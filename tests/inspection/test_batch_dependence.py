"""A loss that depends on the rest of the batch is found on every batch, and its remedy passes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg
from quietgrad.inspection import Severity

from .broken import CLASSES, D, contrastive, cross_entropy, plain

B, T, VOCABULARY = 9, 6, 11
SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed >= 3 else ()) for seed in range(12)]
WEIGHTS = torch.tensor([0.5, 1.0, 2.0])


def labelled(samples=B):
    """Every class is there, in any order."""
    return torch.randn(samples, D), (torch.arange(samples) % CLASSES)[torch.randperm(samples)]


def texts():
    lengths = torch.randint(1, T + 1, (B, 1))
    return torch.where(torch.arange(T) < lengths, torch.randint(1, VOCABULARY, (B, T)), 0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, D), nn.Linear(D, VOCABULARY)

    def forward(self, ids):
        return self.head(self.table(ids))


def token_losses(model, ids):
    losses = F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none")
    return losses * (ids != 0)


def smoothed(model, batch, frequencies):
    x, y = batch
    targets = 0.9 * F.one_hot(y, CLASSES) + 0.1 * frequencies
    return F.cross_entropy(model(x), targets, reduction="none")


def frequencies(y):
    return torch.bincount(y, minlength=CLASSES) / len(y)


def by_its_mean(model, batch):
    losses = cross_entropy(model, batch)
    return losses * (losses / losses.mean()).detach()


def focal(model, batch):
    losses = cross_entropy(model, batch)
    return losses * (1 - (-losses).exp()).detach() ** 2


def hardest(model, batch):
    losses = cross_entropy(model, batch)
    kept = torch.zeros(len(losses)).index_fill(0, losses.detach().topk(min(3, len(losses)))[1], 1.0)
    return losses * kept


def same_value(losses, factor):
    """The losses, with gradients that are multiplied by a factor."""
    return losses * factor - (losses * factor - losses).detach()


def hooked(model, batch, factor):
    outputs = model(batch[0])
    if outputs.requires_grad:
        outputs.register_hook(lambda gradient: gradient * factor)
    return F.cross_entropy(outputs, batch[1], reduction="none")


# What is wrong, and the same done rightly.
LOSSES = {
    "divided by the samples of one class": (
        lambda m, b: cross_entropy(m, b) / (b[1] == 0).sum().clamp(min=1),
        lambda m, b: cross_entropy(m, b) / 3,
    ),
    "divided by the size of the batch": (
        lambda m, b: cross_entropy(m, b) / len(b[0]),
        lambda m, b: cross_entropy(m, b) / B,
    ),
    "class weights from counts": (
        lambda m, b: cross_entropy(m, b) / frequencies(b[1])[b[1]],
        lambda m, b: cross_entropy(m, b) * WEIGHTS[b[1]],
    ),
    "divided by the tokens of the batch": (
        lambda m, b: token_losses(m, b).sum(1) / (b != 0).sum(),
        lambda m, b: token_losses(m, b).sum(1) / (b != 0).sum(1),
    ),
    "focal weights by the mean of the batch": (by_its_mean, focal),
    "contrastive": (contrastive, lambda m, b: (m(b[0]) - m(-b[0])).square().sum(1)),
    "smoothing by frequencies": (
        lambda m, b: smoothed(m, b, frequencies(b[1])),
        lambda m, b: smoothed(m, b, torch.full((CLASSES,), 1 / CLASSES)),
    ),
    "the hardest of the batch": (
        hardest,
        lambda m, b: F.softplus(4 * cross_entropy(m, b) - 4),
    ),
}


# Only a whole class that is missing, a batch that is much smaller, or a gradient shows these.
RARELY_SEEN = {
    "divided by the number of classes in the batch": (
        lambda m, b: cross_entropy(m, b) / len(b[1].unique()),
        lambda m, b: cross_entropy(m, b) / CLASSES,
    ),
    "whether a class is in the batch": (
        lambda m, b: cross_entropy(m, b) * (2 if (b[1] == 0).any() else 1),
        lambda m, b: cross_entropy(m, b) * (b[1] == 0).float().add(1),
    ),
    "whether all classes are in the batch": (
        lambda m, b: cross_entropy(m, b) * (2 if len(b[1].unique()) == CLASSES else 1),
        lambda m, b: cross_entropy(m, b) * 2,
    ),
    "whether the batch is large": (
        lambda m, b: cross_entropy(m, b) * (2 if len(b[1]) > 5 else 1),
        lambda m, b: cross_entropy(m, b) * 1,
    ),
    "gradients scaled by a count": (
        lambda m, b: same_value(cross_entropy(m, b), 1.0 + (b[1] == 2).sum()),
        lambda m, b: same_value(cross_entropy(m, b), 1.0 + (b[1] == 2)),
    ),
    "gradients scaled by a count, and no batch of one": (
        lambda m, b: same_value(cross_entropy(m, several(b)), 1.0 + (b[1] == 2).sum()),
        lambda m, b: cross_entropy(m, b),
    ),
    "gradients scaled in a hook": (
        lambda m, b: hooked(m, b, 1 / (1 + (b[1] == 2).sum())),
        lambda m, b: hooked(m, b, 0.5),
    ),
}


def several(batch):
    if len(batch[0]) < 2:
        raise ValueError("a batch of one")
    return batch


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("samples", [9, 16, 40])
@pytest.mark.parametrize("name", RARELY_SEEN)
def test_what_depends_on_a_class_is_found(name, samples, seed):
    torch.manual_seed(seed)
    wrong, right = RARELY_SEEN[name]
    model, batch = plain(), labelled(samples)
    found = qg.check(model, batch, wrong)
    assert "independence" in {fault.check for fault in found.faults}, str(found)
    if samples == B:
        report = qg.check(model, batch, right)
        assert {f.verdict for f in report.findings} == {Severity.OK}, str(report)


def test_the_loss_of_a_sample_alone_is_named():
    torch.manual_seed(0)
    report = qg.check(plain(), labelled(40), RARELY_SEEN["whether the batch is large"][0])
    (finding,) = [each for each in report.faults if each.check == "independence"]
    assert "is run alone, its loss changes" in finding.what


def test_small_losses_may_round_differently_alone():
    torch.manual_seed(0)
    model, (x, y) = plain(), labelled(40)
    with torch.no_grad():
        model.head.bias[0] += 14  # the losses of one class are nearly zero
    assert qg.check(model, (x, y), cross_entropy).ok


def subject(name):
    return (Tagger(), texts()) if "tokens" in name else (plain(), labelled())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LOSSES)
def test_what_depends_on_the_batch_is_found(name, seed):
    torch.manual_seed(seed)
    wrong, right = LOSSES[name]
    model, batch = subject(name)
    found = qg.check(model, batch, wrong)
    assert "independence" in {fault.check for fault in found.faults}, str(found)
    report = qg.check(model, batch, right)
    assert {f.verdict for f in report.findings} == {Severity.OK}, str(report)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("samples", [4, 9, 16])
def test_a_class_of_one_sample_is_counted(samples, seed):
    """To take it away may change nothing; one more of it does."""
    torch.manual_seed(seed)
    batch = torch.randn(samples, D), torch.zeros(samples, dtype=torch.long)
    batch[1][seed % samples] = 2
    report = qg.check(plain(), batch, lambda m, b: cross_entropy(m, b) / max(1, sum(b[1] == 2)))
    assert "independence" in {fault.check for fault in report.faults}, str(report)


@pytest.mark.parametrize(
    "name", ["divided by the samples of one class", "the hardest of the batch"]
)
def test_large_batches_take_no_more_runs_than_middling_ones(name):
    torch.manual_seed(0)
    runs = []

    def counted(model, batch):
        runs.append(len(batch[0]))
        return LOSSES[name][1](model, batch)

    assert qg.check(plain(), labelled(64), counted).ok
    middling = len(runs)
    report = qg.check(plain(), labelled(1000), counted)
    assert report.ok
    assert report.samples == max(runs) == 256
    assert len(runs) - middling < middling + 16
    assert not qg.check(plain(), labelled(1000), LOSSES[name][0]).ok


def test_samples_is_about_gradients_alone():
    torch.manual_seed(0)
    alone = []

    def counted(model, batch):
        alone.append(len(batch[0]) == 1)
        return cross_entropy(model, batch)

    for samples in (3, 5):
        alone.clear()
        report = qg.check(plain(), labelled(), counted, samples=samples)
        assert report.samples == B
        assert sum(alone) == samples + 2 * 8  # eight more, for losses and for gradients


def test_a_loss_that_needs_a_full_batch_is_a_finding():
    torch.manual_seed(0)
    report = qg.check(
        plain(), labelled(), lambda m, b: cross_entropy(m, b) + 0.0 * b[0].view(B, D).sum(1)
    )
    (finding,) = report.faults
    assert "does not run" in finding.what
    assert "removed" in finding.what


def note(batch, model=None, losses=cross_entropy):
    report = qg.check(model or plain(), batch, losses)
    assert report.ok, str(report)
    (finding,) = [each for each in report.findings if each.check == "variety"]
    return finding


def test_a_batch_that_is_too_small_is_noted():
    torch.manual_seed(0)
    finding = note(labelled(3))
    assert finding.verdict is Severity.NOTE
    assert "3 samples" in finding.what
    assert "4" in finding.remedy
    assert note(labelled(4)).verdict is Severity.OK


def test_labels_that_are_all_the_same_are_noted():
    torch.manual_seed(0)
    finding = note((torch.randn(B, D), torch.ones(B, dtype=torch.long)))
    assert finding.verdict is Severity.NOTE
    assert "0, 2" in finding.what
    assert "2 more samples" in finding.remedy
    words = [{"x": torch.randn(D), "y": 1} for _ in range(B)]
    model = nn.Linear(D, 1)
    finding = note(words, model, lambda m, b: m(torch.stack([s["x"] for s in b])).squeeze(1))
    assert "same label" in finding.what
    assert "other labels" in finding.remedy


def test_classes_without_a_sample_are_named():
    torch.manual_seed(0)
    finding = note((torch.randn(4, D), torch.tensor([0, 5, 5, 0])), nn.Linear(D, 20))
    assert finding.verdict is Severity.NOTE
    assert "1, 2, 3, 4, 6, ... (18 of 20" in finding.what
    assert "18 more samples" in finding.remedy


def test_numbers_that_are_no_classes_are_not_taken_for_such():
    torch.manual_seed(0)
    x = torch.randn(B, D)
    for labels in (torch.rand(B), torch.arange(B) + 100):
        finding = note((x, labels), None, lambda m, b: m(b[0]).sum(1).sub(b[1]).square())
        assert finding.verdict is Severity.OK
