import xml.etree.ElementTree as ElementTree

import pytest
import torch

from quietgrad.diagnostics import Recorder, measure
from quietgrad.diagnostics.records import Record
from quietgrad.plots.diagnostics import diagnostics_figure

from .helpers import made
from .points import point
from .test_recorder import train

pytest.importorskip("matplotlib")
STARTS = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml"}


def history(steps, **options):
    subject = made("mlp")
    recorder = Recorder(subject.model, averages=(1, 4), **options)
    train(subject, recorder, steps)
    return recorder.history


@pytest.mark.parametrize("ending", STARTS)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_history_is_drawn(tmp_path, ending, steps):
    file = tmp_path / f"figure.{ending}"
    diagnostics_figure(history(steps), title="an mlp").savefig(file)
    content = file.read_bytes()
    assert content.startswith(STARTS[ending])
    if ending == "svg":
        ElementTree.fromstring(content)


def test_the_figure_says_what_it_shows():
    figure = diagnostics_figure(history(3), title="an mlp")
    assert figure.get_suptitle() == "NOT PRIVATE (raw gradients): an mlp"
    norms, noise, cosines, clipped = figure.axes
    assert "Norms" in norms.get_title()
    assert "Sampling noise" in noise.get_title()
    assert "Cosines" in cosines.get_title()
    assert "clipped" in clipped.get_title()
    labels = [text.get_text() for text in noise.get_legend().get_texts()]
    assert labels == ["samples", "averages of 4", "mean gradient"]


def test_lines_are_what_was_measured():
    shown = history(3)
    figure = diagnostics_figure(shown, title="an mlp")
    line = next(line for line in figure.axes[2].lines if line.get_label() == "clipped sum")
    assert list(line.get_xdata()) == [0, 1, 2]
    assert list(line.get_ydata()) == [record.measurement.clipped_cosine for record in shown]


def test_several_groups_have_a_band():
    figure = diagnostics_figure(history(3, grouping="layer-wise", radius=0.5), title="an mlp")
    labels = [text.get_text() for text in figure.axes[3].get_legend().get_texts()]
    assert labels == ["least to most in a group", "mean over groups"]


def test_what_is_undefined_leaves_a_gap(tmp_path):
    """At an optimum there is no direction, and the mean gradient is zero."""
    records = [Record(0, point(1.0, -3.0)), Record(1, point(1.0, -3.0, start=-1.0))]
    diagnostics_figure(records, title="two points").savefig(tmp_path / "figure.png")


def test_batches_of_other_sizes_may_lack_an_average():
    subject = made("mlp")
    some = measure(subject.model, lambda: subject.losses(slice(0, 3)), averages=(1,))
    figure = diagnostics_figure([*history(2), Record(2, some)], title="an mlp")
    line = next(line for line in figure.axes[1].lines if line.get_label() == "averages of 4")
    assert torch.tensor(line.get_ydata()).isnan().tolist() == [False, False, True]


def test_an_empty_history_is_refused():
    with pytest.raises(ValueError, match="history is empty"):
        diagnostics_figure([], title="nothing")


def test_a_single_step_is_seen():
    figure = diagnostics_figure(history(1), title="an mlp")
    for axes in figure.axes:
        assert axes.get_xlim() == (-1, 1)
        assert all(tick == int(tick) for tick in axes.get_xticks())
    bands = [each for each in figure.axes[0].collections if "5 to 95" in each.get_label()]
    assert bands[0].get_paths()[0].get_extents().width > 0


def test_cosines_near_one_can_be_told_apart():
    cosines = diagnostics_figure(history(3), title="an mlp").axes[2]
    low, high = cosines.get_ylim()
    shown = [y for line in cosines.lines for y in line.get_ydata()]
    assert low <= min(shown)
    assert max(shown) <= high <= 1.05
    same = [Record(0, point(1.0, 1.0)), Record(1, point(1.0, 1.0))]
    low, high = diagnostics_figure(same, title="all alike").axes[2].get_ylim()
    assert 0.9 < low < 1 < high
