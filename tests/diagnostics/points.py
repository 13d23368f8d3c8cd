"""The smallest model: a point that is drawn towards its samples."""

import torch
from torch import nn

from quietgrad.diagnostics import measure


class Point(nn.Module):
    """F(w) = sum of (w - s)^2 over the samples s."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, samples):
        return (self.w - samples).square()


def point(*samples, start=0.0, **options):
    model, s = Point(start), torch.tensor(samples, dtype=torch.float64)
    return measure(model, lambda: model(s), averages=(1,), **options)
