"""`python -m benchmarks.bench`, on stand-ins."""

import json
import signal
from functools import partial

import pytest
from benchmarks.bench import command, versions, workloads

from cli.helpers import assert_refused, run, text_of

from . import standins
from .standins import StandIn

QUICK = ["--rounds", "2", "--no-memory", "--peers", "none"]


run_bench = partial(run, program=command.bench)


def run_json(*arguments: str) -> dict:
    result = run_bench(*arguments, *QUICK, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_has_all_it_takes_to_repeat_it():
    report = run_json("--workloads", "line,picture")
    assert list(report) == [
        *("date", "command", "complete", "rounds", "sweep", "machine", "versions", "rows")
    ]
    assert report["complete"] is True
    assert report["versions"] == versions()
    assert {"cores", "processor", "torch_threads", "memory_bytes"} <= set(report["machine"])
    assert [(row["workload"], row["label"]) for row in report["rows"]] == [
        (workload, label)
        for workload in ("line", "picture")
        for label in ("non-private", "quietgrad all-layer", "quietgrad layer-wise")
    ]
    for row in report["rows"]:
        assert (row["status"], row["reason"], row["memory"]) == ("measured", None, None)
        assert row["layout"] in ("default", "channels-last")
        time = row["time"]
        assert time["rounds"] == len(time["seconds_of_rounds"]) == 2
        for spread in (time["seconds"], time["ratio"]):
            low, high = spread["quartiles"]
            assert 0 < low <= spread["median"] <= high
    private = report["rows"][1]
    assert private["implementation"] == "quietgrad"
    assert [private[key] for key in ("grouping", "strategy", "noise")] == [
        *("all-layer", "auto", "fast")
    ]


def test_every_combination_is_measured():
    report = run_json(
        *("--workloads", "line", "--groupings", "all-layer", "--noise", "both"),
        *("--strategies", "ghost,keep", "--physical-per-logical", "1,8"),
    )
    labels = [row["label"] for row in report["rows"] if row["physical_per_logical"] == 8]
    assert labels == [
        "non-private",
        "quietgrad all-layer, ghost",
        "quietgrad all-layer, keep",
        "quietgrad all-layer, ghost, secure noise",
        "quietgrad all-layer, keep, secure noise",
    ]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table(columns):
    arguments = ["--workloads", "line", *QUICK, "--physical-per-logical", "8"]
    result = run_bench(*arguments, columns=columns)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "A step, and its ratio to the non-private one" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    heading = lines.index("line, batch 8 x 5".split())
    names = ["non-private", "quietgrad all-layer", "quietgrad layer-wise"]
    for name, line in zip(names, lines[heading + 1 :], strict=False):
        assert line[:-2] == name.split()  # then milliseconds and a ratio
    assert lines[heading + 1][-1] == "1.00"
    assert "Geometric" not in result.stdout  # of one workload there is none
    assert "2 rounds of 3 steps take about" in result.stderr


@pytest.mark.slow
def test_memory_is_in_the_table():
    arguments = ["--workloads", "line", "--rounds", "1", "--peers", "none"]
    result = run_bench(*arguments, "--groupings", "all-layer")
    assert result.exit_code == 0, result.output
    assert "MB: peak memory over the state before the first step" in text_of(result)
    assert "MB ratio" in result.stdout
    assert "line: memory of 2, each in a process of its own" in result.stderr


def test_who_fails_is_in_the_table(monkeypatch):
    peer = StandIn("peer", standins.break_at_once)
    monkeypatch.setattr(command, "chosen_peers", lambda text: [peer])
    result = run_bench("--workloads", "line", *QUICK)
    assert result.exit_code == 0
    assert "line, peer: fails. IndexError: position ids have batch size 1" in text_of(result)


def test_an_interruption_shows_what_was_measured(monkeypatch, tmp_path):
    peer = StandIn("peer", standins.interrupt)
    monkeypatch.setattr(command, "chosen_peers", lambda text: [peer])
    file = tmp_path / "cut.json"
    options = ["--no-memory", "--rounds", "5", "--json", str(file)]
    result = run_bench("--workloads", "line,picture", *options)
    assert result.exit_code == 130
    assert "interrupted: this is what was measured so far" in text_of(result)
    report = json.loads(file.read_text())
    assert report["complete"] is False
    assert {row["time"]["rounds"] for row in report["rows"]} == {2}
    assert {row["workload"] for row in report["rows"]} == {"line"}


def test_an_interruption_is_written_and_said(monkeypatch, tmp_path):
    peer = StandIn("peer", standins.interrupt)
    monkeypatch.setattr(command, "chosen_peers", lambda text: [peer])
    options = ["--no-memory", "--rounds", "5", "--out", str(tmp_path)]
    assert run_bench("--workloads", "line,picture", *options).exit_code == 130
    (file,) = tmp_path.glob("*.md")
    assert "(interrupted)" in file.read_text().splitlines()[0]
    assert "The run was interrupted: this is what was measured until then." in file.read_text()
    (data,) = tmp_path.glob("*.json")
    assert json.loads(data.read_text())["complete"] is False


@pytest.mark.parametrize("act", [standins.interrupt_at_once, standins.terminate_at_once])
def test_an_interruption_before_anything_was_measured(act, monkeypatch, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "chosen_peers", lambda text: [StandIn("peer", act)])
    out, file = tmp_path / "out", tmp_path / "none.json"
    options = ["--workloads", "line", "--out", str(out), "--json", str(file)]
    result = run_bench(*options)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == (
        "Error: interrupted before the first round was over: nothing was measured"
    )
    assert not out.exists()
    assert not file.exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_json_alone_is_not_accompanied():
    result = run_bench("--workloads", "line", *QUICK, "--json", "-")
    assert result.stderr == ""


@pytest.mark.slow
def test_dated_files_never_replace_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmarks/bench/__main__.py", "--out", "somewhere"])
    for _ in range(2):
        result = run_bench("--workloads", "line,picture", *QUICK, "--out", str(tmp_path))
        assert result.exit_code == 0, result.output
    endings = sorted(file.name[len("2026-11-16-") :] for file in tmp_path.iterdir())
    assert endings == [
        *("bench-2.json", "bench-2.md", "bench-2.svg", "bench.json", "bench.md", "bench.svg")
    ]
    (first,) = tmp_path.glob("*-bench.md")
    text = first.read_text()
    assert "`python -m benchmarks.bench --out somewhere`" in text
    assert "| line | 5 | quietgrad layer-wise |" in text
    assert "**Geometric means over all workloads**" in text
    assert "| quietgrad all-layer | 2 of 2 |" in text
    assert "interrupted" not in text
    assert f"torch {versions()['torch']}" in text
    assert f"![The ratios, drawn]({first.stem}.svg)" in text


@pytest.fixture
def small_sweeps(monkeypatch):
    monkeypatch.setattr(workloads, "_TOKENS", (4, 8))
    monkeypatch.setattr(workloads, "_WIDTH", 8)
    monkeypatch.setattr(workloads, "_HEADS", 2)
    monkeypatch.setattr(workloads, "_BATCHES", (1, 2))
    replaced = {"cnn": standins.KINDS[1], "mlp": standins.KINDS[0]}
    monkeypatch.setattr("benchmarks.bench.workloads._KINDS", replaced)


@pytest.mark.usefixtures("small_sweeps")
@pytest.mark.every_nth(2)
@pytest.mark.parametrize("sweep", ["tokens", "batch"])
def test_a_sweep(sweep, tmp_path):
    options = ["--sweep", sweep, "--rounds", "1", "--peers", "none", "--out", str(tmp_path)]
    result = run_bench(*options)
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.glob("*.json")
    report = json.loads(file.read_text())
    assert report["sweep"] == sweep
    assert all(row["time"]["ratio"] and row["memory"] is None for row in report["rows"])
    if sweep == "tokens":
        assert {row["workload"] for row in report["rows"]} == {"block-4", "block-8"}
    else:
        assert {row["batch_size"] for row in report["rows"]} == {1, 2}
        assert "us per sample" in result.stdout
    assert "Geometric" not in result.stdout
    assert (tmp_path / f"{file.stem}.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "lime"], "unknown workload 'lime'. Did you mean 'line'?"),
        (["--workloads", ","], "--workloads: expected at least one name, got none"),
        (["--groupings", "all-layers"], "unknown grouping 'all-layers'. Did you mean 'all-layer'?"),
        (["--strategies", "gost"], "unknown strategy 'gost'. Did you mean 'ghost'?"),
        (["--peers", "opacus-hook"], "unknown peer 'opacus-hook'. Did you mean 'opacus-hooks'?"),
        (["--device", "cuda:7"], "device"),
        (["--device", "gpu"], "device"),
        (["--sweep", "token"], "unknown sweep 'token'. Did you mean 'tokens'?"),
        (["--sweep", "batch", "--workloads", "line"], "either --sweep or --workloads, got both"),
        (["--physical-per-logical", "two"], "--physical-per-logical two: expected numbers"),
        (["--physical-per-logical", "0"], "physical_per_logical=0 is not valid"),
        (["--rounds", "0"], "rounds=0 is not valid"),
        (["--plot", "ratios.txt"], "expected a name that ends in .png, .svg, .pdf"),
    ],
)
def test_a_mistake_ends_with_a_clear_message_and_code_2(arguments, message):
    assert_refused(run_bench(*arguments), message)


def test_a_peer_that_is_asked_for_must_be_installed(monkeypatch):
    monkeypatch.setattr(command, "is_installed", lambda package: False)
    assert_refused(run_bench("--peers", "opacus-ghost"), "opacus is not installed")
    assert_refused(run_bench("--peers", "fastdp-all-layer"), "fastDP is not installed")
    assert command.chosen_peers(None) == []
