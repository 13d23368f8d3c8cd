"""Parameters used in several places, several times, or not at all; in-place operations."""

import torch
import torch.nn.functional as F
from torch import nn, randint, randn

from .table import B, Net, case, score


def _tied_head(**options):
    net = Net(
        lambda m, ids: m.head(m.f(m.embed(ids)).tanh()),
        embed=nn.Embedding(9, 5, **options),
        f=nn.Linear(5, 5),
        head=nn.Linear(5, 9, bias=False),
    )
    net.head.weight = net.embed.weight
    return net


def tied_linears():
    net = Net(lambda m, x: m.g(m.f(x).tanh()), f=nn.Linear(5, 5), g=nn.Linear(5, 5))
    net.g.weight = net.f.weight
    return net


case("tied-embedding-and-head", lambda: (_tied_head(), randint(9, (B, 7))))
case("tied-embedding-and-head-padding", lambda: (_tied_head(padding_idx=0), randint(3, (B, 7))))
case(
    "tied-embedding-and-functional-head",
    lambda: (
        Net(lambda m, ids: m.embed(ids).tanh() @ m.embed.weight.T, embed=nn.Embedding(9, 5)),
        randint(9, (B, 7)),
    ),
)
case("tied-linears", lambda: (tied_linears(), randn(B, 7, 5)))
case("tied-linears-2d", lambda: (tied_linears(), randn(B, 5)))
case(
    "tied-autoencoder",
    lambda: (
        Net(
            lambda m, x: F.linear(m.f(x).tanh(), m.f.weight.t(), m.b), f=nn.Linear(5, 3), b=randn(5)
        ),
        randn(B, 7, 5),
    ),
)
case(
    "tied-bias-and-scale",
    lambda: (Net(lambda m, x: F.linear(x, m.w, m.p) * m.p, w=randn(3, 5), p=randn(3)), randn(B, 5)),
)
case(
    "tied-two-tables",
    lambda: (
        Net(lambda m, a, b: m.e(a) * m.e(b), e=nn.Embedding(9, 5)),
        (randint(9, (B, 7)), randint(9, (B, 7))),
    ),
)
case(
    "tied-kernel-and-matrix",
    lambda: (
        Net(lambda m, x: F.conv1d(x, m.w) + (m.w.sum(2) @ x)[..., 1:], w=randn(3, 5, 2)),
        randn(B, 5, 7),
    ),
)
case(
    "tied-table-and-scale",
    lambda: (Net(lambda m, ids: m.w[ids] * m.w.mean(0), w=randn(9, 5)), randint(9, (B, 7))),
)

case(
    "reused-twice",
    lambda: (Net(lambda m, x: m.f(m.f(x).tanh()), f=nn.Linear(5, 5)), randn(B, 7, 5)),
)
case(
    "reused-in-a-loop", lambda: (Net(lambda m, x: _loop(m.f, x, 4), f=nn.Linear(5, 5)), randn(B, 5))
)
case(
    "reused-norm",
    lambda: (
        Net(lambda m, x: m.n(m.f(m.n(x))), f=nn.Linear(5, 5), n=nn.LayerNorm(5)),
        randn(B, 7, 5),
    ),
)
case(
    "reused-embedding",
    lambda: (
        Net(lambda m, i: m.e(i) + m.e(i.roll(1, 1)), e=nn.Embedding(9, 5)),
        randint(9, (B, 7)),
    ),
)
case(
    "reused-on-other-shapes",
    lambda: (Net(lambda m, x: m.f(x).sum(1) + m.f(x[:, 0]), f=nn.Linear(5, 3)), randn(B, 7, 5)),
)
case(
    "reused-block-aliased",
    lambda: (nn.Sequential(*[nn.Sequential(nn.Linear(5, 5), nn.Tanh())] * 3), randn(B, 5)),
)


def _loop(layer, x, times):
    for _ in range(times):
        x = layer(x).tanh()
    return x


def _siamese(model, x, y):
    return (model(x) * model(y)).sum(1).sin()


