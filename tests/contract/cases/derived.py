"""Computation on parameters alone: what data meets is made from parameters first."""

import torch
import torch.nn.functional as F
from torch import nn, randn
from torch.nn.utils import parametrizations, parametrize, prune

from .table import B, Net, case, frozen, score


def _batch_normalized(w):
    """Weight standardization as NFNets and BiT write it: no data takes part."""
    return F.batch_norm(w.view(1, 3, -1), None, None, training=True).view_as(w)


def _skew(w):
    matrix = torch.zeros(5, 5)
    matrix[torch.arange(4), torch.arange(1, 5)] = w
    matrix[0, 4] = w.sum()
    return matrix - matrix.mT


def _weight(name, make, *shapes):
    """A case of a linear layer whose weight ``[3, 5]`` is made from parameters of these shapes."""

    def build():
        parts = {f"p{i}": randn(shape) for i, shape in enumerate(shapes)}
        return Net(lambda m, x: F.linear(x, make(*(getattr(m, n) for n in parts))), **parts), randn(
            B, 7, 5
        )

    case(name, build)


_weight("weight-by-type", lambda w: w.type(torch.float64).type(w.dtype), (3, 5))
_weight("weight-batch-normalized", lambda w: _batch_normalized(w), (3, 5))
_weight("weight-instance-normalized", lambda w: F.instance_norm(w[None])[0], (3, 5))
_weight("weight-written-to-zeros", lambda w: _skew(w)[:3], (4,))
_weight("weight-transposed", lambda w: w.t(), (5, 3))
_weight("weight-transposed-by-property", lambda w: w.T, (5, 3))
_weight("weight-permuted", lambda w: w.permute(1, 2, 0).reshape(3, 5), (5, 3, 1))
_weight("weight-viewed", lambda w: w.view(3, 5), (15,))
_weight("weight-contiguous", lambda w: w.mT.contiguous(), (5, 3))
_weight("weight-sliced", lambda w: w[:3], (6, 5))
_weight("weight-sliced-with-step", lambda w: w[::2, 1:], (5, 6))
_weight("weight-indexed-by-list", lambda w: w[[0, 2, 0]], (4, 5))
_weight("weight-two-slices", lambda w: w[:3] + w[3:], (6, 5))
_weight("weight-overlapping-slices", lambda w: w[:3] * w[2:], (5, 5))
_weight("weight-of-chunks", lambda w: torch.cat(w.chunk(3)[::-1]), (3, 5))
_weight("weight-stacked", lambda a, b, c: torch.stack([a, b, c]), (5,), (5,), (5,))
_weight("weight-expanded", lambda w: w.expand(3, 5), (1, 5))
_weight("weight-expanded-like-the-batch", lambda w: w.expand(B, 5), (1, 5))
_weight("weight-sine", lambda w: w.sin(), (3, 5))
_weight("weight-exp", lambda w: torch.exp(w), (3, 5))
_weight("weight-softplus", lambda w: F.softplus(w), (3, 5))
_weight("weight-normalized", lambda w: F.normalize(w, dim=1), (3, 5))
_weight(
    "weight-standardized", lambda w: (w - w.mean(1, True)) / (w.std(1, keepdim=True) + 1e-5), (3, 5)
)
_weight(
    "weight-var-mean",
    lambda w: (w - torch.var_mean(w)[1]) * (torch.var_mean(w)[0] + 1).rsqrt(),
    (3, 5),
)
_weight("weight-low-rank", lambda b, a: b @ a, (3, 2), (2, 5))
_weight("weight-low-rank-added", lambda w, b, a: w + 0.5 * b @ a, (3, 5), (3, 2), (2, 5))
_weight("weight-gram", lambda w: (w @ w.mT)[:3, :5], (5, 2))
_weight("weight-kronecker", lambda a, b: torch.kron(a, b), (3, 1), (1, 5))
_weight(
    "weight-magnitude-and-direction",
    lambda g, v: g * v / v.norm(dim=1, keepdim=True),
    (3, 1),
    (3, 5),
)
_weight("weight-symmetric", lambda w: (w.triu() + w.triu(1).mT)[:3], (5, 5))
_weight("weight-matrix-exponential", lambda w: torch.matrix_exp(w - w.mT)[:3], (5, 5))
_weight("weight-inverse", lambda w: torch.linalg.inv(w + 5 * torch.eye(5))[:3], (5, 5))
_weight("weight-solve", lambda w: torch.linalg.solve(w + 5 * torch.eye(5), w)[:3], (5, 5))
_weight("weight-circulant", lambda w: torch.stack([w.roll(i) for i in range(3)]), (5,))
_weight("weight-from-fourier", lambda w: torch.fft.irfft(torch.complex(w[0], w[1]), n=5), (2, 3, 3))
_weight("weight-cumulative", lambda w: w.cumsum(0), (3, 5))
_weight("weight-sorted", lambda w: w.sort(1).values, (3, 5))
_weight("weight-einsum", lambda a, b: torch.einsum("pr,rd->pd", a, b), (3, 2), (2, 5))
_weight("weight-by-linear", lambda a, b: F.linear(a, b), (3, 2), (5, 2))
_weight("weight-masked", lambda w: w * torch.tril(torch.ones(3, 5)), (3, 5))
_weight("weight-quantized-straight-through", lambda w: w + (w.round() - w).detach(), (3, 5))
_weight(
    "weight-soft-mixture", lambda a, w: (a.softmax(0)[:, None, None] * w).sum(0), (2,), (2, 3, 5)
)
_weight("weight-half-detached", lambda w: w * w.detach().abs(), (3, 5))
_weight("weight-in-other-precision", lambda w: w.double().to(w.dtype), (3, 5))
_weight("weight-used-with-its-parameter", lambda w: w + w.sin(), (3, 5))

