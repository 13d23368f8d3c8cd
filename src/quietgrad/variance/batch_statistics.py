"""Batch normalization over a sample and its public features, in the place of a layer's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quietgrad.capture import is_repeating
from quietgrad.errors import SampleMixingError, UnsupportedOperationError

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Statistics:
    """The forward of a batch normalization: over the rows of one sample, whatever its mode.

    Args:
        module: the layer.
        path: its place in the model.
        rows: of each sample.
        is_allowed: whether it is :class:`~quietgrad.BatchClipping` that runs the model.
    """

    def __init__(
        self, module: _BatchNorm, path: str, rows: int, is_allowed: Callable[[], bool]
    ) -> None:
        self._module, self._path = module, path
        self._rows, self._is_allowed = rows, is_allowed

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs ``[samples * rows, channels, ...]``, normalized."""
        if not (self._is_allowed() or is_repeating() or _is_recomputing()):
            raise self._refusal("was called directly")
        if len(inputs) % self._rows:
            raise self._refusal(f"was given {len(inputs)} rows, not {self._rows} for each sample")
        module, channels = self._module, inputs.shape[1]
        samples = len(inputs) // self._rows
        by_channel = inputs.reshape(samples, self._rows, channels, -1).transpose(1, 2)
        joined = by_channel.reshape(samples, channels, -1)
        # A group for each channel: the mean and the variance of batch normalization.
        out = F.group_norm(joined, channels, module.weight, module.bias, module.eps)
        return out.view(samples, channels, self._rows, -1).transpose(1, 2).reshape(inputs.shape)

    def _refusal(self, what: str) -> SampleMixingError:
        return SampleMixingError(
            f"module '{self._path}' ({type(self._module).__name__}) {what}: each sample is "
            "normalized beside public features, so the model is trained through "
            "BatchClipping.losses (or .outputs) and predicts through BatchClipping.predict. "
            "BatchClipping.restore(model) makes the layer what it was"
        )


def plain_batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """All batch normalization of a model, by path.

    Raises:
        UnsupportedOperationError: some of it does something else than torch's, or there is none.
    """
    found = {path: m for path, m in model.named_modules() if isinstance(m, _BatchNorm)}
    if not found:
        raise UnsupportedOperationError(
            f"the model ({type(model).__name__}) has no batch normalization, and public features "
            "would do nothing for it: train it without BatchClipping"
        )
    for path, module in found.items():
        _require_plain(module, path)
    return found


def _require_plain(module: _BatchNorm, path: str) -> None:
    if type(module) not in _PLAIN:
        raise UnsupportedOperationError(
            f"module '{path}' is a {type(module).__name__}, which may do more than normalize: "
            "expected exactly BatchNorm1d, 2d or 3d"
        )
    if not isinstance(vars(module).get("forward"), Statistics | None):
        raise UnsupportedOperationError(
            f"module '{path}' has a forward of its own, which would be passed over: remove it"
        )


def _is_recomputing() -> bool:
    """Within a backward pass: activation checkpointing runs parts of the model again."""
    return bool(torch._C._current_graph_task_id() != -1)
