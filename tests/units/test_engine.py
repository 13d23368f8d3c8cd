"""An engine with units: micro-batches, resuming, and whatever else an engine can be given."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import DistributedTrainingError, LossError

from .helpers import (
    CLASSES,
    COUNTS,
    FEATURES,
    attach,
    build,
    clipped_loop,
    data,
    gradient,
    ids,
    train,
    units_of,
    weights,
    without_noise,
)


def released(**options):
    """Weights after some steps without noise, and the records of each step."""
    model, engine = attach(**options)
    with without_noise():
        seen = train(model, engine, 4)
    records = [[record for micro in step for record in micro] for step in seen]
    return weights(model), records, [len(step) for step in seen]


def test_micro_batches_change_nothing():
    whole, records, _ = released(physical_batch_size=None)
    for size in (3, 4, 7):
        parts, same, counts = released(physical_batch_size=size)
        assert same == records
        assert max(counts) > 1
        torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)


def test_units_of_one_record_train_as_records_do():
    counts = (1,) * 20
    alone, _, _ = released(counts=counts, records_per_unit=5)
    records, _, _ = released(counts=counts, units=None, records_per_unit=None)
    assert torch.equal(alone, records)


def test_a_unit_with_very_many_records_is_one_unit():
    """Its gradient is the mean over all that take part, and beside it units of one are exact."""
    counts = (1, 1500, 2, 1, 30, 1, 1, 3)
    options = {"counts": counts, "records_per_unit": 1200, "clipping": "abadi", "radius": 0.2}
    model, engine = attach(sampling="full-batch", batch_size=len(counts), **options)
    twin = build()
    with without_noise():
        ((*parts,),) = train(model, engine, 1)
    records = [record for part in parts for record in part]
    assert [len(part) for part in parts] == [1200 + 30, 3 + 2 + 4]
    total = clipped_loop(twin, data(counts), records, engine.groups, "abadi", counts=counts)
    for name, parameter in twin.named_parameters():
        expected = parameter - 0.5 * total[name] / len(counts)
        torch.testing.assert_close(model.get_parameter(name), expected, rtol=1e-9, atol=1e-12)


def test_the_rate_is_that_of_units_and_not_of_records():
    """12 people have 33 records: what is accounted for 4 people of 12 is not 4 records of 33."""
    model, engine = attach(batch_size=4)
    train(model, engine, 2)
    (event,) = engine.ledger.events
    assert event.sampling == Poisson(4 / 12) == Poisson(engine.sample_rate)
    assert engine.steps_per_epoch == 3
    wrong = Ledger([GaussianEvent(1.0, Poisson(4 / 33), steps=2)])
    assert wrong.epsilon(1e-3) < 0.8 * engine.epsilon()


def test_leaving_a_unit_out_moves_the_sum_within_the_sensitivity():
    """A unit with many large records moves it no further than one with a single record."""

    def summed(kept):
        owners = ids()
        places = [i for i, owner in enumerate(owners) if int(owner.split()[1]) in kept]
        x, y = (tensor[places] for tensor in data().tensors)
        model, engine = attach(
            dataset=TensorDataset(x * 30, y),
            units=[owners[place] for place in places],
            sampling="full-batch",
            batch_size=len(kept),
            records_per_unit=5,
            clipping="abadi",
            radius=0.3,
        )
        before = weights(model)
        with without_noise():
            train(model, engine, 1)
        return (before - weights(model)) * len(kept) / 0.5, engine.sensitivity

    everyone = range(len(COUNTS))
    whole, sensitivity = summed(everyone)
    for left_out in (1, 3, 4):
        rest, _ = summed([unit for unit in everyone if unit != left_out])
        assert 0.99 * sensitivity <= float((whole - rest).norm()) <= sensitivity * (1 + 1e-6)


def test_a_run_is_resumed_with_the_same_units():
    options = {"sampling": "shuffled", "adjacency": "replace-one", "batch_size": 5}
    whole, straight = attach(**options)
    expected = train(whole, straight, 3)
    model, engine = attach(**options)
    begun = train(model, engine, 2)
    other, again = attach(build(), **options)
    again.load_state_dict(engine.state_dict())
    # What is left of the pass, with the same records.
    assert begun + train(other, again, 1) == expected
    assert torch.equal(weights(other), weights(whole))
    people = [owner for step in expected for micro in step for owner in units_of(micro)]
    assert len(people) == len(set(people)) == len(COUNTS)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"records_per_unit": 4}, "the state was saved with unit="),
        ({"unit": "patient"}, "the state was saved with unit="),
        ({"units": None, "records_per_unit": None, "batch_size": 16}, "the state was saved with"),
    ],
)
def test_a_state_of_other_units_is_not_loaded(changed, said):
    _, engine = attach()
    _, other = attach(**changed)
    with pytest.raises(qg.QuietgradError, match=said):
        other.load_state_dict(engine.state_dict())


def loop_norms(dataset, losses):
    """Of each unit the norm of its mean gradient at the first weights."""
    model = build()
    found = []
    for own in units_of(range(sum(COUNTS))).values():
        x, y = (tensor[own] for tensor in dataset.tensors)
        grads = gradient(model, x, y, losses)
        found.append(float(torch.cat([g.flatten() for g in grads.values()]).norm()))
    return torch.tensor(found)


def losses_of(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def test_an_adaptive_radius_counts_units():
    norms = loop_norms(data(), losses_of)
    start = float(norms.sort().values[3:5].mean())  # 4 of 12 are within
    radius = qg.AdaptiveRadius(start=start, rate=0.5, count_noise=5.0)
    options = {"sampling": "full-batch", "batch_size": len(COUNTS), "records_per_unit": 5}
    model, engine = attach(radius=radius, clipping="abadi", **options)
    with without_noise():
        train(model, engine, 1)
    expected = radius.moved(start, (4 - 8) / 2, len(COUNTS))
    assert engine.groups[0].radius == pytest.approx(expected, rel=1e-6)


def test_inner_momentum_is_that_of_a_unit():
    """In the second step a unit's gradients at both weights are added up, and clipped once."""
    momentum = qg.InnerOuter(length=1, inner=0.5, outer=None)
    options = {"sampling": "full-batch", "batch_size": len(COUNTS), "records_per_unit": 5}
    model, engine = attach(momentum=momentum, radius=0.3, clipping="abadi", **options)
    dataset, history = data(), [build().state_dict()]
    with without_noise():
        for _ in range(2):
            train(model, engine, 1)
            history.append({n: p.detach().clone() for n, p in model.state_dict().items()})
    twin, total = build(), 0
    for own in units_of(range(sum(COUNTS))).values():
        x, y = (tensor[own] for tensor in dataset.tensors)
        sums = 0
        for weight, state in zip((0.5, 1.0), history, strict=False):
            twin.load_state_dict(state)
            grads = gradient(twin, x, y, losses_of)
            sums = sums + weight * torch.cat([g.flatten() for g in grads.values()])
        total = total + sums * min(1, 0.3 / float(sums.norm()))
    moved = torch.cat([(history[1][n] - history[2][n]).flatten() for n in history[1]])
    torch.testing.assert_close(moved * len(COUNTS) / 0.5, total, rtol=1e-9, atol=1e-12)


