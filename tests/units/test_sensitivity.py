"""Leaving one unit out moves the clipped sum by at most the stated sensitivity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.test_sensitivity import distance, problems

import quietgrad as qg
from quietgrad import clipping as clippings

each_example_takes_many_sums = settings(max_examples=max(5, settings().max_examples // 8))
GROUPINGS = ("all-layer", "layer-wise", "param-wise", "type-wise", "uniform:2")


@st.composite
def units(draw, records):
    """Of each record its unit, those of a unit side by side."""
    begins = draw(st.lists(st.booleans(), min_size=records, max_size=records))
    return torch.tensor(begins).long().cumsum(0).tolist()


def largest_move(problem, owners, **options):
    """In units of the sensitivity, by leaving out all records of one unit."""

    def summed(keep):
        own = [owners[place] for place in keep]
        closure = lambda: problem(torch.tensor(keep))  # noqa: E731
        return qg.clipped_sum(problem.model, closure, units=own, verify=False, **options)

    everyone = list(range(len(owners)))
    full, moves = summed(everyone), []
    for unit in set(owners):
        rest = [place for place in everyone if owners[place] != unit]
        moves.append(distance(full.grads, summed(rest).grads if rest else None) / full.sensitivity)
    assert len(full.norms) == len(set(owners))
    return max(moves)


@pytest.mark.parametrize("place", range(len(clippings.names())))
@each_example_takes_many_sums
@given(problem=problems(), data=st.data())
def test_one_unit_moves_the_sum_by_at_most_the_sensitivity(place, problem, data):
    owners = data.draw(units(len(problem.inputs[0])))
    options = {"clipping": clippings.names()[place], "grouping": GROUPINGS[place % len(GROUPINGS)]}
    assert largest_move(problem, owners, **options) <= 1 + 1e-6


def test_records_clipped_one_by_one_would_be_noticed():
    """A unit of four records that are each clipped moves the sum four times as far."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(3, 1).double(), torch.randn(1, 3).double().expand(4, 3) * 100

    def closure():
        return layer(x).sum(1)

    options = {"clipping": "abadi", "radius": 1.0}
    alone = qg.clipped_sum(layer, closure, **options)
    unit = qg.clipped_sum(layer, closure, units="aaaa", **options)
    assert distance(alone.grads, None) == pytest.approx(4)
    assert distance(unit.grads, None) == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [("abc", "has 3 entries for 4 losses"), ("abab", "side by side: sort them by unit")],
)
def test_wrong_units_are_refused(given, said):
    layer = torch.nn.Linear(3, 1)
    with pytest.raises(ValueError, match=said):
        qg.clipped_sum(layer, lambda: layer(torch.ones(4, 3)).sum(1), units=given)


def test_a_unit_with_a_record_that_is_not_finite_is_dropped_as_a_whole():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(3, 2).double(), torch.randn(5, 3).double()
    x[1, 0] = torch.nan
    broken = qg.clipped_sum(layer, lambda: layer(x).sin().sum(1), units="aabcc")
    clean = qg.clipped_sum(layer, lambda: layer(x[2:]).sin().sum(1), units="bcc")
    assert broken.nonfinite == 1
    assert distance(broken.grads, clean.grads) <= 1e-12
