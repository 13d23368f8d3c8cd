"""What one sample costs on a rank: a forward and a backward pass on the meta device, followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quietgrad.capture.compare import tensors_in
from quietgrad.capture.refusals import check_losses
from quietgrad.capture.repetition import FactorRecorder
from quietgrad.capture.session import Capture
from quietgrad.capture.tape import Arrival
from quietgrad.inspection.subject import count_samples, select_rows
from quietgrad.planning.live_bytes import LiveBytes
from quietgrad.planning.meta import FlopCounter, batch_on_meta, running_on_meta
from quietgrad.planning.trace import (
    Follow,
    LayerWork,
    LossFunction,
    Trace,
    byte_count,
    layers_of,
)
from quietgrad.strategies import Evaluator, Strategy

# Of what a model returned: gradients with which a repeat begins, and copies while it is compared.
_SEEDS, _COMPARED = 3, 7


class Mark(NamedTuple):
    """How far a forward pass has come.

    Attributes:
        saved: bytes that are alive.
        operations: so far.
    """

    saved: int
    operations: int


class VerifiedPass(NamedTuple):
    """Bytes per sample while a micro-batch is verified.

    Attributes:
        recorded: alive when all gradients have been recorded, and the graph is kept.
        highest: at most, while the passes are repeated beside that.
        repeated: what a repeat leaves, to be compared.
        returned: what the model returns.
    """

    recorded: float
    highest: float
    repeated: float
    returned: float


@dataclass(frozen=True, eq=False)
class RankTrace:
    """What was seen of one sample.

    Attributes:
        trace: memory, layer by layer.
        work: of the layers, in the order of the trace.
        starts: by path of a module that was watched, when its forward begins.
        end: when the losses are there.
        inputs: by path of a module that was watched, bytes that it is given.
        outputs: likewise, bytes that it hands on.
        verified: memory where the pass is verified.
    """

    trace: Trace
    work: tuple[LayerWork, ...]
    starts: dict[str, Mark]
    end: Mark
    inputs: dict[str, int]
    outputs: dict[str, int]
    verified: VerifiedPass


def trace_one_sample(
    model: nn.Module,
    original: nn.Module,
    batch: Any,
    loss_fn: LossFunction,
    watched: Sequence[str],
    *,
    strategy: Strategy = "auto",
    spare: float = 0.0,
) -> RankTrace:
    """Run a copy of a model on one sample.

    Args:
        model: the copy on the meta device; hooks are put on it and removed.
        original: where its buffers have their numbers from, if it has some.
        batch: of one or several samples, on any device.
        loss_fn: one loss per sample.
        watched: paths of modules of which is noted when they begin, and what goes in and out.
        strategy: as for the engine.
        spare: bytes of gradients that a sample may keep beyond its factors.

    Raises:
        UnsupportedOperationError: it cannot be run without numbers.
        QuietgradError: it cannot be trained privately as it is.
        ValueError: the batch or the losses are not what they should be.
    """
    one = select_rows(batch, [0], count_samples(batch))
    session = Capture(model, thorough=False)
    counter, starts = FlopCounter(), dict[str, Mark]()
    inputs, outputs = dict[str, int](), dict[str, int]()
    live = LiveBytes()

    def begin(path: str, *unused: Any) -> None:
        if path not in starts:  # not what is computed again inside the backward pass
            starts[path] = Mark(live.now, counter.total)

    def end(path: str, module: nn.Module, args: Any, output: Any) -> None:
        inputs.setdefault(path, byte_count(tensors_in(args)))
        outputs.setdefault(path, byte_count(tensors_in(output)))

    modules = dict(model.named_modules())
    handles = [modules[path].register_forward_pre_hook(partial(begin, path)) for path in watched]
    handles += [modules[path].register_forward_hook(partial(end, path)) for path in watched]
    try:
        with running_on_meta(model, original) as values:
            own = batch_on_meta(one, values)
            outside = [*model.parameters(), *model.buffers(), *tensors_in(own)]
            run = partial(_losses, model, own, loss_fn)
            verified, arrived = _verify(session, model, run, LiveBytes(outside))
            layers = layers_of(model, arrived)
            live = LiveBytes(outside)
            follow = Follow(live, layers, Evaluator(strategy, spare=spare), lambda: counter.total)
            starts.clear()
            with counter, live:
                session.begin(1)
                losses = run()
                reached = Mark(live.now, counter.total)
                follow.counted = counter.total
                session.backward(losses, follow)
        given = byte_count(tensors_in(own))
        found = follow.summarize(model, 1, probing=verified.highest, inputs=given)
    finally:
        for handle in handles:
            handle.remove()
        session.detach()
    work = tuple(follow.work[path] for path in follow.order)
    return RankTrace(found, work, starts, reached, inputs, outputs, verified)


def _losses(model: nn.Module, batch: Any, loss_fn: LossFunction) -> Tensor:
    losses = loss_fn(model, batch)
    check_losses(losses)
    if len(losses) != 1:
        raise ValueError(
            f"the loss of the first sample alone is a tensor of {len(losses)}: expected one loss "
            "per sample, of a batch whose tensors have one row for each"
        )
    return losses


def _verify(
    session: Capture, model: nn.Module, run: Callable[[], Tensor], live: LiveBytes
) -> tuple[VerifiedPass, set[str]]:
    """As a verified micro-batch; and the parameters that a gradient reaches.

    All that arrives is recorded, and then once more beside it. A repeat begins with the gradients
    of what the model returned, of which there are a few copies.
    """
    returned: list[Tensor] = []
    handle = model.register_forward_hook(lambda *call: returned.extend(tensors_in(call[-1])))
    arrivals: list[Arrival] = []
    try:
        with live:
            session.begin_flight(1)
            losses = run()
            tape, seeds = session.set_aside(losses), torch.ones_like(losses)
            tape.propagate([losses], [seeds], arrivals.append, keep_graph=True)
            recorder, first = FactorRecorder(tape), list(returned)
            for each in arrivals:
                recorder(each)
            recorded = live.now
            returned.clear()
            session.begin_flight(1)
            again = session.set_aside(run())
            outputs = [each for each in returned if each.requires_grad]
            copies = [torch.empty_like(each) for each in outputs for _ in range(_SEEDS)]
            last = FactorRecorder(again)
            again.propagate(outputs, copies[::_SEEDS], last)
            copies.clear()
            repeated = live.now - recorded
    finally:
        handle.remove()
    assert first or last.factors or losses.numel()  # they are held until here
    sites = (use.target.names for each in arrivals for use in each.site.uses)
    returned_bytes = byte_count(outputs)
    highest = max(live.highest, recorded + repeated + _COMPARED * returned_bytes)
    found = VerifiedPass(recorded, highest, repeated, returned_bytes)
    return found, {name for names in sites for name in names}
