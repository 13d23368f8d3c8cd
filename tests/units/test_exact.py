"""The clipped sum over units is that of a loop over units: every case, clipping and grouping."""

from functools import cache

import pytest
import torch
from tests.contract.cases import CASES, precision
from tests.contract.cases.table import B
from tests.contract.oracle import TOLERANCES, assert_same_grads, loop

import quietgrad as qg
from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad.factors import Combined, Dense, Gather, Outer, Pullback, Pulled, Routed
from quietgrad.factors.membership import Membership

from . import helpers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")

PARTITIONS = ("aabc", "abbb", "aabb", "aaaa")
TOLERANCE = TOLERANCES[torch.float64]


@cache
def known(name):
    problem = CASES[name].problem(torch.float64)
    with precision(torch.float64):
        return problem, loop(problem.model, problem, B)


def check(name, units, *, verify):
    problem, by_record = known(name)
    places = {unit: [i for i, each in enumerate(units) if each == unit] for unit in units}
    truth = {
        parameter: torch.stack([grads[own].mean(0) for own in places.values()])
        for parameter, grads in by_record.items()
    }
    with precision(torch.float64):
        found = qg.per_sample_grads(problem.model, problem, verify=verify, units=units)
    assert_same_grads(found, truth, TOLERANCE)


@pytest.mark.every_nth(7)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_units_are_means_over_their_records(name):
    place = list(CASES).index(name)
    check(name, PARTITIONS[place % 3], verify=place % 21 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("units", PARTITIONS)
@pytest.mark.parametrize("name", CASES)
def test_every_case_with_every_partition(name, units):
    for verify in (True, False):
        check(name, units, verify=verify)


@pytest.mark.parametrize("clipping", clippings.names())
def test_an_engine_sums_what_the_loop_does(clipping):
    """By each grouping, over several steps with other people and other records."""
    kinds = (*[name for name in groupings.names() if name != "block-wise"], "uniform:2")
    for grouping in kinds if clipping == "auto-s" else kinds[:2]:
        options = {"clipping": clipping, "grouping": grouping, "radius": 0.4}
        model, engine = helpers.attach(physical_batch_size=6, **options)
        dataset, expected, rate = helpers.data(), helpers.weights(model), 0.5
        for _ in range(3):
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
            with helpers.without_noise():
                ((*micro_batches,),) = helpers.train(model, engine, 1)
            engine.load_state_dict(engine.state_dict())  # goes on with the pass
            records = [record for each in micro_batches for record in each]
            twin = helpers.build()
            twin.load_state_dict(before)
            total = helpers.clipped_loop(twin, dataset, records, engine.groups, clipping)
            step = {n: rate * total.get(n, torch.zeros_like(p)) / 6 for n, p in before.items()}
            expected = torch.cat([(before[n] - step[n]).flatten() for n in before])
            torch.testing.assert_close(helpers.weights(model), expected, rtol=1e-9, atol=1e-12)
        engine.detach()


def factors():
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    records, positions = 6, 3
    ids = torch.randint(4, (records, positions), generator=generator)
    outer = Outer(randn(records, positions, 4), randn(records, positions, 2))
    gather = Gather(ids, randn(records, positions, 2), torch.Size((4, 2)))
    source = randn(2, 4).requires_grad_()
    pulled = Pulled(outer, Pullback((source * 2).T, source, isometric=False))
    stack = torch.Size((4, 4, 2))
    return {
        "outer": outer,
        "gather": gather,
        "dense": Dense(randn(records, 4, 2)),
        "combined": Combined([outer, gather]),
        "pulled": pulled,
        "routed": Routed(ids - 1, outer.rows, outer.cols, stack),
    }


@pytest.mark.parametrize("counts", [(1, 3, 2), (2, 2, 2), (3, 3), (5, 1)])
@pytest.mark.parametrize("kind", factors())
def test_merged_factors_are_sums_of_their_records(kind, counts):
    factor = factors()[kind]
    by_record = factor.materialize().split(counts)
    truth = torch.stack([each.sum(0) for each in by_record])
    merged = factor.merged(Membership(counts))
    torch.testing.assert_close(merged.materialize(), truth)
    torch.testing.assert_close(merged.sq_norm(), truth.flatten(1).square().sum(1))
    weights = torch.linspace(-1, 2, len(counts), dtype=torch.float64)
    expected = torch.einsum("b,b...->...", weights, truth)
    torch.testing.assert_close(merged.weighted_sum(weights), expected)
