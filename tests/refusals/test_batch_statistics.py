"""Layers that look at the whole batch, with or without parameters, trained or frozen."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from quietgrad.errors import SampleMixingError, UnsupportedOperationError

from .helpers import Net, assert_exact, assert_refused, samples, squares

IMAGES = samples(4, 3, 5, 5)
ROWS = samples(4, 3)


def around(norm, dims):
    layer = {1: nn.Linear(3, 3), 2: nn.Conv2d(3, 3, 3)}[dims]
    return nn.Sequential(layer, norm, nn.Flatten(), nn.LazyLinear(2)).double()


def frozen(module):
    return module.requires_grad_(False)


BATCH_NORMS = {
    "1d": lambda: (around(nn.BatchNorm1d(3), 1), ROWS),
    "2d": lambda: (around(nn.BatchNorm2d(3), 2), IMAGES),
    "frozen": lambda: (around(frozen(nn.BatchNorm2d(3)), 2), IMAGES),
    "without parameters": lambda: (around(nn.BatchNorm2d(3, affine=False), 2), IMAGES),
    "without statistics": lambda: (
        around(nn.BatchNorm2d(3, affine=False, track_running_stats=False), 2),
        IMAGES,
    ),
    "synchronised": lambda: (around(nn.SyncBatchNorm(3), 2), IMAGES),
    "synchronised and frozen": lambda: (around(frozen(nn.SyncBatchNorm(3)), 2), IMAGES),
}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_batch_norm_in_training_mode_is_refused(name):
    model, x = BATCH_NORMS[name]()
    model.eval()(x)  # initializes the lazy layer
    model.train()
    words = ["'1'", "training", "GroupNorm", "LayerNorm"]
    assert_refused(model, squares, x, error=SampleMixingError, words=words)


@pytest.mark.parametrize("name", ["without statistics"])
def test_batch_norm_without_statistics_is_refused_in_eval_mode_too(name):
    """It has no running statistics to fall back on: in eval mode it still uses the batch's."""
    model, x = BATCH_NORMS[name]()
    model.eval()(x)
    model.train()
    model[1].eval()
    assert_refused(model, squares, x, error=SampleMixingError, words=["'1'"])


def test_batch_norm_first_of_all_is_refused():
    """Nothing is trained below it, so no gradient could tell."""
    model = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)).double()
    assert_refused(model, squares, ROWS, error=SampleMixingError, words=["'0'", "GroupNorm"])


def test_batch_norm_as_a_function_is_refused():
    spellings = [
        lambda net, x: net.last(F.batch_norm(net.first(x), None, None, training=True)),
        lambda net, x: net.last(
            torch.batch_norm(net.first(x), None, None, None, None, True, 0.1, 1e-5, False)
        ),
        lambda net, x: net.last(
            torch.native_batch_norm(net.first(x), None, None, None, None, True, 0.1, 1e-5)[0]
        ),
    ]
    for forward in spellings:
        assert_refused(Net(forward), squares, ROWS, error=SampleMixingError, words=["batch_norm"])


@pytest.mark.parametrize("trained", [True, False])
def test_fixed_statistics_are_exact(trained):
    """The way out that the refusal names: ``.eval()`` on the layer alone."""
    model = around(nn.BatchNorm2d(3), 2)
    model.eval()(IMAGES)
    model.train()
    norm = model[1]
    norm.eval().requires_grad_(trained)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    before = {name: b.clone() for name, b in norm.named_buffers()}
    assert_exact(model, squares, IMAGES)
    assert all(torch.equal(b, before[name]) for name, b in norm.named_buffers())


@pytest.mark.parametrize("affine", [True, False])
def test_instance_norm_that_keeps_statistics_is_refused(affine):
    norm = nn.InstanceNorm2d(3, affine=affine, track_running_stats=True)
    model = around(norm, 2)
    model.eval()(IMAGES)
    model.train()
    words = ["'1'", "running statistics", "track_running_stats=False"]
    assert_refused(model, squares, IMAGES, error=UnsupportedOperationError, words=words)


def test_instance_norm_without_statistics_is_exact():
    model = around(nn.InstanceNorm2d(3, affine=True), 2)
    model.eval()(IMAGES)
    assert_exact(model.train(), squares, IMAGES)


class RunningMean(nn.Module):
    """Batch statistics of one's own making, kept in a buffer from raw data."""

    def __init__(self, update):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.linear = nn.Linear(3, 2).double()
        self.update = update

    def forward(self, x):
        self.update(self, x)
        return self.linear(x - self.mean.detach())


def in_place(module, x):
    with torch.no_grad():
        module.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)


def copied(module, x):
    module.mean.copy_(x.detach().mean(0))


def assigned(module, x):
    module.mean = 0.9 * module.mean + 0.1 * x.detach().mean(0)


def interpolated(module, x):
    module.mean.data.lerp_(x.detach()[0], 0.1)


@pytest.mark.parametrize("update", [in_place, copied, assigned, interpolated])
def test_buffers_written_from_raw_data_are_refused(update):
    """Running statistics, feature queues, codebooks: they would leave with the model, un-noised."""
    words = ["mean", "buffer"]
    assert_refused(RunningMean(update), squares, ROWS, words=words)


def test_parameters_written_from_raw_data_are_refused():
    def forward(net, x):
        with torch.no_grad():
            net.vector.copy_(x.mean(0))
        return net.last(net.first(x) * net.vector)

    assert_refused(Net(forward), squares, ROWS, words=["vector"])


class Counter(nn.Module):
    """Buffers that hold nothing of the data may change: counters, caches of positions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", None)
        self.linear = nn.Linear(3, 2).double()

    def forward(self, x):
        self.calls += 1
        if self.cache is None:
            self.cache = torch.linspace(0, 1, 3, dtype=torch.float64)
        return self.linear(x * self.cache)


def test_buffers_that_hold_no_data_may_change():
    assert_exact(Counter(), squares, ROWS)
