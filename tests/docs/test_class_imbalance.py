"""The example of rare classes runs, and the page has its ways, its clipping functions and code."""

import importlib.util
import re

import pytest
import torch
import torch.nn.functional as F
from tests.docs.blocks import ROOT, blocks_of

import quietgrad as qg

PAGE = ROOT / "docs/class-imbalance.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example():
    file = ROOT / "examples" / "class_imbalance.py"
    specification = importlib.util.spec_from_file_location("class_imbalance", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:delta=:UserWarning")
def test_a_rare_class_is_found_with_adjusted_logits_and_without_automatic_clipping(
    example, monkeypatch
):
    monkeypatch.setattr(example, "RECORDS", 3000)
    shares = {}
    for way, clipping in (
        ("nothing", "abadi, R = 1"),
        ("logit adjustment", "abadi, R = 1"),
        ("logit adjustment", "auto-s"),
    ):
        losses, decide = example.WAYS[way]
        model, held_out = example.train(losses, clipping, 0, sigma=1.0)
        shares[way, clipping] = example.recalls(model, decide, held_out)[1]
    assert shares["logit adjustment", "abadi, R = 1"] > 0.2
    assert max(shares["nothing", "abadi, R = 1"], shares["logit adjustment", "auto-s"]) < 0.1


def test_the_page_has_all_of_the_table(example):
    rows = re.findall(r"^\| ([a-z ]+) \|((?: \d+\.\d % \(\d+\.\d\) \|){5})$", TEXT, re.MULTILINE)
    assert [name for name, _ in rows] == list(example.WAYS)
    header = next(line for line in TEXT.splitlines() if line.startswith("| | `auto-s`"))
    assert header.count("|") == 2 + len(example.CLIPPINGS)


@pytest.mark.filterwarnings("ignore:the variance of:UserWarning")
def test_the_lines_of_the_page_run():
    torch.manual_seed(0)
    labels = (torch.rand(2000) < 0.1).long()
    names = {"qg": qg, "F": F, "labels": labels, "ledger": qg.accounting.Ledger()}
    first, second = (block.text for block in blocks_of(PAGE))
    exec(first, names)
    assert names["shares"].sum() == pytest.approx(1, abs=0.2)
    assert names["ledger"].steps == 2
    names |= {"model": torch.nn.Linear(3, 2).double(), "x": torch.randn(4, 3).double()}
    exec(second, names | {"y": torch.tensor([0, 1, 0, 1])})
