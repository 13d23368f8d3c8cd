"""Batch normalization over a sample and its public features, in the place of a layer's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quietgrad._checks import require_count
from quietgrad.capture.model_state import is_repeating
from quietgrad.errors import SampleMixingError, UnsupportedOperationError
from quietgrad.methods.augmentation import per_sample

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Statistics:
    """The forward of a batch normalization: over the rows of one sample, whatever its mode.

    ``is_allowed`` tells whether it is :class:`~quietgrad.BatchClipping` that runs the model.
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


def find_batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """All batch normalization of a model, by path; refused if it is not torch's own, or none."""
    found = {path: m for path, m in model.named_modules() if isinstance(m, _BatchNorm)}
    if not found:
        raise UnsupportedOperationError(
            f"the model ({type(model).__name__}) has no batch normalization, and public features "
            "would do nothing for it: train it without BatchClipping"
        )
    for path, module in found.items():
        if type(module) not in _PLAIN:
            raise UnsupportedOperationError(
                f"module '{path}' is a {type(module).__name__}, which may do more than normalize: "
                "expected exactly BatchNorm1d, 2d or 3d"
            )
        if not isinstance(vars(module).get("forward"), Statistics | None):
            raise UnsupportedOperationError(
                f"module '{path}' has a forward of its own, which would be passed over: remove it"
            )
    return found


def _is_recomputing() -> bool:
    """Within a backward pass: activation checkpointing runs parts of the model again."""
    return bool(torch._C._current_graph_task_id() != -1)


_ROWS_AT_A_TIME = 1024  # to predict with


class BatchClipping:
    """Each private sample is normalized in a batch with public features, and with nothing else.

    Algorithm 3 of "... via Clipping Bias Reduction" (Xiao et al. 2023). A sample runs through the
    network beside ``p`` public features drawn for it; batch normalization takes its statistics over
    these ``1 + p`` rows; the loss is that of the private row. So a sample's gradient depends on no
    other private sample, and is clipped as usual. No label of the public features is used, and
    running statistics are neither written nor read, whatever the mode of a layer: the network also
    predicts beside public features, through :meth:`predict`. All samples of a micro-batch run at
    once. From the first use on the model's batch normalization is this one, and it refuses to run
    when the model is called directly, in training and in evaluation; :meth:`restore` undoes it::

        publicly = qg.BatchClipping(public_images, p=9)
        engine.backward(publicly.losses(model, x, y, F.cross_entropy))
        labels = publicly.predict(model, test_images)     # and not model.eval()(test_images)

    Args:
        public_features: inputs ``[N, ...]`` that need no protection, of the private ones' shape and
            scale: images as floating-point numbers, not as bytes. They are copied.
        p: how many stand beside each sample.
        seed: fixes which of them do. Not with inner momentum, which repeats draws of torch's own
            generator only (``torch.manual_seed`` fixes those).
    """

    def __init__(self, public_features: Tensor, p: int = 9, *, seed: int | None = None) -> None:
        if not isinstance(public_features, Tensor) or public_features.ndim < 2:
            raise TypeError("public_features: expected a tensor of inputs, [N, ...]")
        self.p = require_count("p", p, at_least=1)
        if len(public_features) < self.p:
            raise ValueError(
                f"p={p} public features for each sample, and there are {len(public_features)}: "
                "expected at least as many"
            )
        _refuse_bytes("public_features", public_features)
        if not public_features.isfinite().all():
            raise ValueError(
                "public_features hold numbers that are not finite, which would spread to every "
                "sample: remove them"
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"seed={seed!r} is not valid: expected an integer, or None")
        # A copy without gradients: those of private samples would gather in the owner's tensor.
        self._public = public_features.detach().clone()
        self._is_running = False
        # Torch's own unless there is a seed: draws that can be repeated at past weights.
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __repr__(self) -> str:
        count, *shape = self._public.shape
        return f"BatchClipping({count:,} public features of shape {tuple(shape)}, p={self.p})"

    def restore(self, model: nn.Module) -> None:
        """The model's batch normalization is again what it was."""
        for module in model.modules():
            if isinstance(vars(module).get("forward"), Statistics):
                del vars(module)["forward"]

    def outputs(self, model: nn.Module, samples: Tensor) -> Tensor:
        """The network's outputs for the private samples, each beside public features."""
        self._install(model)
        rows = self._beside_public(samples)
        self._is_running = True
        try:
            outputs = model(rows)
        finally:
            self._is_running = False
        if not isinstance(outputs, Tensor) or len(outputs) != len(rows):
            shape = f"one of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else ""
            found = shape or type(outputs).__name__
            raise ValueError(
                "the model must return one tensor with a row for each of its inputs, "
                f"{len(rows)}; it returned {found}"
            )
        return outputs[:: 1 + self.p]

    def losses(
        self, model: nn.Module, samples: Tensor, labels: Tensor, loss: Callable[..., Tensor]
    ) -> Tensor:
        """One loss per private sample (eq. 15).

        Args:
            model: the network.
            samples: the micro-batch.
            labels: theirs.
            loss: as in ``torch.nn.functional``: called with outputs, labels and
                ``reduction="none"``.
        """
        return per_sample(loss, self.outputs(model, samples), labels)

    @torch.no_grad()
    def predict(self, model: nn.Module, samples: Tensor, *, draws: int = 10) -> Tensor:
        """The class that most draws of public features lead to; the mode of the model is kept.

        Args:
            model: the network, as it was trained.
            samples: inputs of one's own, of which a few run at a time.
            draws: how often to draw.
        """
        require_count("draws", draws, at_least=1)
        if not len(samples):
            return torch.empty(0, dtype=torch.long, device=samples.device)
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            at_a_time = max(1, _ROWS_AT_A_TIME // (1 + self.p))
            return torch.cat([self._voted(model, x, draws) for x in samples.split(at_a_time)])
        finally:
            for module, mode in modes:
                module.training = mode

    def _voted(self, model: nn.Module, samples: Tensor, draws: int) -> Tensor:
        votes = [self.outputs(model, samples).argmax(-1) for _ in range(draws)]
        return torch.stack(votes, -1).mode(-1).values

    def _beside_public(self, samples: Tensor) -> Tensor:
        """``[B * (1 + p), ...]``: each sample, and then the public features drawn for it."""
        if samples.shape[1:] != self._public.shape[1:]:
            raise ValueError(
                f"samples of shape {tuple(samples.shape[1:])} and public features of shape "
                f"{tuple(self._public.shape[1:])}: expected the same"
            )
        _refuse_bytes("samples", samples)
        if samples.is_floating_point() != self._public.is_floating_point():
            raise TypeError(
                f"samples of {samples.dtype} beside public features of {self._public.dtype}: "
                "expected floating-point numbers of the same scale in both"
            )
        draws = torch.rand(len(samples), len(self._public), generator=self._generator, device="cpu")
        chosen = self._public[draws.argsort(1)[:, : self.p]].to(samples)
        return torch.cat([samples[:, None], chosen], 1).flatten(0, 1)

    def _install(self, model: nn.Module) -> None:
        """It stays: an engine that verifies a forward pass runs the model again, by itself."""
        for path, module in find_batch_norms(model).items():
            is_allowed = partial(getattr, self, "_is_running")
            vars(module)["forward"] = Statistics(module, path, 1 + self.p, is_allowed)


def _refuse_bytes(what: str, tensor: Tensor) -> None:
    if tensor.dtype == torch.uint8:
        raise TypeError(
            f"{what} of {tensor.dtype}: expected floating-point numbers. Divide bytes of images by "
            "255 (x.float() / 255), private and public ones alike"
        )
