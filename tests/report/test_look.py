"""Curves and colours."""

import re
from importlib.resources import files

import pytest

from quietgrad.report.html import Chart, decades, ticks


def test_a_chart_draws_every_point_within_its_frame():
    chart = Chart("c", "A <title>", [(1, 0.2), (2, 0.9), (3, 0.4)], "epoch", "a&b", is_share=True)
    svg = str(chart.svg())
    assert "A &lt;title&gt;" in svg
    assert "a&amp;b" in svg
    points = re.search(r'points="([^"]*)"', svg)[1].split()
    assert len(points) == 3
    for point in points:
        x, y = map(float, point.split(","))
        assert 0 < x < 400
        assert 0 < y < 250
    heights = [float(point.split(",")[1]) for point in points]
    assert heights[1] < heights[2] < heights[0]


@pytest.mark.parametrize("points", [[(1, 0.0)], [(1, 5.0), (2, 5.0)], [(1, -3.0)], [(0, 1e-12)]])
def test_flat_curves_are_drawn(points):
    assert "polyline" in Chart("c", "t", points, "x", "y").svg()


def test_nothing_is_drawn_of_nothing():
    assert Chart("c", "t", [], "x", "y").svg() == ""
    assert Chart("c", "t", [(1e-5, float("inf"))], "x", "y", is_log=True).svg() == ""


def test_ticks_are_round():
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.5, 1.0])
    assert ticks(3.0, 3.0) == [3.0]
    assert decades(1e-12, 1e-2) == pytest.approx([1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12])


def luminance(color):
    parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_is_enough_in_every_theme():
    """WCAG AA asks for 4.5 to 1."""
    style = files("quietgrad.report").joinpath("style.css").read_text()
    themes = re.findall(r":root \{(.*?)\}", style, re.S)
    assert len(themes) == 3
    for theme in themes:
        colors = {
            name: value if len(value) == 7 else "#" + "".join(2 * each for each in value[1:])
            for name, value in re.findall(r"--([\w-]+): (#\w+)", theme)
        }
        for text, ground in [
            *((text, "paper") for text in ("ink", "quiet", "accent", "bad")),
            *((text, "panel") for text in ("ink", "accent")),
            *((text, "bad-panel") for text in ("ink", "bad")),
            *((text, "soft-panel") for text in ("ink", "soft")),
        ]:
            light = sorted((luminance(colors[text]), luminance(colors[ground])))
            assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5, (text, ground)
