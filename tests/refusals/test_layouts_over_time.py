"""Layouts that change, or become clear, only after the first batches were probed."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from quietgrad.errors import SampleMixingError

from .helpers import FEATURES, Net, assert_exact_steps, attach, samples, squares
from .layouts import LAYOUTS, folded_time_first, time_first, tokens


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_hold_while_sizes_change(layout):
    """Batches as Poisson sampling gives them, with sequences of another length each time."""

    def draw(step):
        return (samples(6, (1, 4, 2, 3, 6, 12)[step % 6], FEATURES, seed=step),)

    assert_exact_steps(Net(layout), draw, steps=14, count=6, batch_size=3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_of_one_teaches_nothing(layout):
    """Micro-batches 1 and 2, which are always probed, hold one sample each."""

    def draw(step):
        return (samples(2, 2, FEATURES, seed=step),)

    model = Net(layout)
    data = draw(0)[0]
    engine = attach(model, torch.arange(5), physical_batch_size=1)
    for (chosen,) in next(engine.batches()):
        engine.backward(squares(model, data[chosen % 2]))
    engine.step()
    engine.detach()
    assert_exact_steps(model, draw, steps=4, count=2)


def test_a_layout_that_was_open_at_first():
    """Time first, as many steps as samples; at first sample i reads step i: a diagonal."""
    places = [[0, 1], [0, 1], [1, 1], [1, 0], [0, 0]]

    def draw(step):
        return samples(2, 2, FEATURES, seed=step), torch.tensor(places[step])

    def forward(net, x, place):
        hidden = time_first(net, x)
        return hidden.gather(1, place[:, None, None].expand(-1, 1, hidden.shape[-1]))

    assert_exact_steps(Net(forward), draw, steps=5, count=2)


def test_a_fold_that_was_open_at_first():
    """One row per sample fits both folds; three rows per sample do not."""

    def draw(step):
        return (samples(4, 1 if step < 2 else 3, FEATURES, seed=step),)

    assert_exact_steps(Net(folded_time_first), draw, steps=5)


@pytest.mark.parametrize("layout", [time_first, folded_time_first])
def test_a_layer_that_is_silent_at_first(layout):
    """A zero-initialized head sends no gradient down, so its layout cannot be probed yet."""
    model = Net(layout)
    nn.init.zeros_(model.last.weight)
    bias = lambda m, x: (m(x) - 1).square().flatten(1).sum(1)  # noqa: E731
    draw = lambda step: (samples(4, 4, FEATURES, seed=step),)  # noqa: E731
    assert_exact_steps(model, draw, steps=4, losses=bias)


def test_low_rank_adapters_that_start_at_zero():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.base = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
            self.down, self.up = nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, FEATURES)
            nn.init.zeros_(self.up.weight)
            self.double()

        def forward(self, x):
            rows = x.transpose(0, 1)
            return (self.base(rows) + self.up(self.down(rows))).transpose(0, 1)

    draw = lambda step: (samples(4, 4, FEATURES, seed=step),)  # noqa: E731
    assert_exact_steps(Adapted(), draw, steps=4)


def exact_or_refused(model, draw, **options):
    with contextlib.suppress(SampleMixingError):  # refusing to go on is right, too
        assert_exact_steps(model, draw, **options)


def test_a_model_that_turns_its_layout_around():
    class Turning(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.calls = nn.Linear(FEATURES, FEATURES).double(), 0

        def forward(self, x):
            self.calls += self.training
            if self.calls > 2:
                return self.linear(x.transpose(0, 1)).transpose(0, 1)
            return self.linear(x)

    draw = lambda step: (samples(4, 4, FEATURES, seed=step),)  # noqa: E731
    exact_or_refused(Turning(), draw, steps=8)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("layout", [tokens, time_first, folded_time_first])
def test_layers_that_run_only_inside_the_backward_pass(layout, reentrant):
    """Checkpointed as a whole, and first seen with one sample: never probed before it counts."""
    model = Net(layout)

    def losses(m, x):
        x = x.clone().requires_grad_()
        return checkpoint(m, x, use_reentrant=reentrant).square().flatten(1).sum(1)

    def run(count):
        x = samples(count, 2, FEATURES)
        engine = attach(model, torch.arange(count), physical_batch_size=1)
        for (chosen,) in next(engine.batches()):
            engine.backward(losses(model, x[chosen]))
        engine.step()
        engine.detach()

    run(3)
    draw = lambda step: (samples(2, 2, FEATURES, seed=step),)  # noqa: E731
    exact_or_refused(model, draw, steps=4, count=2, losses=losses, oracle=squares)
