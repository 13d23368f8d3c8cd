"""Networks with batch normalization, trained privately with the help of a few public features."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quietgrad._checks import require_count
from quietgrad.errors import LossError, UnsupportedOperationError


class BatchClipping:
    """Each private sample is normalized in a batch with public features, and with nothing else.

    Algorithm 3 of "... via Clipping Bias Reduction" (Xiao et al. 2023). A sample runs through the
    network beside ``p`` public features drawn for it; batch normalization takes its statistics over
    these ``1 + p`` rows; the loss is that of the private row. So a sample's gradient depends on no
    other private sample, and is clipped as usual. No label of the public features is used, and
    running statistics are neither written nor read: the network also predicts beside public
    features. All samples run at once. From the first use on the model's batch normalization is
    this one, in training; :meth:`restore` undoes it::

        publicly = qg.BatchClipping(public_images, p=9)
        engine.backward(publicly.losses(model, x, y, F.cross_entropy))
        labels = publicly.predict(model, test_images)

    Args:
        public_features: inputs ``[N, ...]`` that need no protection, of the private ones' shape.
        p: how many stand beside each sample.
        seed: fixes which of them do.
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
        self.is_predicting = False
        self._public = public_features
        # Torch's own unless there is a seed: draws that can be repeated at past weights.
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def restore(self, model: nn.Module) -> None:
        """The model's batch normalization is again what it was."""
        for module in model.modules():
            if isinstance(vars(module).get("forward"), _Statistics):
                del vars(module)["forward"]

    def outputs(self, model: nn.Module, samples: Tensor) -> Tensor:
        """The network's outputs for the private samples, each beside public features."""
        self._install(model)
        rows = self._beside_public(samples)
        outputs = model(rows)
        if not isinstance(outputs, Tensor) or len(outputs) != len(rows):
            raise ValueError(
                "the model must return one tensor with a row for each of its inputs, "
                f"{len(rows)}; it returned {_described(outputs)}"
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
        return loss(self.outputs(model, samples), labels, reduction="none")

    @torch.no_grad()
    def predict(self, model: nn.Module, samples: Tensor, *, draws: int = 10) -> Tensor:
        """The class that most draws of public features lead to; the mode of the model is kept.

        Args:
            model: the network, as it was trained.
            samples: inputs of one's own.
            draws: how often to draw.
        """
        require_count("draws", draws, at_least=1)
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        self.is_predicting = True
        try:
            votes = torch.stack([self.outputs(model, samples).argmax(-1) for _ in range(draws)], -1)
        finally:
            self.is_predicting = False
            for module, mode in modes:
                module.training = mode
        return votes.mode(-1).values

    def _beside_public(self, samples: Tensor) -> Tensor:
        """``[B * (1 + p), ...]``: each sample, and then the public features drawn for it."""
        if samples.shape[1:] != self._public.shape[1:]:
            raise ValueError(
                f"samples of shape {tuple(samples.shape[1:])} and public features of shape "
                f"{tuple(self._public.shape[1:])}: expected the same"
            )
        draws = torch.rand(len(samples), len(self._public), generator=self._generator)
        chosen = self._public[draws.argsort(1)[:, : self.p]].to(samples)
        return torch.cat([samples[:, None], chosen], 1).flatten(0, 1)

    def _install(self, model: nn.Module) -> None:
        """It stays: an engine that verifies a forward pass runs the model again, by itself."""
        for path, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                _require_plain(module, path)
                vars(module)["forward"] = _Statistics(module, self)


class _Statistics:
    """The forward of a batch normalization: over a sample and its public features, in training.

    In evaluation, unless it is :meth:`BatchClipping.predict` that runs, the layer is as it was.
    """

    def __init__(self, module: _BatchNorm, owner: BatchClipping) -> None:
        self._module, self._owner = module, owner

    def __call__(self, inputs: Tensor) -> Tensor:
        module = self._module
        if not (module.training or self._owner.is_predicting):
            return type(module).forward(module, inputs)
        rows, channels = 1 + self._owner.p, inputs.shape[1]
        if len(inputs) % rows:
            raise LossError(
                f"{len(inputs)} rows are not {rows} for each sample: a network with batch "
                "normalization is trained through BatchClipping.losses, and not called directly"
            )
        samples = len(inputs) // rows
        by_channel = inputs.view(samples, rows, channels, -1).transpose(1, 2)
        joined = by_channel.reshape(samples, channels, -1)
        # A group for each channel: the mean and the variance of batch normalization.
        out = F.group_norm(joined, channels, module.weight, module.bias, module.eps)
        return out.view(samples, channels, rows, -1).transpose(1, 2).reshape(inputs.shape)


def _require_plain(module: _BatchNorm, path: str) -> None:
    if not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        raise UnsupportedOperationError(
            f"module '{path}' is a {type(module).__name__}: expected BatchNorm1d, 2d or 3d"
        )
    if not isinstance(vars(module).get("forward"), _Statistics | None):
        raise UnsupportedOperationError(
            f"module '{path}' has a forward of its own, which would be passed over: remove it"
        )


def _described(outputs: object) -> str:
    if isinstance(outputs, Tensor):
        return f"one of shape {tuple(outputs.shape)}"
    return type(outputs).__name__