case(
    "lora-on-frozen-layer",
    lambda: (
        Net(
            lambda m, x: m.base(x) + x @ m.a.mT @ m.b.mT,
            base=frozen(nn.Linear(5, 3)),
            a=randn(2, 5),
            b=randn(3, 2),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "lora-merged-into-frozen-weight",
    lambda: (
        Net(
            lambda m, x: F.linear(x, m.w + m.b @ m.a),
            w=frozen(randn(3, 5)),
            a=randn(2, 5),
            b=randn(3, 2),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "weight-and-its-transpose",
    lambda: (Net(lambda m, x: (x @ m.w).tanh() @ m.w.mT, w=randn(5, 3)), randn(B, 7, 5)),
)
case(
    "one-derived-weight-used-twice",
    lambda: (Net(lambda m, x: _twice(x, m.w.sin()), w=randn(5, 5)), randn(B, 7, 5)),
)
case(
    "kernel-standardized",
    lambda: (
        Net(
            lambda m, x: F.conv2d(
                x, (m.w - m.w.mean((1, 2, 3), True)) / m.w.std((1, 2, 3), keepdim=True), m.b
            ),
            w=randn(3, 2, 2, 2),
            b=randn(3),
        ),
        randn(B, 2, 5, 5),
    ),
)
case(
    "bias-made-of-two",
    lambda: (
        Net(lambda m, x: F.linear(x, m.w, m.b + m.c.exp()), w=randn(3, 5), b=randn(3), c=randn(3)),
        randn(B, 5),
    ),
)
case(
    "slices-of-a-packed-weight",
    lambda: (Net(lambda m, x: _packed(x, *m.w.chunk(3)), w=randn(15, 5)), randn(B, 7, 5)),
)
case(
    "columns-of-a-packed-weight",
    lambda: (Net(lambda m, x: _packed(x, *m.w.split(5, 1)), w=randn(5, 15)), randn(B, 7, 5)),
)
case(
    "weight-slices-in-a-loop",
    lambda: (Net(lambda m, x: _loop(x, m.w), w=randn(3, 5, 5)), randn(B, 7, 5)),
)
case(
    "queries-expanded-then-projected",
    lambda: (
        Net(
            lambda m, x: (m.f(m.n(m.q.expand(len(x), -1, -1))).relu() @ x.mT).softmax(-1) @ x,
            q=randn(1, 3, 5),
            n=nn.LayerNorm(5),
            f=nn.Linear(5, 5),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "queries-repeated-into-attention",
    lambda: (
        Net(
            lambda m, x: m.a(m.q.weight[:, None].repeat(1, len(x), 1), *[x.transpose(0, 1)] * 2)[0],
            q=nn.Embedding(B, 6),
            a=nn.MultiheadAttention(6, 2),
        ),
        randn(B, B, 6),
        lambda m, x: score(m(x).transpose(0, 1)),
    ),
)
case(
    "layers-on-parameters-alone",
    lambda: (
        Net(
            lambda m, x: x + m.lstm(m.f(m.q))[0] + m.conv(m.q.mT.expand(len(x), -1, -1)).mT,
            q=randn(1, 3, 5),
            f=nn.Linear(5, 5),
            lstm=nn.LSTM(5, 5, batch_first=True),
            conv=nn.Conv1d(5, 5, 1),
        ),
        randn(B, 3, 5),
    ),
)
case(
    "positions-interpolated",
    lambda: (
        Net(lambda m, x: x + F.interpolate(m.p, size=(4, 5), mode="bicubic"), p=randn(1, 2, 3, 3)),
        randn(B, 2, 4, 5),
    ),
)
case(
    "hypernetwork",
    lambda: (
        Net(lambda m, x, z: torch.bmm(x, m.h(z).view(-1, 5, 3)), h=nn.Linear(2, 15)),
        (randn(B, 7, 5), randn(B, 2)),
    ),
)


def _twice(x, weight):
    return (x @ weight).tanh() @ weight


def _packed(x, query, key, value):
    scores = F.linear(x, query) @ F.linear(x, key).mT
    return scores.softmax(-1) @ F.linear(x, value)


def _loop(x, weights):
    for weight in weights:
        x = (x @ weight).tanh()
    return x


class _Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).mT

    def right_inverse(self, w):
        return w.triu()


class _Scaled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(randn(5, 1))

    def forward(self, w):
        return w * self.scale.exp()


def _parametrized(name, change, *shape):
    case(
        f"parametrized-{name}",
        lambda: (nn.Sequential(change(nn.Linear(5, 5)), nn.Linear(5, 3)), randn(B, *shape, 5)),
    )


def _registered(*parametrizations_):
    def change(layer):
        for parametrization in parametrizations_:
            parametrize.register_parametrization(layer, "weight", parametrization())
        return layer

    return change


_parametrized("weight-norm", parametrizations.weight_norm)
_parametrized("weight-norm-3d", parametrizations.weight_norm, 7)
_parametrized("weight-norm-whole", lambda f: parametrizations.weight_norm(f, dim=None), 7)
_parametrized("weight-norm-hook", nn.utils.weight_norm, 7)
_parametrized("spectral-norm-fixed", lambda f: parametrizations.spectral_norm(f).eval())
_parametrized("spectral-norm-hook-fixed", lambda f: nn.utils.spectral_norm(f).eval())
_parametrized("custom", _registered(_Symmetric), 7)
_parametrized("custom-with-parameter", _registered(_Scaled), 7)
_parametrized("custom-two", _registered(_Symmetric, _Scaled))
_parametrized("pruned", lambda f: prune.l1_unstructured(f, "weight", 0.4), 7)
for _map in ("matrix_exp", "cayley", "householder"):
    _parametrized(
        f"orthogonal-{_map}", lambda f, m=_map: parametrizations.orthogonal(f, orthogonal_map=m)
    )

case(
    "parametrized-conv",
    lambda: (parametrizations.weight_norm(nn.Conv1d(5, 3, 2, groups=1)), randn(B, 5, 7)),
)
case(
    "parametrized-conv-dim-2",
    lambda: (parametrizations.weight_norm(nn.Conv1d(4, 4, 3, groups=2), dim=2), randn(B, 4, 7)),
)
case(
    "parametrized-embedding",
    lambda: (parametrizations.weight_norm(nn.Embedding(9, 5)), torch.randint(9, (B, 7))),
)


class _WeightDrop(nn.Module):
    """As in AWD-LSTM: recurrent weights are made anew from a parameter for every forward."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        weight = self.lstm.weight_hh_l0
        del self.lstm.weight_hh_l0
        self.raw = nn.Parameter(weight.detach().clone())
        self.lstm.weight_hh_l0 = weight.detach().clone()

    def forward(self, x):
        self.lstm.weight_hh_l0 = F.dropout(self.raw, 0.5, self.training)
        return self.lstm(x)[0]


def _redrawn(model, x):
    """The same weights are dropped for every sample, also one by one."""
    torch.manual_seed(3)
    return score(model(x))


case("weight-drop", lambda: (_WeightDrop(), randn(B, 7, 5), _redrawn))
case(
    "weight-of-another-module",
    lambda: (
        Net(
            lambda m, x: m.f(x) + F.linear(x, m.g.weight.type(x.dtype)),
            f=nn.Linear(5, 3),
            g=nn.Linear(5, 3),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "weight-lent-to-another-module",
    lambda: (
        Net(
            lambda m, x: torch.func.functional_call(m.f, {"weight": m.w, "bias": m.f.bias}, x),
            f=nn.Linear(5, 3),
            w=randn(3, 5),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "forward-called-directly",
    lambda: (Net(lambda m, x: m.f.forward(x), f=nn.Linear(5, 3)), randn(B, 7, 5)),
)
