"""Trainable tensors that are repeated once per sample, and go through layers before data."""

import torch
import torch.nn.functional as F
from torch import nn, ones, randn, zeros

from .table import B, Net, case


def _latents(name, repeat, *shape):
    """A case of latents ``[2, 5]``, repeated to ``[B, 2, 5]``: joined, projected, and attending."""

    def forward(m, x):
        latents = repeat(m.q, len(x))
        projected = m.f(repeat(m.q, len(x)))
        attended = (repeat(m.q, len(x)).tanh() @ x.mT).softmax(-1) @ x
        return torch.cat([latents, projected, attended, x], 1)

    case(
        f"latents-{name}",
        lambda: (Net(forward, q=randn(shape or (2, 5)), f=nn.Linear(5, 5)), randn(B, 7, 5)),
    )


_latents("stacked", lambda q, n: torch.stack([q] * n))
_latents("stacked-second", lambda q, n: torch.stack([q] * n, 1).transpose(0, 1))
_latents("concatenated", lambda q, n: torch.cat([q] * n), 1, 2, 5)
_latents("concatenated-rows", lambda q, n: torch.cat([q] * n).view(n, 2, 5))
_latents("repeated", lambda q, n: q.repeat(n, 1, 1))
_latents("repeated-rows", lambda q, n: q.repeat(n, 1).view(n, 2, 5))
_latents("expanded", lambda q, n: q[None].expand(n, -1, -1))
_latents("times-ones", lambda q, n: q * ones(n, 1, 1))
_latents("added-to-zeros", lambda q, n: q + zeros(n, 1, 1))
_latents("interleaved", lambda q, n: q.repeat_interleave(n, 0), 1, 2, 5)
_latents("interleaved-rows", lambda q, n: q.repeat_interleave(n, 0).view(2, n, 5).transpose(0, 1))
_latents("padded", lambda q, n: F.pad(q.expand(n, -1, -1), (1, 1)), 1, 2, 3)
_latents("looked-up", lambda q, n: q[torch.zeros(n).long()], 3, 2, 5)
case(
    "latents-as-states",
    lambda: (
        Net(
            lambda m, x: m.f(x, (m.h.expand(1, len(x), -1).contiguous(), m.c.repeat(1, len(x), 1)))[
                0
            ],
            f=nn.LSTM(5, 6, batch_first=True),
            h=randn(1, 1, 6),
            c=randn(1, 1, 6),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "latents-through-a-convolution",
    lambda: (
        Net(
            lambda m, x: m.f(m.q.expand(len(x), -1, -1)) + x, f=nn.Conv1d(5, 5, 3), q=randn(1, 5, 7)
        ),
        randn(B, 5, 5),
    ),
)
case(
    "latents-in-attention",
    lambda: (
        Net(
            lambda m, x: m.f(m.q.repeat(len(x), 1, 1), x, x)[0],
            f=nn.MultiheadAttention(6, 2, batch_first=True),
            q=randn(3, 6),
        ),
        randn(B, 7, 6),
    ),
)