class Mirror(nn.Module):
    """A random view whose mean over both values is known: x, or -x."""

    def forward(self, x):
        signs = torch.ones(len(x), dtype=x.dtype)
        signs[::2] = -1
        return x * signs.view(-1, *[1] * (x.ndim - 1))


def test_views_of_records_count_as_one_unit():
    views = qg.SelfAugmentation(Mirror(), 2)

    def seen(model, x, y):
        return views.losses(model, x, y, F.cross_entropy)

    def mirrored(model, x, y):
        return (losses_of(model, x, y) + losses_of(model, -x, y)) / 2

    options = {"sampling": "full-batch", "batch_size": len(COUNTS), "records_per_unit": 5}
    model, engine = attach(clipping="abadi", radius=0.3, **options)
    before, everyone = weights(model), range(sum(COUNTS))
    total = clipped_loop(build(), data(), everyone, engine.groups, "abadi", losses=mirrored)
    with without_noise():
        train(model, engine, 1, seen)
    expected = torch.cat([total[n].flatten() for n, _ in model.named_parameters()])
    moved = (before - weights(model)) * len(COUNTS) / 0.5
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-12)


def test_batch_normalization_beside_public_features():
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)
    model = nn.Sequential(*layers).double()
    publicly = qg.BatchClipping(torch.randn(20, FEATURES, dtype=torch.float64), p=3)

    def losses(model, x, y):
        return publicly.losses(model, x, y, F.cross_entropy)

    _, engine = attach(model)
    before = weights(model)
    train(model, engine, 3, losses)
    assert not torch.equal(before, weights(model))


