"""The package keeps its shape: few files, short import chains, a step that few files make up."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import house


@pytest.fixture(scope="module")
def measured():
    return house.measure()


@pytest.mark.parametrize("name", house.LIMITS)
def test_no_figure_grows_beyond_its_limit(measured, name):
    figures, details = measured
    assert figures[name] <= house.LIMITS[name], "\n".join(details.get(name, []))
