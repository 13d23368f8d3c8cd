"""Models for `quietgrad check` and `quietgrad plan`: targets of the form targets.py:name."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Target = tuple[nn.Module, tuple[Tensor, Tensor], object]


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def _images() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 1, 8, 8), torch.arange(8) % 3


def _model(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(144, 3))


def good() -> Target:
    torch.manual_seed(0)
    return _model(nn.GroupNorm(2, 4)), _images(), losses


def mixing() -> Target:
    torch.manual_seed(0)
    return _model(nn.BatchNorm2d(4)), _images(), losses


def planned() -> Target:
    torch.manual_seed(0)
    layers = [nn.Linear(d, p) for d, p in ((16, 128), (128, 16), (16, 128), (128, 16))]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 3))
    return model, (torch.randn(4, 32, 16), torch.arange(4) % 3), losses
