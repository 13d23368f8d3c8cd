"""The page: one file, nothing from outside, nothing that a file says gets out of its place."""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise

import pytest

from quietgrad.report import Statement, as_html, statement_of_folder, write_for_folder

from .helpers import audit, edited, trained

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7654321*7 }}\ud800"


class Outline(HTMLParser):
    """Elements and headings of a page; every element that is opened must be closed in order."""

    VOID = frozenset(("meta", "link", "line", "circle", "polyline", "br", "img"))

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.levels, self.open = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, name, attributes):
        self.names.append(name)
        self.attributes += attributes
        if re.fullmatch(r"h[1-6]", name):
            self.levels.append(int(name[1]))
        if name not in self.VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        if name not in self.VOID:
            assert self.open.pop() == name


@pytest.fixture(scope="module")
def page(finished):
    return as_html(statement_of_folder(finished, audit=audit()))


def embedded(page):
    found = re.search(r'<script type="application/json" id="statement">(.*?)</script>', page, re.S)
    return json.loads(found[1])


def test_the_json_in_the_page_is_the_statement(finished):
    statement = statement_of_folder(finished)
    assert Statement.from_dict(embedded(as_html(statement))) == statement


def test_nothing_comes_from_outside(page):
    outline = Outline(page)
    assert outline.open == []
    addresses = [value for name, value in outline.attributes if name in ("src", "href")]
    assert addresses == ["data:,"]
    assert "@import" not in page
    assert "url(" not in page
    assert outline.names.count("script") == 1  # data, which no browser runs


def test_headings_tables_and_pictures_are_named(page):
    outline = Outline(page)
    assert outline.levels[0] == 1
    assert outline.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(outline.levels))
    assert outline.names.count("table") == outline.names.count("caption")
    pictures = outline.names.count("svg")
    assert pictures >= 3
    assert outline.attributes.count(("role", "img")) == pictures
    assert page.count("<title id=") == pictures
    assert ("name", "viewport") in outline.attributes
    ids = [value for name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    named = [value for name, value in outline.attributes if name == "aria-labelledby"]
    assert {each for value in named for each in value.split()} <= set(ids)


def test_everything_promised_is_on_the_page(page):
    for words in (
        "Guarantee",
        "Unit of privacy",
        "Adjacency",
        "Releases that the claim covers",
        "What is not covered",
        "What is unknown",
        "Mechanism",
        "Clipping function",
        "Sensitivity",
        "Noise multiplier (sigma)",
        "Sampling rate (q)",
        "Steps in the ledger",
        "Steps in the weights",
        "Expected batch size",
        "Divisor of the sum",
        "Sampling performed",
        "Sampling assumed by the accountant",
        "dp-accounting",
        "Bounds for several records at once",
        "Cost of tuning",
        "Noise source",
        "Lower bound on epsilon",
        "SHA-256 of the settings",
        "SHA-256 of ledger.jsonl",
        "Keys of the noise",
        "Keys of the sampling",
        "Training data",
        "Hash of the data",
        "Run begun",
        "Run finished",
        "Test accuracy by epoch",
        "Epsilon by epoch",
        "Epsilon for every delta",
        "Sign-off",
        "Configuration",
    ):
        assert words in page


def test_hostile_strings_stay_text(folder):
    edited(
        folder / "config.json",
        lambda config: config.update({"recipe": HOSTILE, HOSTILE: {"deep": [HOSTILE]}}),
    )
    edited(
        folder / "settings.json",
        lambda settings: (
            settings.update(model=HOSTILE, clipping=HOSTILE, sampler=HOSTILE, momentum=HOSTILE),
            settings["groups"][0].update(name=HOSTILE),
            settings["versions"].update(torch=HOSTILE),
        ),
    )
    line = {"epoch": 1, HOSTILE: 0.5, "test_loss": HOSTILE, "epsilon": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    found = audit(kind=HOSTILE)
    place = write_for_folder(folder, audit=found)
    page = place.read_text()
    outline = Outline(page)
    assert outline.names.count("script") == 1
    assert "img" not in outline.names
    assert not any(name.startswith("on") for name, _ in outline.attributes)
    assert "53580247" not in page  # the product; a smaller one may be the minute of the hour
    assert embedded(page)["config"]["recipe"] == HOSTILE


def test_odd_numbers_are_shown_as_words():
    lines = [
        {"epoch": 1, "test_loss": float("nan"), "epsilon": float("inf")},
        {"epoch": 2, "test_loss": 10**400, "test_accuracy": True, "epsilon": 1.0},
        {"epoch": 3, "test_loss": 0.25},
    ]
    statement = trained().report(metrics=lines)
    assert statement.metrics[0]["test_loss"] == "nan"
    page = as_html(statement)
    assert "infinity" in page
    assert embedded(page)["metrics"][1]["test_loss"] == 10**400


def test_metrics_without_an_epoch_are_refused():
    with pytest.raises(ValueError, match=r"metrics\[0\] has no number of its epoch"):
        trained().report(metrics=[{"test_loss": 1.0}])


def test_an_older_report_is_replaced(folder):
    place = write_for_folder(folder)
    assert place == folder / "report.html"
    first = place.read_text()
    place.write_text(first[:1000] + "old")
    assert write_for_folder(folder).read_text()[:500] == first[:500]
    assert not list(folder.glob(".*"))


def test_the_template_is_packed():
    for name in ("template.html", "style.css"):
        assert files("quietgrad.report").joinpath(name).is_file()
