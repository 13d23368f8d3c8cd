"""How the radius is divided: equally, in proportion, or as given."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietgrad.grouping import AllLayer, LayerWise, TypeWise, Uniform, resolve, sensitivity
from quietgrad.grouping.base import radii_of

from .zoo import MODELS

MLP = MODELS["mlp"]()


def radii(grouping, model=MLP):
    return [group.radius for group in resolve(grouping, model)]


def test_proportions_in_order():
    assert radii(LayerWise(radius=14.0, proportions=[2, 3, 6])) == pytest.approx([4, 6, 12])


def test_proportions_by_name():
    grouping = LayerWise(radius=14.0, proportions={"4": 6, "0": 2, "2": 3})
    assert radii(grouping) == pytest.approx([4, 6, 12])


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30), st.floats(1e-3, 1e3))
def test_proportions_add_up_to_the_radius(proportions, radius):
    names = [str(place) for place in range(len(proportions))]
    assert math.hypot(*radii_of(names, radius, proportions, None)) == pytest.approx(radius)


def test_absolute_radii_determine_the_total():
    grouping = LayerWise(radii=[2, 3, 6])
    assert radii(grouping) == [2, 3, 6]
    assert grouping.radius == 7.0
    assert sensitivity(resolve(grouping, MLP), "auto-s") == pytest.approx(7.0)


def test_absolute_radii_by_name():
    assert radii(LayerWise(radii={"4": 6, "0": 2, "2": 3})) == [2, 3, 6]


def test_a_copy_keeps_the_radii():
    grouping = dataclasses.replace(LayerWise(radii=[2, 3, 6]))
    assert grouping == LayerWise(radii=[2, 3, 6])


def test_proportions_and_radii_exclude_each_other():
    with pytest.raises(ValueError, match="not both"):
        AllLayer(proportions=[1], radii=[1])


def test_a_radius_that_contradicts_the_radii_is_refused():
    with pytest.raises(ValueError, match="contradicts"):
        LayerWise(radius=2.0, radii=[2, 3, 6])


@pytest.mark.parametrize("field", ["proportions", "radii"])
@pytest.mark.parametrize(
    "numbers", [[1, 2, 0], [1, 2, -3], [1, 2, math.nan], [1, 2, math.inf], {"0": 0.0}, []]
)
def test_numbers_are_positive_and_finite(field, numbers):
    with pytest.raises(ValueError, match=field):
        LayerWise(**{field: numbers})


@pytest.mark.parametrize("field", ["proportions", "radii"])
@pytest.mark.parametrize("numbers", ["123", 5, [1, "2"], {"0": None}])
def test_numbers_are_numbers(field, numbers):
    with pytest.raises(TypeError, match=field):
        LayerWise(**{field: numbers})


@pytest.mark.parametrize("field", ["proportions", "radii"])
def test_there_is_one_number_per_group(field):
    with pytest.raises(ValueError, match=r"2 numbers for 3 groups: \['0', '2', '4'\]"):
        resolve(LayerWise(**{field: [1, 2]}), MLP)
    with pytest.raises(ValueError, match=r"unknown: \['9'\], missing: \['4'\]"):
        resolve(LayerWise(**{field: {"0": 1, "2": 1, "9": 1}}), MLP)


def test_every_style_takes_proportions():
    assert radii(Uniform(2, radius=5.0, proportions=[3, 4])) == pytest.approx([3, 4])
    assert radii(TypeWise(proportions={"linear": 5})) == pytest.approx([1])


def test_the_callers_numbers_are_copied():
    numbers = [2.0, 3.0, 6.0]
    grouping = LayerWise(radii=numbers)
    numbers[0] = 100.0
    assert radii(grouping) == [2, 3, 6]
