"""Losses of single samples, by functions of torch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.modules.loss import _Loss


def per_sample(loss: Callable[..., Tensor], outputs: Tensor, labels: Tensor) -> Tensor:
    """One loss for each row of outputs.

    Args:
        loss: as in ``torch.nn.functional``: called with outputs, labels and ``reduction="none"``.
        outputs: of the model.
        labels: theirs.

    Raises:
        TypeError: it is a loss module, whose reduction is settled when it is made.
    """
    kind = loss if isinstance(loss, type) else type(loss)
    if issubclass(kind, _Loss):
        raise TypeError(
            f"loss is the module {kind.__name__}, and is called with reduction='none', which "
            "modules do not take: expected a function of torch.nn.functional, such as "
            "F.cross_entropy"
        )
    return loss(outputs, labels, reduction="none")
