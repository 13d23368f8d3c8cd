"""Ctrl-C between any two lines: nothing is counted twice or released unrecorded."""

import sys
from pathlib import Path

import pytest
import torch

import quietgrad
from quietgrad import reduction

from .helpers import (
    assert_trains_as_ever,
    attach,
    data,
    flat,
    losses,
    mlp,
    record_beside_noise,
    train_once,
)

OWN = str(Path(quietgrad.__file__).parent)
WATCHED = (OWN, torch.overrides.__file__)


class InterruptAt:
    """Raises KeyboardInterrupt before a given line, counted over all lines that run."""

    def __init__(self, point=None):
        self.point, self.lines = point, 0

    def __enter__(self):
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _on_call(self, frame, event, arg):
        return self._on_line if frame.f_code.co_filename.startswith(WATCHED) else None

    def _on_line(self, frame, event, arg):
        if event == "line":
            self.lines += 1
            if self.lines == self.point:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._on_line


def engine_at_work(**options):
    """An engine that has verified its model, so that a step is the ordinary one."""
    model = mlp()
    engine = attach(model, data(), **options)
    train_once(engine, model)
    train_once(engine, model)
    return engine, model


def lines_of_a_step(**options) -> int:
    engine, model = engine_at_work(**options)
    with InterruptAt() as trace:
        train_once(engine, model)
    engine.detach()
    return trace.lines


def interrupt(point, **options):
    engine, model = engine_at_work(**options)
    before, steps = flat(model), engine.steps_taken
    try:
        with InterruptAt(point):
            train_once(engine, model)
    except KeyboardInterrupt:
        pass
    engine.discard_batch()
    moved = not torch.equal(before, flat(model))
    assert engine.ledger.steps >= engine.steps_taken >= steps + moved
    assert engine.ledger.steps <= steps + 1
    engine.state_dict()
    assert_trains_as_ever(engine, model)
    assert engine.ledger.steps >= engine.steps_taken
    engine.detach()


def points(every: int, offset: int = 1, **options):
    return range(offset, lines_of_a_step(**options) + 1, every)


def test_at_many_points_of_a_step():
    checked = [interrupt(point) for point in points(every=509)]
    assert len(checked) > 5


@pytest.mark.parametrize("is_beside_noise", [False, True])
def test_at_many_points_of_a_step_with_a_ledger_file(tmp_path, monkeypatch, is_beside_noise):
    record_beside_noise(monkeypatch, is_beside_noise)
    lines = lines_of_a_step(ledger=tmp_path / "count.jsonl")
    for point in range(lines // 2, lines + 1, 251):  # the file is written in the second half
        path = tmp_path / f"{point}.jsonl"
        interrupt(point, ledger=path)
        assert quietgrad.accounting.Ledger.read(path).steps >= 3


@pytest.mark.slow
@pytest.mark.parametrize("is_beside_noise", [False, True])
def test_at_every_point_of_the_end_of_a_step_with_a_ledger_file(
    tmp_path, monkeypatch, is_beside_noise
):
    record_beside_noise(monkeypatch, is_beside_noise)
    lines = lines_of_a_step(ledger=tmp_path / "count.jsonl")
    for point in range(lines - 800, lines + 1, 7):
        path = tmp_path / f"{point}.jsonl"
        interrupt(point, ledger=path)
        assert quietgrad.accounting.Ledger.read(path).steps >= 3


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(1, 9))
def test_at_every_point_of_a_step(offset):
    for point in points(every=8, offset=offset):
        interrupt(point)


@pytest.mark.slow
def test_at_points_of_the_first_step_which_verifies_the_model():
    def first_step(point=None):
        model = mlp()
        engine = attach(model, data())
        before = flat(model)
        try:
            with InterruptAt(point) as trace:
                train_once(engine, model)
        except KeyboardInterrupt:
            pass
        engine.discard_batch()
        moved = not torch.equal(before, flat(model))
        assert engine.ledger.steps >= engine.steps_taken >= moved
        assert_trains_as_ever(engine, model)
        engine.detach()
        return trace.lines

    for point in range(1, first_step(), 31):
        first_step(point)


def test_a_batch_that_was_half_added_can_only_be_dropped(monkeypatch):
    """Added again, its samples would count twice; released, some would be missing."""
    monkeypatch.setitem(reduction.WAITING_BYTES, "cpu", 0)  # no layer waits for another
    engine, model = engine_at_work(grouping="layer-wise", verification="once")
    for batch in engine.batches():
        x, y = next(batch)
        engine.backward(losses(model, x, y))
        x, y = next(batch)
        # On what the first layer returns: the others are added by then.
        handle = model[0].register_forward_hook(_interrupt_later)
        values = losses(model, x, y)
        handle.remove()
        with pytest.raises(KeyboardInterrupt):
            engine.backward(values)
        with pytest.raises(quietgrad.errors.EngineStateError, match=r"twice.*discard_batch"):
            engine.backward(losses(model, x, y))
        with pytest.raises(quietgrad.errors.EngineStateError):
            engine.step()
        engine.discard_batch()
    steps = engine.steps_taken
    train_once(engine, model)
    assert engine.steps_taken == steps + 1


def _interrupt_later(module, args, output):
    output.register_hook(_interrupt)


def _interrupt(_gradient):
    raise KeyboardInterrupt


def test_the_trace_reaches_every_part(tmp_path):
    """The sibling: the lines that are interrupted are those of the engine, all of it."""
    engine, model = engine_at_work(ledger=tmp_path / "ledger.jsonl")
    seen = set()

    def on_call(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(OWN):
            seen.add(path.relative_to(OWN).as_posix())

    sys.settrace(on_call)
    try:
        train_once(engine, model)
    finally:
        sys.settrace(None)
    parts = {
        "engine": ("engine", "batch", "update", "budget"),
        "capture": ("session", "mode"),
        "sampling": ("loader",),
        "accounting": ("ledger", "ledger_file"),
    }
    expected = {f"{folder}/{name}.py" for folder, names in parts.items() for name in names}
    expected.add("reduction.py")
    assert expected <= seen
    assert engine.ledger.steps == 3
