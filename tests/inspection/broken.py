"""Models and losses with a fault each, and what an inspection must say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, D, CLASSES = 6, 5, 3
Losses = Callable[[nn.Module, Any], Tensor]


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def data() -> Any:
    return torch.randn(B, D), torch.arange(B) % CLASSES


class Wrapped(nn.Module):
    """A linear layer after some function of the batch."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, D), nn.Tanh())
        self.head = nn.Linear(D, CLASSES)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.body(x)))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Linear(D, CLASSES))


def frozen_batch_norm() -> nn.Module:
    model = batch_norm()
    model[1].requires_grad_(False)
    return model


class LastBatch(nn.Module):
    """Keeps a batch, and lets it take part in the next."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, CLASSES)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before = x.detach() if self.last is None else self.last
        self.last = x.detach()
        return self.head(x + 0.1 * before.mean())


class Kept(nn.Module):
    """Keeps what it was shown, and does nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, CLASSES)
        self.seen: dict[str, list[Tensor]] = {"inputs": []}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["inputs"] = [x.detach()]
        return self.head(x)


class Centroid(nn.Module):
    """A running mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, CLASSES)
        self.register_buffer("mean", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.head(x)


class Box:
    """A plain object."""


class FirstBatch(nn.Module):
    """Initializes itself by the first batch, out of sight."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, CLASSES)
        self.box = Box()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self.box, "mean"):
            self.box.mean = x.detach().mean(0)
        return self.head(x - self.box.mean)


class KeptInArray(FirstBatch):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach().numpy().copy()
        return self.head(x)


class KeptInSet(FirstBatch):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[float] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen |= set(x[:, 0].tolist())
        return self.head(x)


class KeptInObject(FirstBatch):
    def forward(self, x: Tensor) -> Tensor:
        self.box.last = x.detach().clone()
        return self.head(x)


