"""A report replaces reports, and nothing else."""

import os

import pytest
from click.testing import CliRunner

from quietgrad.cli import main
from quietgrad.report import ReportError, write_for_folder

from .helpers import trained


def run(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


@pytest.mark.parametrize("name", ["ledger.jsonl", "config.json", "metrics.jsonl", "model"])
def test_evidence_is_not_overwritten(folder, name):
    (folder / "model").write_bytes(b"\x00weights")
    before = (folder / name).read_bytes()
    result = run(folder, "--out", folder / name)
    assert result.exit_code == 2
    assert "is not a report of quietgrad" in " ".join(result.output.split())
    assert (folder / name).read_bytes() == before


def test_an_engine_does_not_replace_its_own_ledger(tmp_path):
    place = tmp_path / "ledger.jsonl"
    engine = trained(ledger=place)
    before = place.read_bytes()
    with pytest.raises(ReportError, match="is not a report of quietgrad"):
        engine.report(place)
    assert place.read_bytes() == before


def test_other_pages_and_what_is_no_file_stay(folder, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html>\n<html><title>Mine</title> quietgrad</html>")
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "nowhere")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (page, link, pipe):
        with pytest.raises(ReportError, match="is not a report of quietgrad"):
            write_for_folder(folder, place)
    assert "Mine" in page.read_text()


def test_a_report_is_replaced_wherever_it_is(folder, tmp_path):
    place = tmp_path / "signed.html"
    engine = trained()
    engine.report(place)
    assert run(folder, "--out", place).exit_code == 0
    assert "<h1>demo</h1>" in place.read_text()
    assert 'name="generator" content="quietgrad"' in place.read_text()[:400]


def test_a_ledger_alone_does_not_replace_the_report_of_its_folder(folder):
    own = write_for_folder(folder).read_text()
    assert run(folder / "ledger.jsonl").exit_code == 1
    assert run(folder / "ledger.jsonl", "--delta", "1e-4").exit_code == 0
    assert (folder / "report.html").read_text() == own
    names = sorted(path.name for path in folder.glob("report*"))
    assert names == ["report-ledger-delta-0.0001.html", "report-ledger.html", "report.html"]
