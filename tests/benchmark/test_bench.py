"""Rounds, ratios, and what becomes of those who cannot take part."""

import pytest
from benchmarks.bench import Bench, NonPrivate, Opacus, Quietgrad, Watch, workloads
from benchmarks.bench.steps import is_installed

from . import standins
from .standins import StandIn


def run(bench: Bench) -> dict:
    """The rows by label."""
    bench.run(Watch(lambda text: None, lambda text: None))
    return {row.implementation.label: row for row in bench.rows}


def bench(*names: str, implementations=(), **options) -> Bench:
    kinds = [workloads.resolve(name) for name in names]
    options = {"rounds": 3, "with_memory": False} | options
    return Bench(kinds, list(implementations), **options)


def test_everybody_is_timed_in_every_round():
    rows = run(bench("picture", implementations=[Quietgrad(), Quietgrad("layer-wise")]))
    assert list(rows) == ["non-private", "quietgrad all-layer", "quietgrad layer-wise"]
    base = rows["non-private"].time
    for row in rows.values():
        assert row.failure is None
        assert row.layout in ("default", "channels-last")
        assert len(row.time.seconds) == 3
        pairs = zip(row.time.seconds, base.seconds, strict=True)
        assert row.time.ratios == tuple(own / plain for own, plain in pairs)
    assert base.ratio == 1.0
    assert base.steps_before >= 4
    assert rows["quietgrad all-layer"].time.steps_before == 16


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        (standins.refuse_at_once, "refused", "ValueError: no such layers, please"),
        (standins.refuse_later, "refused", "SampleMixingError: samples are mixed"),
        (standins.not_implemented, "refused", "NotImplementedError: tied weights"),
        (standins.break_at_once, "fails", "IndexError: position ids have batch size 1"),
        (standins.break_in_a_round, "fails", "IndexError: out of luck"),
    ],
)
def test_who_fails_is_reported_and_the_others_go_on(act, status, reason):
    rows = run(bench("line", implementations=[StandIn("peer", act), Quietgrad()]))
    failed = rows["peer"]
    assert (failed.failure.status, failed.failure.reason) == (status, reason)
    assert failed.time is None
    assert failed.as_dict()["status"] == status
    assert failed.as_dict()["reason"] == reason
    assert len(rows["quietgrad all-layer"].time.ratios) == 3


@pytest.mark.skipif(not is_installed(), reason="opacus is not installed")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_peer_that_cannot_take_a_stock_layer_is_reported(mode):
    rows = run(bench("recurrent", implementations=[Opacus(mode), Quietgrad()]))
    assert rows[f"opacus {mode}"].failure.status == "refused"
    assert "GRU" in rows[f"opacus {mode}"].failure.reason
    assert rows["quietgrad all-layer"].failure is None


def test_what_is_not_installed_is_missing():
    rows = run(bench("unbuildable", "line", implementations=[Quietgrad()]))
    assert rows["non-private"].failure is None  # of the second workload, which goes on
    missing = bench("unbuildable", implementations=[Quietgrad()])
    for row in run(missing).values():
        assert row.failure.status == "missing"
        assert "pip install 'quietgrad[someextra]'" in row.failure.reason


def test_without_a_base_there_are_times_and_no_ratios(monkeypatch):
    def prepare(self, workload, count):
        raise ValueError("not today")

    monkeypatch.setattr(NonPrivate, "prepare", prepare)
    row = run(bench("line", implementations=[Quietgrad()]))["quietgrad all-layer"]
    assert (len(row.time.seconds), row.time.ratio) == (3, None)
    assert row.as_dict()["time"]["ratio"] is None


def test_an_interruption_keeps_complete_rounds():
    interrupted = bench("line", "picture", implementations=[StandIn("peer", standins.interrupt)])
    with pytest.raises(KeyboardInterrupt):
        run(interrupted)
    # Four steps to settle and two rounds; the third was cut.
    assert [(row.kind.name, len(row.time.seconds)) for row in interrupted.rows] == [
        ("line", 2),
        ("line", 2),
    ]


def test_several_logical_sizes():
    both = bench("line", implementations=[Quietgrad()], physical_per_logical=(1, 8), rounds=1)
    run(both)
    found = [(row.physical_per_logical, row.samples) for row in both.rows]
    assert found == [(1, 5), (1, 5), (8, 40), (8, 40)]
    for row in both.rows:
        per_sample = row.as_dict()["seconds_per_sample"]
        assert per_sample == pytest.approx(row.time.seconds[0] / row.samples)


@pytest.mark.parametrize("options", [{"rounds": 0}, {"physical_per_logical": (1, 0)}])
def test_counts_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        bench("line", **options)


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="workload 'line' exists already"):
        workloads.register(standins.KINDS[0])