def test_diagnostics_measure_units(tmp_path):
    recorder = qg.diagnostics.StepRecorder(every=1)
    model, engine = attach(diagnostics=recorder, sampling="full-batch", batch_size=len(COUNTS))
    train(model, engine, 1)
    (record,) = recorder.history
    assert record.measurement.samples == len(COUNTS)


def test_compiled_forwards_give_the_same():
    options = {"physical_batch_size": 9, "records_per_unit": 3}
    plain, records, _ = released(**options)
    compiled, same, _ = released(compile="aot_eager", **options)
    assert records == same
    torch.testing.assert_close(compiled, plain, rtol=1e-9, atol=1e-12)


WRONG = [
    ({"units": ids()[:-1]}, ValueError, "has 32 ids, and the data set 33 records"),
    ({"units": [*ids()[:-1], float("nan")]}, ValueError, "nobody knows whose record"),
    ({"records_per_unit": 0}, ValueError, "records_per_unit=0 is not valid"),
    ({"records_per_unit": None}, ValueError, "units= needs records_per_unit="),
    ({"units": None}, ValueError, "records_per_unit=3 is given without units="),
    ({"units": None, "records_per_unit": None, "unit": "patient"}, ValueError, "without units="),
    ({"unit": ""}, ValueError, "expected what one unit is called"),
    ({"unit": "a\nb"}, ValueError, "expected what one unit is called"),
    ({"physical_batch_size": 2}, ValueError, "is below records_per_unit=3"),
    ({"lengths": [1] * sum(COUNTS)}, ValueError, "lengths= is given with units="),
    ({"batch_size": 13}, ValueError, "batch_size=13 is larger than the data set of 12 units"),
    ({"ledger": qg.accounting.Ledger()}, ValueError, "the ledger is about single records"),
    (
        {"ledger": qg.accounting.Ledger(unit=qg.accounting.Unit("unit", 9))},
        ValueError,
        "about units with at most 9 records each, and this engine about units with at most 3",
    ),
]


@pytest.mark.parametrize(("given", "error", "said"), WRONG, ids=lambda each: str(each)[:30])
def test_wrong_arguments_are_refused(given, error, said):
    with pytest.raises(error, match=said):
        attach(**given)


def test_a_loss_is_needed_for_each_record():
    model, engine = attach(sampling="full-batch", batch_size=len(COUNTS), records_per_unit=5)
    for x, y in next(engine.batches()):
        with pytest.raises(LossError, match="got 12 losses for a micro-batch of 33 records"):
            engine.backward(F.cross_entropy(model(x), y, reduction="none")[:12])
        engine.backward(F.cross_entropy(model(x), y, reduction="none"))
    engine.step()


def test_owners_are_told_while_records_are_out():
    model, engine = attach(sampling="full-batch", batch_size=len(COUNTS), records_per_unit=2)
    with pytest.raises(qg.QuietgradError, match="no records are out"):
        _ = engine.record_owners
    for x, y in next(engine.batches()):
        owners = engine.record_owners
        counts = torch.bincount(owners).tolist()
        assert sorted(counts) == sorted(min(count, 2) for count in COUNTS)
        assert owners.tolist() == sorted(owners.tolist())
        engine.backward(F.cross_entropy(model(x), y, reduction="none"))
    engine.step()


def test_a_delta_for_records_is_too_large_for_units():
    with pytest.warns(UserWarning, match="for 12 patients: publishing one random patient"):
        attach(delta=0.09, unit="patient")


def test_sharded_models_and_pipelines_are_refused_by_name():
    from quietgrad.distributed.world import World
    from quietgrad.engine.arguments import check_pipeline, check_world

    class Sharded(World):
        has_collectives = True

    with pytest.raises(DistributedTrainingError, match="units= is given, and the model is sharded"):
        check_world(Sharded(), None, None, False, ids())
    with pytest.raises(DistributedTrainingError, match="units= is given with pipeline="):
        check_pipeline(None, None, None, False, ids())
