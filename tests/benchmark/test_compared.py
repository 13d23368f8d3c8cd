"""Ratios to the non-private step and to Opacus, their means, and the words for them."""

import pytest
from benchmarks.bench import Failure, Memory, NonPrivate, Opacus, Quietgrad, Row, Time
from benchmarks.bench.picture import ratios_figure
from benchmarks.bench.tables import compared, grids, means

from .standins import KINDS

LINE, PICTURE = KINDS[:2]


def row(kind, implementation, seconds=None, *, base=1.0, megabytes=None):
    """Two rounds; without seconds it was refused."""
    if seconds is None:
        return Row(kind, implementation, 1, failure=Failure("refused", "no"))
    memory = None if megabytes is None else Memory(0, megabytes * 1_000_000, "weighed")
    time = Time((seconds, seconds), (seconds / base,) * 2, 4)
    return Row(kind, implementation, 1, "channels-last", None, time, memory)


@pytest.fixture
def rows():
    return [
        row(LINE, Quietgrad(), 2.0, megabytes=30),
        row(LINE, NonPrivate(), 1.0, megabytes=20),
        row(LINE, Opacus("hooks"), 8.0, megabytes=40),
        row(LINE, Opacus("ghost"), 3.0, megabytes=10),
        row(PICTURE, NonPrivate(), 1.0, megabytes=10),
        row(PICTURE, Quietgrad(), 8.0, megabytes=15),
        row(PICTURE, Opacus("hooks"), 4.0, megabytes=10),
        row(PICTURE, Opacus("ghost")),
    ]


def test_beside_the_fastest_opacus(rows):
    line, picture = compared(rows)
    assert [each.label for each in line][:2] == ["non-private", "quietgrad all-layer"]
    assert [each.speedup for each in line] == [3.0, 1.5, 3 / 8, 1.0]
    assert [each.slowdown for each in picture] == [1.0, 8.0, 4.0, None]
    assert [each.speedup for each in picture] == [4.0, 0.5, 1.0, None]
    assert [each.memory for each in picture] == [1.0, 1.5, 1.0, None]


def test_means_are_of_who_ran_everywhere(rows):
    found = {each.label: each for each in means(compared(rows))}
    assert list(found) == ["quietgrad all-layer", "opacus hooks", "opacus ghost"]
    own = found["quietgrad all-layer"]
    assert (own.slowdown, own.memory) == (pytest.approx(4.0), pytest.approx(1.5))
    assert own.speedup == pytest.approx((1.5 * 0.5) ** 0.5)
    ghost = found["opacus ghost"]
    assert (ghost.ran, ghost.slowdown, ghost.speedup, ghost.memory) == (1, None, None, None)


def test_the_words(rows):
    table, mean = grids(rows, None, is_complete=True)
    assert table.header == (
        *("workload", "batch", "implementation", "layout", "ms", "ratio", "vs opacus"),
        *("MB", "MB ratio"),
    )
    line, picture = table.sections
    assert line[1] == (
        *("line", "5", "quietgrad all-layer", "c", "2000.0", "2.00", "1.50x faster"),
        *("30", "1.50"),
    )
    assert [each[6] for each in picture] == ["4.00x faster", "2.00x slower", "the same", "-"]
    assert picture[3][4:] == ("refused", "-", "-", "-", "-")
    assert mean.sections[0][2] == ("opacus ghost", "1 of 2", "-", "-", "-")
    assert len(grids(rows, None, is_complete=False)) == 1


def test_what_was_not_measured_has_no_column():
    (table,) = grids([row(LINE, NonPrivate(), 1.0)], None, is_complete=True)
    assert table.header[-1] == "ratio"


def test_the_legend_covers_no_bar():
    pytest.importorskip("matplotlib")
    ratios = {f"implementation {i}, in many words": {"a": 2.0, "b": 9.0 + i} for i in range(9)}
    figure = ratios_figure(ratios, title="Bars", axis="ratio")
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    assert axes.get_legend() is None
    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0
