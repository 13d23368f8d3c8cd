"""README.md: its example runs, its table has every command, and moved figures are where it says."""

import re

from tests.docs.blocks import ROOT, blocks_of, printed_by

from quietgrad.cli import COMMANDS

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_example_runs_within_its_budget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = (block for block in blocks_of(README) if block.language == "python")
    code = [line for line in example.text.splitlines() if line.strip()]
    assert len(code) <= 20
    accuracy, sentence = printed_by(example, {"__name__": "readme"}, README).splitlines()
    # Chance is 10 %; what is shown is about 80 %.
    assert float(re.fullmatch(r"accuracy on held-out digits: (\d+\.\d)%", accuracy)[1]) > 50
    epsilon = re.search(r"\(epsilon = (\d\.\d+), delta = 0\.0001\)-differential", sentence)
    assert 0 < float(epsilon[1]) <= 3
    # The same sentence is shown below the example.
    figures = r"\d+(\.\d+)?"
    assert re.sub(figures, "#", sentence) in re.sub(figures, "#", TEXT)
    assert (tmp_path / "report.html").exists()


def test_every_command_is_in_the_table():
    table = TEXT.split("## Commands")[1].split("\n## ")[0]
    told = re.findall(r"^\| `quietgrad ([\w-]+)", table, re.MULTILINE)
    assert sorted(told) == sorted(COMMANDS)


def test_figures_of_results_are_on_the_pages_named():
    table = TEXT.split("## Results")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.count("](docs/") == 1]
    assert rows
    for _, figures, link in rows:
        page = (ROOT / re.search(r"\((docs/[^)]+)\)", link)[1]).read_text(encoding="utf-8")
        for figure in re.findall(r"\d+\.\d+", figures):
            assert figure in page, f"{figure} is not in {link}"