class Scaled(nn.Module):
    """Divides by the size of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x / len(x)


def instance_norm() -> nn.Module:
    norm = nn.InstanceNorm1d(1, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (1, D)), norm, nn.Flatten(), nn.Linear(D, CLASSES))


def contrastive(model: nn.Module, batch: Any) -> Tensor:
    z = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)), reduction="none")


def scalar(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def column(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch).unsqueeze(1)


def tokens(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch).repeat(2)


def divided_by_batch(model: nn.Module, batch: Any) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses / len(losses)


def with_baseline(model: nn.Module, batch: Any) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses * (1 + losses.detach() - losses.detach().mean())


def class_weighted(model: nn.Module, batch: Any) -> Tensor:
    counts = torch.bincount(batch[1], minlength=CLASSES).clamp(min=1)
    return cross_entropy(model, batch) / counts[batch[1]]


def detached(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch).detach()


def mixup(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, (0.8 * batch[0] + 0.2 * batch[0].roll(1, 0), batch[1]))


def rare_mixup(model: nn.Module, batch: Any) -> Tensor:
    return mixup(model, batch) if torch.rand(1) < 0.5 else cross_entropy(model, batch)


def frequent_mixup(model: nn.Module, batch: Any) -> Tensor:
    return mixup(model, batch) if torch.rand(()).item() > 0.2 else cross_entropy(model, batch)


def permuted_mixup(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return cross_entropy(model, (0.8 * x + 0.2 * x[torch.randperm(len(x))], y))


def masked_by_draws(model: nn.Module, batch: Any) -> Tensor:
    mask = (torch.rand(len(batch[0]), 8) < 0.4).float()
    shares = mask.sum(1) / mask.sum(1).clamp(min=1)
    return cross_entropy(model, batch) * shares * batch[0].mean()


def around_batch_mean(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return cross_entropy(model, (x + torch.normal(x.mean(0).expand_as(x), 1.0), y))


def nothing(model: nn.Module, batch: Any) -> Any:
    model(batch[0])


def numbers(model: nn.Module, batch: Any) -> Any:
    return cross_entropy(model, batch).tolist()


def not_a_number(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model, batch) * float("nan")


def mixed_gradients(model: nn.Module, batch: Any) -> Tensor:
    """Values of one sample, gradients of all."""
    losses = cross_entropy(model, batch)
    return losses + losses.mean() - losses.mean().detach()


def plain() -> nn.Module:
    return Wrapped(lambda x: x)


@dataclass(frozen=True)
class Broken:
    """A fault, the check that must find it, and words that its findings must contain."""

    model: Callable[[], nn.Module]
    losses: Losses
    check: str
    says: tuple[str, ...]


BROKEN = {
    "batch norm": Broken(
        batch_norm, cross_entropy, "independence", ("module '1' (BatchNorm1d)", "GroupNorm")
    ),
    "batch norm's statistics": Broken(
        batch_norm,
        cross_entropy,
        "buffers",
        ("'1.running_mean', '1.running_var' of", "raw data", ".eval()"),
    ),
    "frozen batch norm in train mode": Broken(
        frozen_batch_norm, cross_entropy, "buffers", ("'1.running_mean'", "BatchNorm1d", "raw data")
    ),
    "frozen batch norm mixes": Broken(
        frozen_batch_norm, cross_entropy, "independence", ("module '1' (BatchNorm1d)",)
    ),
    "batch mean subtracted": Broken(
        lambda: Wrapped(lambda x: x - x.mean(0)),
        cross_entropy,
        "independence",
        ("the forward of the model itself (Wrapped)", "over the batch"),
    ),
    "detached batch mean": Broken(
        lambda: Wrapped(lambda x: x - x.detach().mean(0)),
        cross_entropy,
        "independence",
        ("the forward of the model itself (Wrapped)",),
    ),
    "softmax over the batch": Broken(
        lambda: Wrapped(lambda x: x.softmax(0)), cross_entropy, "independence", ("Wrapped",)
    ),
    "mixing in a child": Broken(
        lambda: nn.Sequential(nn.Linear(D, D), Wrapped(lambda x: x.cumsum(0))),
        cross_entropy,
        "independence",
        ("module '1' (Wrapped)",),
    ),
    "contrastive loss": Broken(
        plain, contrastive, "independence", ("in the loss function", "contrastive")
    ),
    "loss divided by the batch": Broken(
        plain, divided_by_batch, "independence", ("removed", "division by the batch size")
    ),
    "loss with a detached baseline": Broken(
        plain, with_baseline, "independence", ("in the loss function", "weight over the batch")
    ),
    "loss weighted by counts in the batch": Broken(
        plain, class_weighted, "independence", ("in the loss function",)
    ),
    "mixup with a probability": Broken(plain, rare_mixup, "independence", ("replaced",)),
    "mixup most of the time": Broken(plain, frequent_mixup, "independence", ("replaced",)),
    "mixup by a permutation": Broken(plain, permuted_mixup, "independence", ("replaced",)),
    "a random mask, scaled by the batch": Broken(
        plain, masked_by_draws, "independence", ("in the loss function",)
    ),
    "draws around the batch's mean": Broken(
        plain, around_batch_mean, "independence", ("in the loss function",)
    ),
    "gradients alone are mixed": Broken(plain, mixed_gradients, "capture", ("mixed",)),
    "a division by the batch size in a module": Broken(
        lambda: nn.Sequential(nn.Linear(D, D), Scaled(), nn.Linear(D, CLASSES)),
        cross_entropy,
        "independence",
        ("removed", "module '1' (Scaled)", "division by its size"),
    ),
    "an initialization by the first batch": Broken(
        FirstBatch, cross_entropy, "memory", ("depend on the samples",)
    ),
    "instance norm's statistics": Broken(
        instance_norm, cross_entropy, "buffers", ("InstanceNorm1d", "track_running_stats=False")
    ),
    "mixup": Broken(plain, mixup, "independence", ("replaced",)),
    "a cache of the last batch": Broken(
        LastBatch, cross_entropy, "memory", ("attribute 'last'", "depend on the samples")
    ),
    "a cache nobody reads": Broken(Kept, cross_entropy, "memory", ("'seen['inputs'][0]'",)),
    "data kept in an array": Broken(
        KeptInArray, cross_entropy, "memory", ("'last", "keeps data of the batch")
    ),
    "data kept in a set": Broken(
        KeptInSet, cross_entropy, "memory", ("'seen", "keeps data of the batch")
    ),
    "data kept in an object": Broken(
        KeptInObject, cross_entropy, "memory", ("'box", "keeps data of the batch")
    ),
    "a running mean": Broken(Centroid, cross_entropy, "buffers", ("'mean' of", "Centroid")),
    "a scalar loss": Broken(plain, scalar, "loss", ("a scalar", "reduction='none'", ".logits")),
    "a column of losses": Broken(plain, column, "loss", (f"shape ({B}, 1)",)),
    "too many losses": Broken(plain, tokens, "loss", (f"{2 * B} losses", f"{B} samples")),
    "detached losses": Broken(plain, detached, "loss", ("trainable parameter",)),
    "no losses": Broken(plain, nothing, "loss", ("NoneType",)),
    "a list of losses": Broken(plain, numbers, "loss", ("got list",)),
    "no finite loss": Broken(plain, not_a_number, "loss", ("no loss is finite",)),
    "eval mode": Broken(lambda: plain().eval(), cross_entropy, "mode", ("model.train()",)),
    "an operation that cannot be captured": Broken(
        lambda: SparseProduct(), cross_entropy, "capture", ("sparse_mm", "'prototypes'")
    ),
}


class Prototypes(nn.Module):
    """Distances to prototypes, for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(CLASSES, D))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(x, self.prototypes)


class SparseProduct(Prototypes):
    """Products with sparse data."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(x.to_sparse(), self.prototypes.mT)
