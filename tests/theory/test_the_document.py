"""docs/theory.md shows what its snippets print, and leads to files that are there."""

import doctest
import re
from pathlib import Path

import pytest

from quietgrad import theory

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = DOCS / "theory.md"
PAGES = [DOCUMENT, *sorted((DOCS / "papers").glob("*.md"))]


def test_snippets_print_what_is_shown():
    result = doctest.testfile(str(DOCUMENT), module_relative=False, encoding="utf-8")
    assert result.attempted > 20
    assert result.failed == 0


def test_every_name_is_explained():
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [name for name in theory.__all__ if name not in text]
    assert missing == ["Advice"]  # what `advise` returns


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert links
    for link in links:
        if not link.startswith("https://"):
            assert (page.parent / link).exists(), link
