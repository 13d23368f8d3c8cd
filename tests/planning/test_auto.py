"""`grouping="auto"`: planned for an example of public shape, exact and bounded like any other."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad import clipping

from .models import MODELS, classify, wide_to_narrow


def engine_of(model, batch, **options):
    return qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(*batch),
        batch_size=4,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=0,
        **options,
    )


def steps(engine, model, loss_fn):
    for logical in engine.batches():
        for micro in logical:
            engine.backward(loss_fn(model, micro))
        engine.step()


@pytest.fixture
def subject():
    torch.manual_seed(0)
    return wide_to_narrow()


def test_an_engine_plans_for_its_example(subject):
    model, batch, loss_fn = subject
    public = torch.zeros_like(batch[0]), torch.zeros_like(batch[1])
    engine = engine_of(model, batch, grouping="auto", example=(public, loss_fn), radius=0.5)
    plan = qg.plan(model, public, loss_fn, memory="1GB")
    expected = plan.grouping_of(plan.leanest).lists
    assert [(group.name, group.parameters) for group in engine.groups] == list(expected)
    assert len(engine.groups) > 1
    assert engine.sensitivity == pytest.approx(0.5)
    steps(engine, model, loss_fn)


def test_the_groups_do_not_depend_on_the_values(subject):
    model, batch, loss_fn = subject
    others = [(batch[0] * scale, batch[1].flip(0)) for scale in (0.0, 1.0, 1e3)]
    found = {repr(qg.AutoGrouping(each, loss_fn).partition(model)) for each in others}
    assert len(found) == 1


def test_a_run_is_resumed_with_the_same_groups(subject):
    model, batch, loss_fn = subject
    options = {"grouping": "auto", "example": (batch, loss_fn)}
    engine = engine_of(model, batch, **options)
    steps(engine, model, loss_fn)
    state, groups = engine.state_dict(), engine.groups
    engine.detach()
    again = engine_of(model, batch, **options)
    again.load_state_dict(state)
    assert again.groups == groups
    again.detach()
    with pytest.raises(qg.QuietgradError, match="groups="):
        engine_of(model, batch).load_state_dict(state)


def test_auto_without_an_example(subject):
    model, batch, loss_fn = subject
    with pytest.raises(ValueError, match=r"needs example=\(batch, loss_fn\)"):
        engine_of(model, batch, grouping="auto")
    with pytest.raises(ValueError, match="example= is for grouping='auto'"):
        engine_of(model, batch, example=(batch, loss_fn))
    with pytest.raises(ValueError, match=r"expected \(batch, loss_fn\)"):
        engine_of(model, batch, grouping="auto", example=batch)
    with pytest.raises(ValueError, match=r"the order is \(batch, loss_fn\)"):
        engine_of(model, batch, grouping="auto", example=(loss_fn, batch))
    with pytest.raises(ValueError, match=r"unknown grouping 'Auto'\. Did you mean 'auto'"):
        engine_of(model, batch, grouping="Auto")
    for use in (
        lambda: qg.clipped_sum(model, lambda: loss_fn(model, batch), grouping="auto"),
        lambda: qg.check(model, batch, loss_fn, grouping="auto"),
    ):
        with pytest.raises(ValueError, match=r"quietgrad\.AutoGrouping\(batch, loss_fn\)"):
            use()
    qg.detach(model)


def test_a_budget_is_kept_to(subject):
    model, batch, loss_fn = subject
    plan = qg.plan(model, batch, loss_fn, memory=40_000_000)
    auto = qg.AutoGrouping(batch, loss_fn, memory=40_000_000)
    assert auto.partition(model) == plan.grouping.partition(model)
    with pytest.raises(ValueError, match="needs memory"):
        qg.AutoGrouping(batch, loss_fn, physical_batch_size=4).partition(model)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_sums_are_those_of_clipped_gradients(name):
    """As for every grouping: each group's part of each sample is weighted, and added up."""
    torch.manual_seed(0)
    model, batch, loss_fn = MODELS[name]()
    model.eval()  # no dropout: the model is run twice

    def losses():
        return loss_fn(model, batch)

    auto = qg.AutoGrouping(batch, loss_fn, radius=0.3)
    found = qg.clipped_sum(model, losses, grouping=auto, verify=False)
    grads = qg.per_sample_grads(model, losses, verify=False)
    rule = clipping.resolve("auto-s")
    for group in found.groups:
        norms = torch.stack([grads[n].flatten(1).norm(dim=1) for n in group.parameters]).norm(dim=0)
        weights = rule.weights(norms, group.radius)
        assert (norms * weights).max() <= group.radius * (1 + 1e-5)
        for parameter in group.parameters:
            expected = torch.einsum("b,b...->...", weights, grads[parameter])
            torch.testing.assert_close(found.grads[parameter], expected, rtol=1e-3, atol=1e-6)
    assert found.sensitivity == pytest.approx(0.3)


def test_one_sample_moves_the_sum_by_at_most_the_radius(subject):
    model, batch, loss_fn = subject
    auto = qg.AutoGrouping(batch, loss_fn, radius=0.3)

    def total(kept):
        part = batch[0][kept], batch[1][kept]
        found = qg.clipped_sum(model, lambda: loss_fn(model, part), grouping=auto, verify=False)
        return torch.cat([grad.flatten() for grad in found.grads.values()])

    everyone = list(range(len(batch[0])))
    whole = total(everyone)
    for left_out in everyone:
        moved = (whole - total([each for each in everyone if each != left_out])).norm()
        assert moved <= 0.3 * (1 + 1e-5)


def test_listed_groups_must_fit_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    whole = {"a": ["0.weight", "0.bias"], "b": ["1.weight", "1.bias"]}
    assert len(qg.grouping.resolve(qg.grouping.Listed(whole), model)) == 2
    with pytest.raises(ValueError, match="in no group"):
        qg.grouping.resolve(qg.grouping.Listed({"a": ["0.weight"]}), model)
    with pytest.raises(ValueError, match="used twice"):
        qg.grouping.Listed([("a", ["0.weight"]), ("a", ["0.bias"])])
    with pytest.raises(TypeError, match="list of parameter names"):
        qg.grouping.Listed({"a": "0.weight"})
    with pytest.raises(ValueError, match="at least one"):
        qg.grouping.Listed({})


def test_a_public_batch_may_be_of_another_size(subject):
    model, batch, _ = subject
    few = tuple(each[:2] for each in batch)
    found = [qg.AutoGrouping(each, classify).partition(model) for each in (few, batch)]
    assert found[0] == found[1]
