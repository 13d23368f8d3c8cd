"""Links of the documents lead to files that are there, and to headings that are in them."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WRITTEN = [page for page in PAGES if not page.name.startswith("20")]  # not what a program wrote
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SOURCE = re.compile(r"`((?:\w+/)+\w+\.py)`")
INTERNALS = [
    page
    for page in PAGES
    if page.parent.name == "design" or page.stem in ("architecture", "CONTRIBUTING")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in links_of(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link}: leads out of the project"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_source_files_that_are_named_exist(page):
    roots = (ROOT, ROOT / "src", ROOT / "src/quietgrad")
    for name in _SOURCE.findall(page.read_text(encoding="utf-8")):
        assert any((root / name).exists() for root in roots), f"{name}: there is no such file"


def test_every_page_can_be_reached_from_the_front_page():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        paths = (link.partition("#")[0] for link in links_of(page) if "://" not in link)
        waiting += [(page.parent / path).resolve() for path in paths if path]
    unreachable = [page.relative_to(ROOT).as_posix() for page in PAGES if page not in seen]
    assert not unreachable


def test_what_is_wrong_would_be_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c!\n[x](there.md#y) `[no](link)`\n```\n[nor](this)\n# no\n```\n")
    assert links_of(page) == ["there.md#y"]
    assert anchors_of(page) == {"a-b-c"}


def links_of(page: Path) -> list[str]:
    return _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8")))


@cache
def anchors_of(page: Path) -> set[str]:
    """Headings as GitHub spells them in addresses."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paragraphs_are_one_line(page):
    """Lines are not wrapped in any document: an editor does that, and differences stay small."""
    text = re.sub(r"^```.*?^```$", "```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    is_text = [bool(re.match(r"(?!\d+\. )[^\s#|`<>!-]", line)) for line in text.splitlines()]
    wrapped = [number + 2 for number, pair in enumerate(pairwise(is_text)) if all(pair)]
    assert not wrapped, f"text that follows text, in lines without code blocks: {wrapped}"
