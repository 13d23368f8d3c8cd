"""A batch is added up once and released once, whoever calls what, from wherever."""

import os
import threading

import pytest
import torch

from quietgrad.errors import EngineStateError, QuietgradError

from .helpers import QUIET, attach, flat, losses, mlp, train

FULL = {"sampling": "full-batch", "batch_size": 24, "noise_multiplier": QUIET}


def one_step(backward):
    """How a step moves the weights."""
    model = mlp()
    engine, before = attach(model, **FULL), flat(model)
    for batch in engine.batches():
        for x, y in batch:
            backward(engine, lambda x=x, y=y: losses(model, x, y))
        engine.step()
    return flat(model) - before


def test_backward_inside_of_backward_is_refused_and_can_be_called_rightly_after_it():
    def nested(engine, compute):
        def function():
            engine.backward(compute())
            return compute()

        with pytest.raises(EngineStateError, match="called while it runs"):
            engine.backward(function)
        engine.backward(compute)

    once = one_step(lambda engine, compute: engine.backward(compute))
    assert torch.equal(one_step(nested), once)


def test_a_loss_function_that_fails_can_be_mended():
    def failing_first(engine, compute):
        with pytest.raises(ZeroDivisionError):
            engine.backward(lambda: 1 / 0)
        engine.backward(compute)

    once = one_step(lambda engine, compute: engine.backward(compute))
    assert torch.equal(one_step(failing_first), once)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_batch_that_is_dropped_while_it_is_added_stays_dropped(goes_on):
    model = mlp()
    engine = attach(model)
    walk = engine.batches()
    x, y = next(next(walk))

    def function():
        engine.discard_batch()
        if goes_on:
            next(next(walk))
        return losses(model, x, y)

    # Without another batch, there are no samples that these could be the losses of.
    with pytest.raises(QuietgradError, match="dropped while backward" if goes_on else "losses for"):
        engine.backward(function)
    with pytest.raises(EngineStateError):
        engine.step()
    assert engine.ledger.steps == 0


def begun(**options):
    model = mlp()
    engine = attach(model, seed=None, **options)
    for x, y in next(engine.batches()):
        engine.backward(losses(model, x, y))
    return engine, model


def in_a_fork(action):
    """The name of what the action raises in a forked process, or 'nothing'."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            torch.set_num_threads(1)  # those of the parent are not there: waiting for them hangs
            action()
            os.write(writing, b"nothing")
        except BaseException as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        return stream.read().decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_cannot_release_the_batch_of_its_parent():
    engine, model = begun()
    assert in_a_fork(engine.step) == "EngineStateError"

    def another():
        engine.discard_batch()
        train(engine, model, steps=1)

    assert in_a_fork(another) == "nothing"
    engine.step()
    assert engine.steps_taken == engine.ledger.steps == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_cannot_add_to_the_batch_of_its_parent():
    model = mlp()
    engine = attach(model)
    x, y = next(next(engine.batches()))
    assert in_a_fork(lambda: engine.backward(losses(model, x, y))) == "EngineStateError"


@pytest.mark.parametrize("verb", ["step", "backward"])
def test_a_thread_is_refused_while_another_is_in_the_engine(verb):
    engine, _ = begun()
    inside, leave = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        assert leave.wait(30)

    engine._optimizer.register_step_pre_hook(wait)
    first = threading.Thread(target=engine.step)
    first.start()
    assert inside.wait(30)
    try:
        with pytest.raises(EngineStateError, match="another thread"):
            engine.step() if verb == "step" else engine.backward(torch.zeros(1))
    finally:
        leave.set()
        first.join()
    assert engine.steps_taken == engine.ledger.steps == 1


def test_what_a_guard_found_is_said_again_when_the_loop_goes_on():
    """A loop that catches every error is told why it cannot go on, not what follows from that."""
    model = mlp()
    engine = attach(model, physical_batch_size=2, **FULL)
    batch = next(engine.batches())
    x, y = next(batch)
    with pytest.raises(Exception, match="sample") as violation:
        engine.backward(losses(model, x - x.mean(0), y) * model(x).sum())
    name = type(violation.value).__name__
    with pytest.raises(EngineStateError, match=f"guard was violated.*{name}"):
        next(batch)
