"""`qg.plan`: what it recommends fits, in as few groups as can be, and nothing is left behind."""

import copy
import math

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad import grouping
from quietgrad.planning import memory_model
from quietgrad.planning.memory_model import bound_ratio, ends_of, format_bytes

from .models import CLASSES, SAMPLES, classify, labels, resnet, wide_to_narrow


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    return wide_to_narrow()


@pytest.fixture(scope="module")
def plan(subject):
    return qg.plan(*subject, memory="1GB")


def total(plan, option, samples):
    return plan.step.peak(ends_of(option.starts, len(plan.layers)), samples)


def test_layers_come_in_the_order_of_back_propagation(plan):
    assert [layer.name for layer in plan.layers] == ["9", *map(str, range(7, -1, -1))]
    first = plan.layers[1]
    assert (first.kind, first.positions, first.inputs, first.outputs) == ("linear", 64, 256, 32)
    assert first.parameters == ("7.weight", "7.bias")
    assert first.numbers == 256 * 32 + 32


def test_every_option_is_a_grouping_of_the_model(subject, plan):
    for option in (*plan.best, *plan.uniform):
        groups = grouping.resolve(plan.grouping_of(option), subject[0])
        assert len(groups) == option.groups
        assert math.hypot(*(group.radius for group in groups)) == pytest.approx(1.0)
        assert plan.peak_of(groups, SAMPLES) <= total(plan, option, SAMPLES)


def test_the_best_is_never_worse_than_the_uniform(plan):
    for best, even in zip(plan.best, plan.uniform, strict=True):
        assert best.groups == even.groups
        assert best.peak <= even.peak


def test_as_many_samples_fit_as_are_said_to(plan):
    for option in plan.best:
        assert total(plan, option, option.most_samples) <= plan.for_tensors
        assert total(plan, option, option.most_samples + 1) > plan.for_tensors


def test_a_third_more_than_is_recommended_fits_in_the_memory_of_the_cpu(plan):
    assert plan.memory == 10**9
    assert plan.recommended.peak * 4 / 3 <= plan.memory < plan.recommended.peak * 1.5
    text = " ".join(str(plan).split())
    assert f"({format_bytes(plan.recommended.peak)} of 1 GB)" in text
    assert "the rest of 1 GB is kept in reserve" in text


def test_the_fewest_groups_with_which_a_batch_fits(subject):
    memory = 40_000_000
    free = qg.plan(*subject, memory=memory)
    for wanted in (1, free.best[0].most_samples, free.recommended.physical_batch_size):
        found = qg.plan(*subject, memory=memory, physical_batch_size=wanted).recommended
        assert found.physical_batch_size == wanted
        assert found.peak <= memory
        fewer = [o for o in free.best if o.groups < found.option.groups]
        assert all(option.most_samples < wanted for option in fewer)


def test_a_batch_that_fits_with_no_grouping(subject):
    found = qg.plan(*subject, memory=40_000_000, physical_batch_size=10**6).recommended
    assert 1 <= found.physical_batch_size < 10**6
    assert "no grouping makes 1,000,000 fit" in found.why


def test_a_budget_for_not_even_one_sample(subject):
    with pytest.raises(ValueError, match="too small: one sample needs"):
        qg.plan(*subject, memory=1000)


def test_the_model_is_left_as_it_was():
    model, batch, loss_fn = resnet()
    before, hooks = copy.deepcopy(model.state_dict()), len(model._forward_hooks)
    state = torch.get_rng_state()
    qg.plan(model, batch, loss_fn, memory="1GB")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert len(model._forward_hooks) == hooks
    assert torch.equal(state, torch.get_rng_state())


class WithUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.idle, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.last(self.first(x).relu()).relu())


def test_what_is_not_used_joins_the_group_that_is_clipped_last():
    model = WithUnused()
    batch = torch.randn(SAMPLES, 8), labels()
    plan = qg.plan(model, batch, classify, memory="1GB")
    assert plan.unused == ("idle.weight", "idle.bias")
    groups = grouping.resolve(plan.grouping_of(plan.best[-1]), model)
    assert set(plan.unused) | {"first.weight", "first.bias"} == set(groups[0].parameters)


def test_frozen_layers_are_left_out():
    model, batch, loss_fn = resnet()
    model[1].requires_grad_(False)
    plan = qg.plan(model, batch, loss_fn, memory="1GB")
    assert not any(layer.name.startswith("1.") for layer in plan.layers)
    grouping.resolve(plan.grouping, model)


def test_the_same_plan_twice(subject, plan):
    assert qg.plan(*subject, memory="1GB").as_dict() == plan.as_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "much"}, "expected an amount such as 4GB"),
        ({"memory": -1}, "memory=-1"),
        ({"memory": "1GB", "physical_batch_size": 0}, "physical_batch_size=0"),
        ({"memory": "1GB", "max_groups": 0}, "max_groups=0"),
        ({"memory": "1GB", "optimizer_state": -1}, "optimizer_state=-1"),
        ({"memory": "1GB", "radius": 0}, "radius must be positive"),
    ],
)
def test_arguments_that_make_no_sense(subject, options, message):
    with pytest.raises(ValueError, match=message):
        qg.plan(*subject, **options)


def test_a_loss_that_is_not_one_per_sample(subject):
    model, batch, loss_fn = subject
    with pytest.raises(qg.errors.LossError):
        qg.plan(model, batch, lambda *both: loss_fn(*both).mean(), memory="1GB")


def test_amounts_of_memory():
    assert memory_model.budget("4GB") == 4 * 10**9
    assert memory_model.budget("1.5 MiB") == 3 * 2**19
    assert memory_model.budget("5120") == 5120
    for forgotten in ("4", 4):
        with pytest.raises(ValueError, match=r"is 4 B, too small.*unit"):
            memory_model.budget(forgotten)
    assert memory_model.budget(None) > 0


def test_a_machine_that_does_not_say(monkeypatch, tmp_path):
    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(memory_model, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory_model.os, "sysconf", unknown)
    with pytest.raises(ValueError, match="state it, for example memory='4GB'"):
        memory_model.budget(None)


def test_theorem_1_by_hand():
    assert bound_ratio(1) == 1.0
    for groups in (2, 12, 100):
        paper = (20 + math.sqrt(groups) / 5) * groups**0.25 / (20 + 1 / 5)
        assert bound_ratio(groups) == pytest.approx(paper)
        assert bound_ratio(groups, gradient_noise=0) == pytest.approx(groups**0.75)
        assert bound_ratio(groups, gradient_noise=1e9) == pytest.approx(groups**0.25)


def test_numbers_of_groups_that_are_not_listed_are_named(subject):
    text = " ".join(str(qg.plan(*subject, memory="1GB", max_groups=5)).split())
    assert "Not in the table: 3 to 5 groups, whose peak is as high as" in text
    assert "Not tried: 6 to 8 groups; max_groups (--max-groups) sets the largest number." in text
