"""Where the samples are: folded rows, sequence first, sizes that could be either."""

import torch
import torch.nn.functional as F
from torch import nn, randint, randn

from .table import B, Net, case, score


def _folded(name, fold, unfold, layer, *shape):
    """A layer that sees the data folded by ``fold``; ``unfold(output, data)`` brings it back."""
    case(
        f"folded-{name}",
        lambda: (Net(lambda m, x: unfold(m.layer(fold(x)), x), layer=layer()), randn(B, *shape)),
    )


def _major(x):
    return x.flatten(0, 1)


def _minor(x):
    return x.transpose(0, 1).flatten(0, 1)


def _from_major(y, x):
    return y.unflatten(0, x.shape[:2])


def _from_minor(y, x):
    return y.unflatten(0, (x.shape[1], x.shape[0])).transpose(0, 1)


for _length in (7, B, 2 * B):
    _folded(f"tokens-major-{_length}", _major, _from_major, lambda: nn.Linear(5, 3), _length, 5)
    _folded(f"tokens-minor-{_length}", _minor, _from_minor, lambda: nn.Linear(5, 3), _length, 5)
    _folded(f"norm-major-{_length}", _major, _from_major, lambda: nn.LayerNorm(5), _length, 5)
    _folded(f"norm-minor-{_length}", _minor, _from_minor, lambda: nn.LayerNorm(5), _length, 5)
    _folded(
        f"lstm-first-{_length}",
        lambda x: x.transpose(0, 1),
        lambda y, x: y[0].transpose(0, 1),
        lambda: nn.LSTM(5, 3),
        _length,
        5,
    )
    _folded(
        f"sequence-first-{_length}",
        lambda x: x.transpose(0, 1),
        lambda y, x: y.transpose(0, 1),
        lambda: nn.Linear(5, 3),
        _length,
        5,
    )

case(
    "folded-outside-with-features-like-samples",
    lambda: (
        nn.Linear(B, B),
        randn(B, 7, B),
        lambda m, x: score(m(x.flatten(0, 1)).unflatten(0, x.shape[:2])),
    ),
)
_folded("group-norm-major", _major, _from_major, lambda: nn.GroupNorm(2, 4), 3, 4, 5)
_folded("group-norm-minor", _minor, _from_minor, lambda: nn.GroupNorm(2, 4), 3, 4, 5)
_folded("scale-major", _major, _from_major, lambda: Net(lambda m, x: x * m.p, p=randn(5)), 3, 5)
_folded("scale-minor", _minor, _from_minor, lambda: Net(lambda m, x: x * m.p, p=randn(5)), 3, 5)
_folded("matmul-major", _major, _from_major, lambda: Net(lambda m, x: x @ m.w, w=randn(5, 3)), 3, 5)
_folded(
    "matmul-minor", _minor, _from_minor, lambda: Net(lambda m, x: m.w @ x, w=randn(3, 5)), 3, 5, 2
)
_folded(
    "lstm-major",
    _major,
    lambda y, x: _from_major(y[0], x),
    lambda: nn.LSTM(5, 3, batch_first=True),
    3,
    7,
    5,
)
_folded(
    "attention-minor",
    _minor,
    lambda y, x: _from_minor(y, x),
    lambda: nn.TransformerEncoderLayer(6, 2, 5, 0.0, batch_first=True),
    3,
    7,
    6,
)
_folded(
    "prompt-major",
    _major,
    _from_major,
    lambda: Net(lambda m, x: torch.cat([m.p.expand(len(x), -1, -1), x], 1), p=randn(1, 1, 5)),
    3,
    2,
    5,
)
_folded(
    "windows",
    lambda x: x.unfold(1, 4, 3).transpose(2, 3).flatten(0, 1).flatten(1),
    lambda y, x: y.unflatten(0, (len(x), -1)),
    lambda: nn.Linear(20, 3),
    10,
    5,
)
_folded(
    "spatial-windows",
    lambda x: x.unflatten(2, (2, 2)).unflatten(1, (2, 2)).transpose(2, 3).reshape(-1, 4, 5),
    lambda y, x: y.unflatten(0, (len(x), -1)),
    lambda: nn.Linear(5, 3),
    4,
    4,
    5,
)
_folded(
    "in-the-middle",
    lambda x: x.permute(1, 0, 2, 3).flatten(1, 2),
    lambda y, x: y.unflatten(1, (len(x), -1)).transpose(0, 1),
    lambda: nn.Linear(5, 3),
    7,
    3,
    5,
)

