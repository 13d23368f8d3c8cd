"""Out of memory: the error says which size to try, and nothing of the batch is used."""

import pytest
import torch
from torch import nn

from quietgrad.errors import MemoryExhaustedError

from .helpers import assert_trains_as_ever, attach, flat, losses, mlp

ERRORS = [
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory"
    ),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
]


class Hungry(nn.Module):
    """Runs out of memory where it is told to."""

    forward_error: BaseException | None = None
    backward_error: BaseException | None = None

    def forward(self, x):
        if self.forward_error is not None:
            raise self.forward_error
        return Raising.apply(x, self)


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.module.backward_error is not None:
            raise ctx.module.backward_error
        return grad, None


@pytest.fixture
def attached():
    model = mlp(Hungry())
    return model, attach(model)


@pytest.mark.parametrize("error", ERRORS, ids=type)
def test_in_the_forward_the_error_gets_a_note(attached, error):
    model, engine = attached
    x, _ = next(next(engine.batches()))
    model[2].forward_error = error
    with pytest.raises(type(error)) as caught:
        model(x)
    model[2].forward_error = None
    notes = caught.value.__notes__
    assert len(notes) == 1
    assert "with 3 samples at once: try about half" in notes[0]
    assert "physical_batch_size=1" in notes[0]
    engine.discard_batch()
    assert_trains_as_ever(engine, model)


@pytest.mark.parametrize("error", ERRORS, ids=type)
def test_in_the_backward_the_error_is_explained(attached, error):
    model, engine = attached
    before = flat(model)
    x, y = next(next(engine.batches()))
    model[2].backward_error = error
    with pytest.raises(
        MemoryExhaustedError, match=r"3 samples.*physical_batch_size=1.*discard_batch"
    ) as caught:
        engine.backward(losses(model, x, y))
    assert caught.value.__cause__ is error
    model[2].backward_error = None
    assert torch.equal(before, flat(model))
    assert engine.ledger.steps == 0
    engine.discard_batch()
    assert_trains_as_ever(engine, model)


def test_a_real_allocation_that_fails(attached):
    model, engine = attached
    x, y = next(next(engine.batches()))

    def closure():
        torch.empty(2**60)
        return losses(model, x, y)

    with pytest.raises(MemoryExhaustedError, match="3 samples"):
        engine.backward(closure)


def test_a_single_sample_that_does_not_fit():
    model = mlp(Hungry())
    engine = attach(model, physical_batch_size=1)
    x, y = next(next(engine.batches()))
    model[2].backward_error = MemoryError()
    with pytest.raises(MemoryExhaustedError, match="a single sample"):
        engine.backward(losses(model, x, y))


def test_other_errors_stay_as_they_are(attached):
    model, engine = attached
    x, y = next(next(engine.batches()))
    model[2].backward_error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else") as caught:
        engine.backward(losses(model, x, y))
    assert not isinstance(caught.value, MemoryExhaustedError)


def test_a_smaller_size_goes_on_with_the_same_run(tmp_path):
    model = mlp()
    engine = attach(model, physical_batch_size=6)
    next(next(engine.batches()))
    engine.discard_batch()
    engine.save(tmp_path / "checkpoint.pt")
    engine.detach()
    smaller = attach(model, physical_batch_size=2)
    smaller.load(tmp_path / "checkpoint.pt")
    assert_trains_as_ever(smaller, model)
