"""`qg.check` with collate_fn: samples are collated anew when others are removed."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import quietgrad as qg

TEXTS = [torch.arange(1, 2 + n) % 9 + 1 for n in (11, 2, 3, 1, 4, 2)]
ELEMENTS = [(text, place % 2) for place, text in enumerate(TEXTS)]


def collate(elements):
    texts, labels = zip(*elements, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


class Bag(nn.Module):
    def __init__(self, is_masked):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear, self.is_masked = nn.Embedding(11, 4), nn.Linear(4, 2), is_masked

    def forward(self, ids):
        h = self.table(ids)
        if not self.is_masked:
            return self.linear(h.mean(1))
        mask = ids.ne(0).to(h)[..., None]
        return self.linear((h * mask).sum(1) / mask.sum(1))


def losses(model, batch):
    ids, labels = batch
    return nn.functional.cross_entropy(model(ids), labels, reduction="none")


def test_padding_that_counts_is_found():
    report = qg.check(Bag(is_masked=False), ELEMENTS, losses, collate_fn=collate)
    assert not report.ok
    assert "independence" in {finding.check for finding in report.faults}


def test_padding_with_a_mask_passes():
    report = qg.check(Bag(is_masked=True), ELEMENTS, losses, collate_fn=collate)
    assert report.ok, str(report)


def test_after_collating_it_cannot_be_seen():
    assert qg.check(Bag(is_masked=False), collate(ELEMENTS), losses).ok


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"collate_fn": 3}, "collate_fn"),
        ({"collate_fn": collate, "select": lambda batch, places: batch}, "select="),
    ],
)
def test_options_that_do_not_fit_are_named(given, words):
    with pytest.raises((TypeError, ValueError), match=words):
        qg.check(Bag(is_masked=True), ELEMENTS, losses, **given)


def test_a_batch_that_is_no_list_of_elements_is_named():
    with pytest.raises(ValueError, match="list of elements"):
        qg.check(Bag(is_masked=True), torch.ones(4, 3), losses, collate_fn=collate)