case(
    "folded-embedding",
    lambda: (
        Net(lambda m, i: m.e(i.flatten()).view(*i.shape, 5), e=nn.Embedding(9, 5)),
        randint(9, (B, 7)),
    ),
)
case(
    "folded-embedding-minor",
    lambda: (
        Net(
            lambda m, i: m.e(i.T.flatten()).view(*i.T.shape, 5).transpose(0, 1),
            e=nn.Embedding(9, 5),
        ),
        randint(9, (B, B)),
    ),
)
case(
    "folded-heads",
    lambda: (
        Net(
            lambda m, x: (x.unflatten(2, (2, 3)).transpose(1, 2).flatten(0, 1) @ m.w).unflatten(
                0, (-1, 2)
            ),
            w=randn(3, 3),
        ),
        randn(B, 7, 6),
    ),
)


def _first(name, forward, *shape, **parts):
    """A model whose input has the samples in dimension 1."""
    case(
        f"sequence-first-{name}",
        lambda: (
            Net(forward, **{key: make() for key, make in parts.items()}),
            randn(B, *shape),
            lambda m, x: score(m(x.transpose(0, 1))),
        ),
    )


for _length in (1, 3, B, 2 * B):
    _first(f"pooled-{_length}", lambda m, x: m.f(x.mean(0)), _length, 5, f=lambda: nn.Linear(5, 3))
    _first(
        f"first-step-{_length}",
        lambda m, x: m.f(x[0]).tanh(),
        _length,
        5,
        f=lambda: nn.Linear(5, 3),
    )
    _first(
        f"layer-{_length}",
        lambda m, x: m.f(x).transpose(0, 1),
        _length,
        5,
        f=lambda: nn.Linear(5, 3),
    )
    _first(
        f"two-layers-{_length}",
        lambda m, x: m.g(m.f(x).tanh().mean(0)),
        _length,
        5,
        f=lambda: nn.Linear(5, 6),
        g=lambda: nn.Linear(6, 2),
    )
    _first(
        f"positions-{_length}",
        lambda m, x: (x + m.p[: len(x), None]).transpose(0, 1),
        _length,
        5,
        p=lambda: randn(9, 5),
    )
    _first(
        f"encoder-{_length}",
        lambda m, x: m.f(x).mean(0),
        _length,
        6,
        f=lambda: nn.TransformerEncoderLayer(6, 2, 5, 0.0),
    )

    _first(
        f"class-token-{_length}",
        lambda m, x: torch.cat([m.p.expand(1, x.shape[1], -1), x]).transpose(0, 1),
        _length,
        5,
        p=lambda: randn(5),
    )

case(
    "first-argument-is-not-data",
    lambda: (
        Net(lambda m, graph, x: m.f(graph @ x).tanh(), f=nn.Linear(5, 3)),
        randn(B, 7, 5),
        lambda m, x: score(m(torch.eye(7).roll(1, 0), x)),
    ),
)
case(
    "first-argument-is-not-data-and-samples-alone",
    lambda: (
        Net(lambda m, scale, x: m.f(x * scale.mean()), f=nn.Linear(5, 3)),
        randn(B, 5),
        lambda m, x: score(m(torch.ones(7), x)),
    ),
)
case(
    "inputs-in-a-dictionary",
    lambda: (
        Net(lambda m, batch: m.f(batch["x"]) + m.p, f=nn.Linear(5, 3), p=randn(3)),
        randn(B, 5),
        lambda m, x: score(m({"x": x})),
    ),
)
case(
    "one-feature-per-sample",
    lambda: (Net(lambda m, x: x * m.p + m.q, p=randn(()), q=randn(1)), randn(B)),
)
case(
    "cosine-head",
    lambda: (
        Net(
            lambda m, x: F.linear(F.normalize(x), F.normalize(m.w)) * m.t.exp(),
            w=randn(3, 5),
            t=randn(()),
        ),
        randn(B, 5),
    ),
)
