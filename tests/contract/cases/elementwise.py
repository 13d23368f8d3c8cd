"""Elementwise and broadcast use of a parameter; look-ups that are the same for every sample."""

import torch
import torch.nn.functional as F
from torch import arange, nn, randint, randn, zeros

from .table import B, Net, between, case, score

_ALL, _ODD = slice(None), arange(7) % 2 == 1


def _with(name, function, parameter, *shape):
    """A case of ``function(parameter, data)``, given by their shapes (data ``[B, 7, 5]``)."""
    case(
        name,
        lambda: (
            Net(lambda m, x: function(m.p, x), p=randn(parameter)),
            randn(B, *shape or (7, 5)),
        ),
    )


_with("scale", lambda p, x: x * p, (5,))
_with("scale-reflected", lambda p, x: p * x, (7, 1))
_with("bias", lambda p, x: x + p, (5,))
_with("bias-with-alpha", lambda p, x: torch.add(x, p, alpha=3), (5,))
_with("difference", lambda p, x: p - x.sin(), (7, 5))
_with("difference-method", lambda p, x: x.sub(p), (1, 7, 5))
_with("quotient", lambda p, x: x / (p.square() + 1), (5,))
_with("quotient-of-the-parameter", lambda p, x: p / (x.square() + 1), (5,))
_with("per-channel", lambda p, x: x * p.view(-1, 1, 1), (3,), 3, 5, 2)
_with("scalar", lambda p, x: x * p, ())
_with("scalar-of-one", lambda p, x: x * p, (1,))
_with("temperature", lambda p, x: x * p.exp(), ())
_with("temperature-softmax", lambda p, x: (x / p.exp()).softmax(-1), (1,))
_with("whole-sample", lambda p, x: x * p, (7, 5))
_with("looks-like-the-batch", lambda p, x: x * p + p, (B,), B, B)
_with("matrix-looks-like-the-batch", lambda p, x: x * p, (B, B), B, B)
_with("outer-of-sample-scalars", lambda p, x: x * p, (5,), 1)
_with("vector-data", lambda p, x: x * p, (), 1)
_with("power", lambda p, x: (x.abs() + 0.5) ** p, (5,))
_with("power-of-the-parameter", lambda p, x: (p.square() + 0.5) ** x, (5,))
_with("power-function", lambda p, x: torch.pow(x.abs() + 0.5, p), ())
_with("where", lambda p, x: torch.where(x > 0, x, p), (5,))
_with("where-method", lambda p, x: x.where(x > 0, p), (7, 5))
_with("where-both", lambda p, x: torch.where(x > 0, p.exp(), p), (5,))
_with("lerp-end", lambda p, x: torch.lerp(x, p, 0.3), (5,))
_with("lerp-weight", lambda p, x: torch.lerp(x, x.square(), p), (5,))
_with("lerp-start", lambda p, x: torch.lerp(p.expand_as(x), x, 0.3), (5,))
_with("maximum", lambda p, x: torch.maximum(x, p), (5,))
_with("minimum", lambda p, x: torch.minimum(p, x), (5,))
_with("clamp", lambda p, x: torch.clamp(x, min=p), (5,))
_with("clamp-both", lambda p, x: x.clamp(p - 1, p + 1), (5,))
_with("addcmul", lambda p, x: torch.addcmul(x, x, p, value=2), (5,))
_with("addcdiv", lambda p, x: torch.addcdiv(p, x, x.square() + 1), (5,))
_with("logaddexp", lambda p, x: torch.logaddexp(x, p), (5,))
_with("atan2", lambda p, x: torch.atan2(x, p), (5,))
_with("masked-fill", lambda p, x: x.masked_fill(x > 0, p), ())
_with("threshold-then-product", lambda p, x: x * (x > p).to(x.dtype) * p, (5,))
_with("distances", lambda p, x: (x[:, None] - p).square().sum(-1), (3, 5), 5)
_with("in-place-add", lambda p, x: x.clone().add_(p), (5,))
_with("in-place-operator", lambda p, x: _iadd(x.tanh(), p), (5,))
_with("in-place-scale", lambda p, x: x.clone().mul_(p), (7, 1))
_with("masked-assignment", lambda p, x: _assign(x.clone(), x[..., 0] > 0, p), (5,))
_with("masked-assignment-of-a-scalar", lambda p, x: _assign(x.clone(), x > 0, p), ())
_with("assigned-to-a-position", lambda p, x: _assign(x.clone(), (slice(None), 0), p), (5,))
_with("assigned-to-positions", lambda p, x: _assign(x.clone(), (..., slice(2), _ALL), p), (2, 5))
_with("assigned-to-a-column", lambda p, x: _assign(x.clone(), (..., 0), p), (7,))
_with("assigned-with-leading-one", lambda p, x: _assign(x.clone(), (_ALL, 0), p), (1, 1, 5))
_with("assigned-by-a-mask-of-positions", lambda p, x: _assign(x.clone(), (_ALL, _ODD), p), (5,))
_with(
    "assigned-by-data",
    lambda p, x: _assign(x.clone(), (arange(len(x)), x[:, :, 0].argmax(1)), p),
    (5,),
)
_with(
    "assigned-to-zeros",
    lambda p, x: _assign(_assign(zeros(len(x), 8, 5), (_ALL, 0), p), (_ALL, slice(1, 8)), x),
    (5,),
)
_with(
    "assigned-to-zeros-samples-second",
    lambda p, x: _assign(zeros(7, len(x), 5), 0, p).transpose(0, 1) + x,
    (5,),
)
_with("class-token-expand", lambda p, x: torch.cat([p.expand(len(x), -1, -1), x], 1), (1, 1, 5))
_with("class-token-expand-vector", lambda p, x: torch.cat([p.expand(len(x), 1, 5), x], 1), (5,))
_with("class-token-expand-as", lambda p, x: torch.cat([p.expand_as(x[:, :1]), x], 1), (1, 1, 5))
_with("class-token-repeat", lambda p, x: torch.cat([p.repeat(len(x), 1, 1), x], 1), (1, 1, 5))
_with("class-token-tile", lambda p, x: torch.cat([torch.tile(p, (len(x), 1, 1)), x], 1), (1, 1, 5))
_with(
    "class-token-broadcast",
    lambda p, x: torch.cat([torch.broadcast_to(p, (len(x), 1, 5)), x], 1),
    (1, 1, 5),
)
_with(
    "class-token-expand-by-keyword",
    lambda p, x: torch.cat([torch.broadcast_to(p, size=(len(x), 1, 5)), x], 1),
    (5,),
)
_with("class-token-stacked", lambda p, x: torch.cat([torch.stack([p] * len(x)), x], 1), (1, 5))
_with("class-token-added-to-zeros", lambda p, x: torch.cat([zeros(len(x), 1, 5) + p, x], 1), (5,))
_with(
    "class-token-repeat-interleave",
    lambda p, x: torch.cat([p.repeat_interleave(len(x), 0), x], 1),
    (1, 1, 5),
)
_with("prompt-of-several-tokens", lambda p, x: torch.cat([p.expand(len(x), -1, -1), x], 1), (3, 5))
_with("prompt-stacked-features", lambda p, x: torch.stack([x, p.expand_as(x)], 1), (5,))
_with("position-table", lambda p, x: x + p[:7], (9, 5))
_with("position-table-batch-of-one", lambda p, x: x + p, (1, 7, 5))
_with(
    "position-table-repeated-over-folds",
    lambda p, x: x.flatten(0, 1).add(p.repeat(len(x), 1)).view_as(x),
    (7, 5),
)
_with("row-expanded-over-positions", lambda p, x: x + p.expand(7, -1), (1, 5))
_with(
    "row-expanded-over-positions-like-samples",
    lambda p, x: x + p.expand(x.shape[1], -1),
    (1, 5),
    2 * B,
    5,
)
_with("row-repeated-over-positions-like-samples", lambda p, x: x * p.repeat(B, 1), (1, 5), B, 5)
_with("gate", lambda p, x: x * p.sigmoid() + x.tanh() * (1 - p.sigmoid()), (5,))
_with("decay", lambda p, x: (x * (-p.exp() * arange(7.0)[:, None]).exp()).cumsum(1), (5,))
_with(
    "convolution-by-fourier",
    lambda p, x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(p, dim=0), n=7, dim=1),
    (7, 5),
)
_with("rotation", lambda p, x: torch.stack([x * p.cos(), x * p.sin()]).sum(0), (5,))


