"""batches, backward, step: out of this order nothing is added twice, lost, or released."""

import pytest
import torch

from quietgrad.errors import EngineStateError, StrayGradientError

from .helpers import Net, assert_same_state, attach, samples, squares, state

X = samples(6)


@pytest.fixture
def attached():
    model = Net(lambda net, x: net.last(net.first(x)))
    engine = attach(model, X, physical_batch_size=2)
    before = state(model)
    yield model, engine
    assert_same_state(model, before)
    assert engine.steps_taken == 0


def test_step_without_a_batch(attached):
    _, engine = attached
    with pytest.raises(EngineStateError, match=r"step\(\).*batches"):
        engine.step()


def test_backward_without_a_batch(attached):
    model, engine = attached
    with pytest.raises(EngineStateError, match=r"backward\(\).*batches"):
        engine.backward(squares(model, X))


def test_backward_before_a_micro_batch_was_taken(attached):
    model, engine = attached
    next(engine.batches())
    with pytest.raises(EngineStateError, match=r"before one was taken"):
        engine.backward(squares(model, X[:2]))


def test_backward_twice_for_one_micro_batch(attached):
    model, engine = attached
    (x,) = next(next(engine.batches()))
    engine.backward(squares(model, x))
    with pytest.raises(EngineStateError, match=r"twice.*only once.*sum"):
        engine.backward(squares(model, x))


def test_a_micro_batch_passed_over(attached):
    _, engine = attached
    batch = next(engine.batches())
    next(batch)
    with pytest.raises(EngineStateError, match=r"passed over.*exactly once"):
        next(batch)
    with pytest.raises(EngineStateError):
        engine.step()


def test_all_micro_batches_taken_at_once(attached):
    _, engine = attached
    with pytest.raises(EngineStateError, match="passed over"):
        list(next(engine.batches()))


def test_a_step_in_the_middle_of_a_batch(attached):
    model, engine = attached
    for batch in engine.batches():
        for (x,) in batch:
            engine.backward(squares(model, x))
            break
        with pytest.raises(EngineStateError, match=r"1 of 3 micro-batches.*discard_batch"):
            engine.step()
        break


def test_a_step_with_no_micro_batch_taken(attached):
    _, engine = attached
    next(engine.batches())
    with pytest.raises(EngineStateError, match=r"0 of 3"):
        engine.step()


def test_a_new_batch_before_the_step(attached):
    model, engine = attached
    batches = engine.batches()
    for (x,) in next(batches):
        engine.backward(squares(model, x))
    with pytest.raises(EngineStateError, match=r"step\(\).*discard_batch"):
        next(engine.batches())


def test_the_pass_goes_on_before_the_step():
    model = Net(lambda net, x: net.last(x))
    engine = attach(model, X, batch_size=3)
    before = state(model)
    with pytest.raises(EngineStateError, match=r"step\(\)"):
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(squares(model, x))
    assert_same_state(model, before)


def test_leftovers_do_not_enter_the_next_step():
    """A batch broken off in the middle and dropped: the next step is as if it had not been."""
    weights = []
    for breaks in (True, False):
        model = Net(lambda net, x: net.last(net.first(x)))
        engine = attach(model, X, physical_batch_size=2, noise_multiplier=1e-9)
        if breaks:
            (x,) = next(next(engine.batches()))
            engine.backward(1e3 * squares(model, x))
            engine.discard_batch()
        for (x,) in next(engine.batches()):
            engine.backward(squares(model, x))
        engine.step()
        weights.append(state(model))
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=0, atol=1e-7)


def test_a_batch_cannot_be_run_twice(attached):
    model, engine = attached
    batch = next(engine.batches())
    for (x,) in batch:
        engine.backward(squares(model, x))
    assert list(batch) == []
    with pytest.raises(EngineStateError):
        engine.backward(squares(model, x))


def test_a_batch_kept_from_a_discarded_pass(attached):
    """Its micro-batches belong to no batch any more."""
    model, engine = attached
    old = next(engine.batches())
    (x,) = next(old)
    engine.backward(squares(model, x))
    engine.discard_batch()
    new = next(engine.batches())
    next(new)
    with pytest.raises((EngineStateError, RuntimeError, StopIteration)):
        next(old)


def test_a_graph_from_before_the_last_backward(attached):
    """A hidden state carried over, or the loss of an earlier micro-batch."""
    model, engine = attached
    batch = next(engine.batches())
    (x,) = next(batch)
    losses = squares(model, x)
    engine.backward(losses)
    next(batch)
    with pytest.raises(RuntimeError, match=r"second time|before the last"):
        engine.backward(losses)
    with pytest.raises(EngineStateError):
        engine.step()


def test_a_state_carried_over(attached):
    model, engine = attached
    batch = next(engine.batches())
    (x,) = next(batch)
    carried = model(x)
    engine.backward(carried.square().sum(1))
    (x,) = next(batch)
    with pytest.raises(RuntimeError, match=r"second time|before the last"):
        engine.backward(squares(model, x) + carried.sum(1))
    with pytest.raises(EngineStateError):
        engine.step()


def test_a_forward_from_before_the_micro_batch(attached):
    model, engine = attached
    early = squares(model, X[:2])
    next(next(engine.batches()))
    with pytest.raises(StrayGradientError, match=r"last\.(bias|weight)"):
        engine.backward(early)
