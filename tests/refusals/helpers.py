"""What the tests of refusals share: exact or refused, and nothing released either way.

Data is float64 and small. An engine made here samples at rate 1: its one batch is the whole data.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad
from quietgrad import PrivacyEngine
from quietgrad.errors import EngineStateError, QuietgradError

FEATURES = 3


class Net(nn.Module):
    """Parameters of several kinds, used by a function ``forward(net, x)`` given by a test."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 2)
        self.vector = nn.Parameter(torch.randn(FEATURES))
        self.matrix = nn.Parameter(torch.randn(FEATURES, FEATURES))
        self.cube = nn.Parameter(torch.randn(FEATURES, FEATURES, FEATURES))
        self.table = nn.Parameter(torch.randn(8, FEATURES))
        self.scalar = nn.Parameter(torch.randn(()))
        self._function = forward
        self.double()

    def forward(self, *inputs):
        return self._function(self, *inputs)


def samples(count=4, *shape, seed=1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *(shape or (FEATURES,)), dtype=torch.float64, generator=generator)


def squares(model: nn.Module, *inputs: Tensor) -> Tensor:
    """One loss per sample, from whatever the model returns with the samples first."""
    return model(*inputs).square().flatten(1).sum(1)


def attach(model, *tensors, optimizer=None, **options) -> PrivacyEngine:
    optimizer = optimizer or torch.optim.SGD(trainable(model), lr=1.0)
    given = {"batch_size": len(tensors[0]), "delta": 1e-9, "noise_multiplier": 1.0, "seed": 0}
    return PrivacyEngine(model, optimizer, TensorDataset(*tensors), **given | options)


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def only_batch(engine):
    """The tensors of the whole data as the engine hands them out."""
    return next(next(engine.batches()))


def state(model):
    """Parameters and buffers, but for batch norm's count of forwards, which tells nothing."""
    values = model.state_dict().items()
    return {name: v.clone() for name, v in values if not name.endswith("num_batches_tracked")}


def assert_same_state(model, before):
    for name, value in state(model).items():
        assert torch.equal(value, before[name]), f"{name} has changed"


def assert_refused(model, losses, *data, error=QuietgradError, words=(), **options):
    """``engine.backward(losses(model, *batch))`` raises, says why, and releases nothing."""
    engine = attach(model, *data, **options)
    before = state(model)
    batch = only_batch(engine)
    with pytest.raises(error) as caught:
        engine.backward(losses(model, *batch))
    message = str(caught.value)
    for word in words:
        assert word in message, f"the message should contain {word!r}: {message}"
    assert_same_state(model, before)
    assert all(p.grad is None for p in model.parameters())
    assert engine.steps_taken == 0
    with pytest.raises(EngineStateError):
        engine.step()
    engine.detach()
    return message


def one_by_one(model, losses, *data) -> dict[str, Tensor]:
    """The oracle: every sample's gradient, from a batch of that sample alone."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    rows = []
    for index in range(len(data[0])):
        loss = losses(model, *(column[index : index + 1] for column in data)).sum()
        grads = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
        rows.append(
            [
                torch.zeros_like(p) if g is None else g
                for g, (_, p) in zip(grads, named, strict=True)
            ]
        )
    columns = zip(*rows, strict=True)
    return {name: torch.stack(column) for (name, _), column in zip(named, columns, strict=True)}


def assert_exact(model, losses, *data):
    found = quietgrad.per_sample_grads(model, lambda: losses(model, *data))
    for name, expected in one_by_one(model, losses, *data).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9)


def assert_exact_or_refused(model, losses, *data) -> bool:
    """True if it was computed, and then exactly; no other error than a refusal may come up."""
    try:
        found = quietgrad.per_sample_grads(model, lambda: losses(model, *data))
    except QuietgradError:
        return False
    for name, expected in one_by_one(model, losses, *data).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9)
    return True


def assert_exact_steps(
    model, draw, *, steps, count=4, batch_size=None, losses=squares, oracle=None
):
    """Train, and compare every step with the oracle: the clipped sum, sample by sample.

    ``draw(step)`` gives the data of a step, ``count`` samples, of which each takes part with
    probability ``batch_size / count``; all of them by default. Refusals are the caller's to expect.
    """
    rate, batch_size = 1e-3, batch_size or count
    optimizer = torch.optim.SGD(trainable(model), lr=rate)
    options = {"batch_size": batch_size, "noise_multiplier": 1e-9, "optimizer": optimizer}
    engine = attach(model, torch.arange(count), **options)
    while engine.steps_taken < steps:
        for batch in engine.batches():
            data = draw(engine.steps_taken)
            before = [p.detach().clone() for p in trainable(model)]
            expected = [torch.zeros_like(p) for p in before]
            for (chosen,) in batch:
                own = [column[chosen] for column in data]
                expected = clipped_one_by_one(model, oracle or losses, *own)
                engine.backward(losses(model, *own))
            engine.step()
            after = [p.detach() for p in trainable(model)]
            for was, now, total in zip(before, after, expected, strict=True):
                moved, where = (was - now) * batch_size / rate, f"step {engine.steps_taken}"
                assert torch.allclose(moved, total, rtol=0, atol=1e-6), where


def clipped_one_by_one(model, losses, *data) -> list[Tensor]:
    """The sum of g / (|g| + 0.01) over samples, which is auto-s with its defaults."""
    model.eval()  # where the engine stays out of it
    grads = list(one_by_one(model, losses, *data).values())
    model.train()
    norms = torch.cat([g.reshape(len(g), -1) for g in grads], 1).norm(dim=1)
    weights = 1 / (norms + 0.01)
    return [torch.einsum("b,b...->...", weights, g) for g in grads]
