"""Activation checkpointing: parts of the forward run again inside the backward pass."""

import torch
import torch.nn.functional as F
from torch import nn, randn
from torch.utils.checkpoint import checkpoint

from .sharing import tied_linears
from .table import B, Net, case


def _checkpointed(name, reentrant, block, shape=(7, 5)):
    """A stem, then a block that keeps no activations."""

    def forward(m, x):
        return checkpoint(m.block, m.stem(x), use_reentrant=reentrant).sin()

    case(
        f"{name}-{'reentrant' if reentrant else 'plain'}",
        lambda: (Net(forward, stem=nn.Linear(5, 5), block=block()), randn(B, *shape)),
    )


def _mlp():
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(True), nn.Linear(6, 5))


for _reentrant in (True, False):
    _checkpointed("checkpoint-block", _reentrant, _mlp)
    _checkpointed("checkpoint-tied-inside", _reentrant, tied_linears)
    _checkpointed(
        "checkpoint-reused-layer",
        _reentrant,
        lambda: Net(lambda m, x: m.f(m.f(x).tanh()), f=nn.Linear(5, 5)),
    )
    _checkpointed(
        "checkpoint-derived-weight",
        _reentrant,
        lambda: Net(lambda m, x: F.linear(x, m.w.sin()), w=randn(5, 5)),
    )
    _checkpointed(
        "checkpoint-class-token",
        _reentrant,
        lambda: Net(lambda m, x: torch.cat([m.p.expand(len(x), -1, -1), x], 1), p=randn(1, 1, 5)),
    )
    _checkpointed(
        "checkpoint-lstm",
        _reentrant,
        lambda: Net(lambda m, x: m.f(x)[0], f=nn.LSTM(5, 3, batch_first=True)),
    )
    case(
        f"checkpoint-tied-across-blocks-{'reentrant' if _reentrant else 'plain'}",
        lambda r=_reentrant: (
            Net(
                lambda m, x: m.f(checkpoint(m.f, m.f(x).tanh(), use_reentrant=r).tanh()),
                f=nn.Linear(5, 5),
            ),
            randn(B, 7, 5),
        ),
    )
    case(
        f"checkpoint-every-block-{'reentrant' if _reentrant else 'plain'}",
        lambda r=_reentrant: (
            Net(
                lambda m, x: _each_checkpointed(m, x, r),
                stem=nn.Linear(5, 5),
                blocks=nn.ModuleList([_mlp(), _mlp()]),
            ),
            randn(B, 5),
        ),
    )

case(
    "checkpoint-first-layer-plain",
    lambda: (
        Net(lambda m, x: checkpoint(m.f, x, use_reentrant=False), f=nn.Linear(5, 3)),
        randn(B, 5),
    ),
)
case(
    "checkpoint-function-plain",
    lambda: (
        Net(
            lambda m, x: checkpoint(lambda h: m.g(m.f(h).tanh()), x, use_reentrant=False),
            f=nn.Linear(5, 6),
            g=nn.Linear(6, 3),
        ),
        randn(B, 5),
    ),
)
case(
    "checkpoint-nested-plain",
    lambda: (
        Net(
            lambda m, x: checkpoint(
                lambda h: checkpoint(m.g, m.f(h).tanh(), use_reentrant=False),
                x,
                use_reentrant=False,
            ),
            f=nn.Linear(5, 6),
            g=nn.Linear(6, 3),
        ),
        randn(B, 5),
    ),
)


def _each_checkpointed(m, x, reentrant):
    x = m.stem(x)
    for block in m.blocks:
        x = x + checkpoint(block, x, use_reentrant=reentrant)
    return x
