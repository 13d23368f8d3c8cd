"""`quietgrad report`."""

import json

from click.testing import CliRunner

from quietgrad.cli import main
from quietgrad.report import Statement

from .helpers import audit, edited, write_run


def run(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_writes_into_the_folder(folder):
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert "Guarantee: An attacker who sees" in result.output
    assert "<h1>demo</h1>" in (folder / "report.html").read_text()


def test_writes_where_it_is_told(folder, tmp_path):
    out = tmp_path / "signed.html"
    assert run(folder, "--out", out).exit_code == 0
    assert out.exists()
    assert not (folder / "report.html").exists()


def test_json_alone(folder):
    result = run(folder, "--json")
    assert result.exit_code == 0
    assert Statement.from_dict(json.loads(result.stdout)).verdict.kind == "guarantee"
    assert not (folder / "report.html").exists()


def test_an_audit_from_a_file(folder, tmp_path):
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(audit()))
    result = run(folder, "--audit", file, "--json")
    assert json.loads(result.stdout)["audit"]["lower_bound"] == 0.75
    file.write_text(json.dumps(audit(violated=True, p_value=1e-9)))
    assert run(folder, "--audit", file, "--json").exit_code == 1


def test_a_ledger_file(folder):
    alone = run(folder / "ledger.jsonl", "--json")
    assert alone.exit_code == 1
    assert json.loads(alone.stdout)["verdict"]["headline"] == "No delta stated"
    assert run(folder / "ledger.jsonl", "--delta", "1e-4", "--json").exit_code == 0


def test_another_delta_does_not_replace_the_report(folder):
    assert run(folder).exit_code == 0
    own = (folder / "report.html").read_text()
    assert run(folder, "--delta", "1e-6").exit_code == 0
    assert (folder / "report.html").read_text() == own
    assert (folder / "report-delta-1e-06.html").exists()


def test_exit_code_1_if_nothing_is_promised(folder, tmp_path):
    edited(folder / "settings.json", lambda settings: settings.update(delta=1e-9))
    result = run(folder)
    assert result.exit_code == 1
    assert "CLAIM NOT ESTABLISHED" in result.output
    seeded = run(write_run(tmp_path / "seeded", seed=1))
    assert seeded.exit_code == 1
    assert "THIS RUN PROTECTS NOBODY" in seeded.output


def refused(result, words):
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_refusals(folder, tmp_path):
    refused(run(tmp_path), "holds no ledger")
    refused(run(tmp_path / "nowhere"), "is not there")
    refused(run(folder, "--delta", "2"), "--delta=2.0 is not valid")
    refused(run(folder, "--audit", tmp_path / "none.json"), "quietgrad audit --json")
    refused(run(folder, "--out", tmp_path / "no" / "folder.html"), "cannot be written")
    (folder / "audit.json").write_text("{}")
    refused(run(folder, "--audit", folder / "audit.json"), "an audit found (it has no 'violated')")
    (folder / "ledger.jsonl").write_text("no ledger\n")
    refused(run(folder), "is not a quietgrad ledger")
