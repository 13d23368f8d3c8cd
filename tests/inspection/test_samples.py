"""Batches of any kind are cut into samples."""

from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import default_collate

import quietgrad as qg
from quietgrad.inspection.report import Severity

from .broken import CLASSES, B, D, cross_entropy, data, plain

WORDS = ["a", "bb", "ccc", "dddd"]


def pick(batch, places):
    return [batch[place] for place in places]


def of_words(model, words):
    return model(torch.tensor([[float(len(word))] * D for word in words])).pow(2).sum(1)


def of_pairs(model, pairs):
    return cross_entropy(
        model, (torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs]))
    )


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


NAMES = ["cat", "dog", "emu"]


def of_names(model, batch):
    return cross_entropy(model, (batch[0], torch.tensor([NAMES.index(name) for name in batch[1]])))


def kinds():
    x, y = data()
    named = [(row, NAMES[label]) for row, label in zip(x, y.tolist(), strict=True)]
    return {
        "a tensor": (x, lambda m, b: m(b).pow(2).sum(1)),
        "a dictionary": (
            {"x": x, "y": y, "scale": 2.0},
            lambda m, b: b["scale"] * cross_entropy(m, (b["x"], b["y"])),
        ),
        "a mapping": (UserDict(x=x, y=y), lambda m, b: cross_entropy(m, (b["x"], b["y"]))),
        "a dataclass": (Pair(x, y), lambda m, b: cross_entropy(m, (b.x, b.y))),
        "arrays": (
            (x.numpy(), y.numpy()),
            lambda m, b: cross_entropy(m, tuple(map(torch.as_tensor, b))),
        ),
        "words": (WORDS, of_words),
        "a tuple of words": (tuple(WORDS), of_words),
        "collated names": (default_collate(named), of_names),
        "names in a list": ((x, [name for _, name in named]), of_names),
        "words in a dictionary": (
            {"words": WORDS, "y": torch.zeros(4)},
            lambda m, b: of_words(m, b["words"]) + b["y"],
        ),
        "pairs": (list(zip(x, y.tolist(), strict=True)), of_pairs),
    }


@pytest.mark.parametrize("name", list(kinds()))
def test_a_batch_of_this_kind(name):
    torch.manual_seed(0)
    batch, losses = kinds()[name]
    report = qg.check(plain(), batch, losses)
    assert report.ok, str(report)
    assert report.samples == (len(WORDS) if "words" in name else B)


@pytest.mark.parametrize("name", ["collated names", "names in a list"])
def test_names_are_labels(name):
    torch.manual_seed(0)
    batch, losses = kinds()[name]
    for wrong in (
        lambda m, b: losses(m, b) / (1 + b[1].count("dog")),
        lambda m, b: losses(m, b) / len(set(b[1])),
    ):
        report = qg.check(plain(), batch, wrong)
        assert "independence" in {fault.check for fault in report.faults}, str(report)


def test_with_select_a_batch_may_be_anything():
    class Words:
        def __init__(self, words):
            self.words = words

    report = qg.check(
        plain(),
        Words(WORDS),
        lambda model, batch: of_words(model, batch.words),
        select=lambda batch, places: Words(pick(batch.words, places)),
        samples=9,
    )
    assert report.ok, str(report)
    assert report.samples == len(WORDS)


def test_weights_of_classes_need_select():
    def losses(model, batch):
        x, y, weights = batch
        return F.cross_entropy(model(x), y, weights, reduction="none")

    model = nn.Linear(D, B)
    batch = (*data(), torch.rand(B))
    with pytest.raises(RuntimeError, match="weight") as caught:
        qg.check(model, batch, losses)
    assert "select=" in caught.value.__notes__[0]
    report = qg.check(
        model, batch, losses, select=lambda b, places: (b[0][places], b[1][places], b[2])
    )
    assert report.ok, str(report)


def test_samples_that_differ_in_one_thing_are_not_alike():
    batch = torch.zeros(B, D), torch.arange(B) % CLASSES
    assert qg.check(plain(), batch, cross_entropy).ok
    same = [("x", np.zeros(2)), ("x", np.zeros(2))]
    with pytest.raises(ValueError, match="all alike"):
        qg.check(plain(), same, of_pairs)


def test_a_model_that_does_not_run_one_sample_alone_is_a_finding():
    """A group of one value: torch refuses it for one sample, and makes several alike."""
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(4, 4), nn.Flatten(), nn.Linear(4, CLASSES)
    batch = torch.randn(B, 1, 3, 3), torch.arange(B) % CLASSES
    report = qg.check(nn.Sequential(*layers), batch, cross_entropy)
    (finding,) = [each for each in report.findings if each.verdict is Severity.FAULT]
    assert finding.check == "exactness"
    assert "batch of its own" in finding.what
    assert "fewer groups" in finding.remedy


@pytest.mark.parametrize("name", ["select", "on_check"])
def test_an_argument_that_is_no_function_is_named(name):
    with pytest.raises(TypeError, match=f"{name}=3 is int: expected a function"):
        qg.check(plain(), data(), cross_entropy, **{name: 3})