case(
    "siamese",
    lambda: (
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        (randn(B, 5), randn(B, 5)),
        _siamese,
    ),
)
case(
    "siamese-with-shared-input",
    lambda: (nn.Linear(5, 3), randn(B, 5), lambda m, x: _siamese(m, x, x.sin())),
)
case(
    "several-copies-of-each-sample",
    lambda: (nn.Linear(5, 3), randn(B, 3, 5), lambda m, x: sum(score(m(c)) for c in x.unbind(1))),
)
case(
    "forwards-of-different-sizes",
    lambda: (
        nn.Linear(5, 3),
        (randn(B, 5), randn(B, 3, 5)),
        lambda m, q, d: score(m(q)) + score(m(d.flatten(0, 1)).view(len(q), -1)),
    ),
)
case(
    "loss-on-parts",
    lambda: (
        Net(lambda m, x: (m.f(x), m.g(x)), f=nn.Linear(5, 3), g=nn.Linear(5, 2)),
        randn(B, 5),
        lambda m, x: score(m(x)[0]) * score(m(x)[1]),
    ),
)
case(
    "children-called-from-outside",
    lambda: (
        Net(None, f=nn.Linear(5, 6), g=nn.Linear(6, 3)),
        randn(B, 7, 5),
        lambda m, x: score(m.g(m.f(x).tanh())),
    ),
)

case(
    "unused-parameter",
    lambda: (
        Net(lambda m, x: m.f(x), f=nn.Linear(5, 3), unused=nn.Linear(2, 2), p=randn(3)),
        randn(B, 5),
    ),
)
case(
    "dead-branch",
    lambda: (
        Net(lambda m, x: (m.f(x), m.dead(x))[0], f=nn.Linear(5, 3), dead=nn.Linear(5, 3)),
        randn(B, 5),
    ),
)
case(
    "detached-branch",
    lambda: (
        Net(lambda m, x: m.f(x) * m.g(x).detach(), f=nn.Linear(5, 3), g=nn.Linear(5, 3)),
        randn(B, 5),
    ),
)
case(
    "branch-times-zero",
    lambda: (
        Net(lambda m, x: m.f(x) + 0 * m.g(x), f=nn.Linear(5, 3), g=nn.Linear(5, 3)),
        randn(B, 5),
    ),
)
case(
    "no-grad-branch",
    lambda: (Net(lambda m, x: m.f(x) * _without_grad(m.f, x), f=nn.Linear(5, 3)), randn(B, 5)),
)
case(
    "one-sample-without-gradient",
    lambda: (nn.Linear(5, 3, bias=False), randn(B, 5) * torch.tensor([1.0, 0, 1, 1])[:, None]),
)
case(
    "only-the-last-position-counts",
    lambda: (
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        randn(B, B, 5),
        lambda m, x: score(m(x)[:, -1]),
    ),
)
case(
    "each-sample-counts-one-position",
    lambda: (
        nn.Linear(5, 3),
        (randn(B, B, 5), torch.arange(B) % 2),
        lambda m, x, i: score(m(x)[torch.arange(len(x)), i]),
    ),
)


def _without_grad(layer, x):
    with torch.no_grad():
        return layer(x)


def _branching(m, x):
    if m.training and x.shape[1] > 3:
        return m.f(x)
    return m.g(x)


case("python-branch", lambda: (Net(_branching, f=nn.Linear(5, 3), g=nn.Linear(5, 3)), randn(B, 5)))
case(
    "experts-chosen-per-sample",
    lambda: (
        Net(
            lambda m, x: torch.where(x[:, :1] > 0, m.f(x), m.g(x)),
            f=nn.Linear(5, 3),
            g=nn.Linear(5, 3),
        ),
        randn(B, 5),
    ),
)

case(
    "in-place-relu",
    lambda: (
        nn.Sequential(
            nn.Linear(5, 6), nn.ReLU(True), nn.Linear(6, 6), nn.SiLU(True), nn.Linear(6, 3)
        ),
        randn(B, 5),
    ),
)
case(
    "in-place-slice",
    lambda: (Net(lambda m, x: _zero_first(m.f(x)), f=nn.Linear(5, 3)), randn(B, 5)),
)
case(
    "in-place-residual",
    lambda: (
        Net(lambda m, x: m.g(m.f(x).add_(x)), f=nn.Linear(5, 5), g=nn.Linear(5, 3)),
        randn(B, 5),
    ),
)
case(
    "in-place-on-a-view",
    lambda: (Net(lambda m, x: m.f(x).view(len(x), -1).mul_(2), f=nn.Linear(5, 3)), randn(B, 7, 5)),
)


def _zero_first(x):
    x[:, 0] = 0
    return x