def _iadd(data, parameter):
    data += parameter
    return data


def _assign(data, mask, parameter):
    data[mask] = parameter
    return data


case("prelu-one", lambda: (nn.PReLU(), randn(B, 7, 5)))
case("prelu-channels", lambda: (nn.PReLU(3), randn(B, 3, 5, 2)))
case("prelu-channels-2d", lambda: (nn.PReLU(5), randn(B, 5)))
case("prelu-between", lambda: (between(nn.PReLU()), randn(B, 5)))
case("prelu-channels-between", lambda: (between(nn.PReLU(6)), randn(B, 5)))
case("prelu-at-zero", lambda: (nn.Sequential(_zeroed(nn.Linear(5, 6)), nn.PReLU()), randn(B, 5)))


def _zeroed(layer):
    """Initialized to zero, as the last layer of a residual branch often is."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


case(
    "affine-of-activations",
    lambda: (
        Net(lambda m, x: m.f(x) * m.s + m.b, f=nn.Linear(5, 6), s=randn(6), b=randn(6)),
        randn(B, 5),
    ),
)
case(
    "in-place-bias-of-activations",
    lambda: (
        Net(lambda m, x: _iadd(m.f(x), m.b).relu_(), f=nn.Linear(5, 6), b=randn(6)),
        randn(B, 5),
    ),
)
case(
    "mask-token",
    lambda: (
        Net(
            lambda m, x: _assign(m.f(x), x[..., 0] > 0, m.token.to(x.dtype)),
            f=nn.Linear(5, 6),
            token=randn(6),
        ),
        randn(B, 7, 5),
    ),
)


def _positions(positions, length=7, types=None):
    """Tokens with positions (and token types) that the model makes up itself."""

    def forward(m, ids):
        hidden = m.tokens(ids) + m.positions(positions(ids))
        return hidden if types is None else hidden + m.types(types(ids))

    parts = {
        "tokens": nn.Embedding(9, 5),
        "positions": nn.Embedding(9, 5),
        "types": nn.Embedding(2, 5),
    }
    return Net(forward, **parts), randint(9, (B, length))


case("positions-vector", lambda: _positions(lambda ids: arange(ids.shape[1])))
case("positions-batch-of-one", lambda: _positions(lambda ids: arange(ids.shape[1])[None]))
case("positions-expanded", lambda: _positions(lambda ids: arange(ids.shape[1]).expand_as(ids)))
case("positions-from-data", lambda: _positions(lambda ids: ids.ne(0).long().cumsum(1)))
case("positions-like-samples", lambda: _positions(lambda ids: arange(B)[None], B))
case("positions-vector-like-samples", lambda: _positions(lambda ids: arange(2 * B), 2 * B))
case("token-types-zeros", lambda: _positions(lambda ids: arange(7)[None], 7, torch.zeros_like))
case(
    "token-types-made-of-zeros",
    lambda: _positions(
        lambda ids: arange(7)[None], 7, lambda ids: zeros(ids.shape, dtype=torch.long)
    ),
)
case(
    "token-types-batch-of-one",
    lambda: _positions(lambda ids: arange(B), B, lambda ids: arange(B)[None] % 2),
)
case(
    "positions-times-data",
    lambda: (
        Net(lambda m, x: x @ m.positions(arange(7)[None]).mT, positions=nn.Embedding(9, 5)),
        randn(B, 3, 5),
    ),
)
case(
    "positions-with-padding-times-data",
    lambda: (
        Net(lambda m, x: x @ F.embedding(arange(7), m.table, padding_idx=0).mT, table=randn(9, 5)),
        randn(B, 3, 5),
    ),
)
case(
    "position-features-through-a-layer",
    lambda: (
        Net(lambda m, x: x + m.f(torch.linspace(0, 1, 7)[:, None]), f=nn.Linear(1, 5)),
        randn(B, 7, 5),
    ),
)
for _length in (7, B, 2 * B):
    case(
        f"position-ids-as-argument-{_length}",
        lambda n=_length: (
            Net(
                lambda m, ids, positions: m.tokens(ids) + m.positions(positions),
                tokens=nn.Embedding(9, 5),
                positions=nn.Embedding(9, 5),
            ),
            randint(9, (B, n)),
            lambda m, ids: score(m(ids, arange(ids.shape[1])[None])),
        ),
    )
