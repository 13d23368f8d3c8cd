"""The peak of a real backward pass, counted tensor by tensor."""

from torch import nn
from torch.utils._pytree import tree_leaves

from quietgrad import clipping, grouping
from quietgrad.capture import Capture
from quietgrad.planning.live_bytes import LiveBytes
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator


def measured_peaks(model: nn.Module, batch, loss_fn, specs) -> list[int]:
    """For each grouping, bytes at most alive in forward and backward, besides weights and data."""
    samples = len(tree_leaves(batch)[0])
    session = Capture(model, thorough=False)
    function = clipping.resolve("auto-s")
    peaks = []

    def run(spec) -> int:
        reducer = ClippedReducer(
            grouping.resolve(spec, model), function, Evaluator("auto"), samples
        )
        session.begin(samples)
        with LiveBytes([*model.parameters(), *model.buffers(), *tree_leaves(batch)]) as live:
            session.backward(loss_fn(model, batch), reducer)
            reducer.finish()
        return live.highest

    try:
        run("all-layer")  # learns the layouts
        peaks = [run(spec) for spec in specs]
    finally:
        session.detach()
    return peaks
