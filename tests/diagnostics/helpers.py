"""Small models in double precision, and measurements by explicit loops over whole gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from tests.contract.oracle import loop
from torch import Tensor, nn
from torch.nn import functional as F

from quietgrad.clipping import Clipping
from quietgrad.diagnostics.measure import division
from quietgrad.grouping import Group

EXACT = 1e-9  # relative


class Words(nn.Module):
    """An embedding whose weights the head shares, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.embedding(ids).tanh().mean(1) * self.scale, self.embedding.weight)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def cnn() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (mlp, lambda count: torch.randn(count, 4).double()),
    "cnn": (cnn, lambda count: torch.randn(count, 1, 6, 6).double()),
    "words": (Words, lambda count: torch.randint(9, (count, 5))),
}


@dataclass(frozen=True)
class Subject:
    """A model and its samples."""

    model: nn.Module
    x: Tensor
    y: Tensor

    def losses(self, which: slice = slice(None)) -> Tensor:
        return F.cross_entropy(self.model(self.x[which]), self.y[which], reduction="none")

    def gradients(self) -> dict[str, Tensor]:
        return loop(self.model, self.losses, len(self.x))


def made(name: str, count: int = 9) -> Subject:
    """The same each time."""
    build, draw = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Subject(build().double(), draw(count), torch.arange(count) % 3)


def rows(gradients: Mapping[str, Tensor], names: tuple[str, ...] | None = None) -> np.ndarray:
    """Whole gradients, ``[B, d]``."""
    parts = [gradients[name] for name in (names or tuple(gradients))]
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1).numpy()


def angle(one: np.ndarray, other: np.ndarray) -> float | None:
    """Its cosine; None if one of the two has no direction, as what `global` makes of long ones."""
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / lengths) if lengths else None


def expected(
    gradients: Mapping[str, Tensor],
    groups: tuple[Group, ...],
    clipping: Clipping,
    sizes: tuple[int, ...],
) -> dict[str, object]:
    """What `Measurement.to_dict` should give, one sample after the other."""
    whole = rows(gradients)
    count, mean = len(whole), whole.mean(0)
    noise = sum(float(((g - mean) ** 2).sum()) for g in whole) / (count - 1)
    total, shares = _clipped(gradients, groups, clipping)
    return {
        "not_private": True,
        "samples": count,
        "nonfinite": 0,
        "norms": _spread([float(np.linalg.norm(g)) for g in whole]),
        "mean_gradient_norm": float(np.linalg.norm(mean)),
        "mean_clipped_norm": float(np.linalg.norm(total)) / count,
        "sampling_noise": noise,
        "relative_noise": math.sqrt(noise) / float(np.linalg.norm(mean)),
        "clipped": shares,
        "cosines": _spread([angle(g, mean) for g in whole]),
        "clipped_cosine": angle(total, rows(gradients, _in_order(groups)).sum(0)),
        "averages": tuple(_averaged(whole, size) for size in sizes),
    }


def _in_order(groups: tuple[Group, ...]) -> tuple[str, ...]:
    return tuple(name for group in groups for name in group.parameters)


def _clipped(
    gradients: Mapping[str, Tensor], groups: tuple[Group, ...], clipping: Clipping
) -> tuple[np.ndarray, dict[str, float]]:
    parts, shares = [], {}
    for group in groups:
        part = rows(gradients, group.parameters)
        total, shorter = np.zeros(part.shape[1]), 0
        for g in part:
            norm = torch.linalg.vector_norm(torch.from_numpy(g))
            weight = float(clipping.weights(norm[None], group.radius))
            total += weight * g if norm else 0.0
            shorter += weight * float(norm) < float(norm)
        parts.append(total)
        shares[group.name] = shorter / len(part)
    return np.concatenate(parts), shares


def _averaged(whole: np.ndarray, size: int) -> dict[str, object]:
    mean, count = whole.mean(0), len(whole)
    averages = [whole[places].mean(0) for places in division(count, size).numpy()]
    squares = [float(((a - mean) ** 2).sum()) for a in averages]
    lengths = [float(np.linalg.norm(a)) for a in averages]
    normalized = sum(a / length for a, length in zip(averages, lengths, strict=True))
    return {
        "size": size,
        "count": len(averages),
        "sampling_noise": sum(squares) / len(squares) / (1 - size / count),
        "cosine": sum(angle(a, mean) for a in averages) / len(averages),
        "normalized_cosine": angle(normalized, mean),
    }


def _spread(values: list[float]) -> dict[str, float]:
    points = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
    quantiles = {name: float(np.quantile(values, point)) for name, point in points.items()}
    return {"mean": sum(values) / len(values)} | quantiles


def assert_same(measured: object, truth: object, where: str = "") -> None:
    """Nested data, numbers up to `EXACT`."""
    if isinstance(truth, dict):
        assert isinstance(measured, dict)
        assert set(measured) == set(truth), where
        for name in truth:
            assert_same(measured[name], truth[name], f"{where}.{name}")
    elif isinstance(truth, list | tuple):
        assert isinstance(measured, list | tuple)
        assert len(measured) == len(truth), where
        for place, (one, other) in enumerate(zip(measured, truth, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    elif isinstance(truth, float):
        assert isinstance(measured, float), where
        assert math.isclose(measured, truth, rel_tol=EXACT, abs_tol=1e-12), where
    else:
        assert measured == truth, where
