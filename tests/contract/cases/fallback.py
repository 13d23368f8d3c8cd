"""Operations without a rule, and what no mode sees: differentiated sample by sample."""

import warnings

import torch
import torch.nn.functional as F
from torch import eye, nn, randn

from .table import B, Net, case, score


def _operation(name, function, parameter, *shape):
    """A case of ``function(parameter, data)``, given by their shapes (data ``[B, 7, 5]``)."""
    case(
        f"fallback-{name}",
        lambda: (
            Net(lambda m, x: function(m.p, x), p=randn(parameter)),
            randn(B, *shape or (7, 5)),
        ),
    )


_operation("distances", lambda p, x: torch.cdist(x, p), (3, 5))
_operation("distances-of-vectors", lambda p, x: torch.cdist(x, p), (3, 5), 5)
_operation("distances-to-data", lambda p, x: torch.cdist(p, x, p=1), (3, 5))
_operation("samples-second", lambda p, x: torch.cdist(x.transpose(0, 1), p).transpose(0, 1), (3, 5))
_operation("folded", lambda p, x: torch.cdist(x.flatten(0, 1), p).view(*x.shape[:2], 3), (3, 5))
_operation("looks-like-the-batch", lambda p, x: torch.cdist(x, p), (B, 5), B, 5)
_operation("cosine", lambda p, x: F.cosine_similarity(x[:, :, None], p, dim=-1), (3, 5))
_operation("pairwise-distance", lambda p, x: F.pairwise_distance(x, p), (5,))
_operation("solve-for-the-parameter", lambda p, x: torch.linalg.solve(x @ x.mT + eye(7), p), (7, 2))
_operation("solve-by-the-parameter", lambda p, x: torch.linalg.solve(p + 5 * eye(7), x), (7, 7))
_operation(
    "solve-triangular",
    lambda p, x: torch.linalg.solve_triangular(p.tril() + 5 * eye(7), x, upper=False),
    (7, 7),
)
_operation("kron", lambda p, x: torch.kron(x, p), (1, 2, 3))
_operation("cross", lambda p, x: torch.cross(x, p[None], dim=1), (3,), 3)
_operation("vecdot", lambda p, x: torch.linalg.vecdot(x, p), (5,))
_operation("trapezoid", lambda p, x: torch.trapezoid(x, p), (5,))
_operation("float-power", lambda p, x: torch.float_power(x.abs() + 1, p).to(x.dtype), (5,))
_operation("addr", lambda p, x: torch.addr(p, x[:, 0], p), (3,), 1)
_operation(
    "index-put",
    lambda p, x: x.index_put((torch.arange(len(x)), x[:, :, 0].argmax(1)), p),
    (5,),
)
_operation("scatter", lambda p, x: x.scatter_add(2, x.argsort(2), p.expand(len(x), 7, 5)), (7, 5))
_operation("index-fill", lambda p, x: x.index_fill(1, torch.tensor([0, 2]), p), ())
_operation("in-place", lambda p, x: x.clone().index_fill_(1, torch.tensor([0, 2]), p), ())
_operation("fill-of-a-view", lambda p, x: _filled(x.clone(), p), ())
_operation("several-outputs", lambda p, x: torch.mul(*torch.broadcast_tensors(x, p)), (5,))
_operation(
    "grid-of-the-parameter",
    lambda p, x: F.grid_sample(p.expand(len(x), -1, -1, -1), x.tanh(), align_corners=False),
    (1, 2, 5, 5),
    3,
    3,
    2,
)
_operation(
    "grid-by-the-parameter",
    lambda p, x: F.grid_sample(x, p.tanh().expand(len(x), -1, -1, -1), align_corners=False),
    (1, 3, 3, 2),
    2,
    5,
    5,
)
case(
    "fallback-behind-layers",
    lambda: (
        Net(
            lambda m, x: m.last(torch.cdist(m.first(x), m.p)),
            first=nn.Linear(5, 5),
            last=nn.Linear(3, 2),
            p=randn(3, 5),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "fallback-twice-and-by-a-rule",
    lambda: (
        Net(
            lambda m, x: torch.cdist(x, m.p) + torch.cdist(x.sin(), m.p) + x @ m.p.mT, p=randn(3, 5)
        ),
        randn(B, 7, 5),
    ),
)
case(
    "fallback-of-two-parameters",
    lambda: (
        Net(lambda m, x: torch.addmv(x.sum(1), x, m.u * m.v), u=randn(5), v=randn(5)),
        randn(B, 5),
        lambda m, x: score(m(x)[:, None]),
    ),
)
case(
    "fallback-in-a-checkpoint",
    lambda: (
        Net(
            lambda m, x: torch.utils.checkpoint.checkpoint(m.inner, x, use_reentrant=False),
            inner=Net(lambda m, x: torch.cdist(x.tanh(), m.p), p=randn(3, 5)),
        ),
        randn(B, 7, 5),
    ),
)


class Scaled(torch.autograd.Function):
    """``x * w`` with a derivative of its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).flatten(0, -2).sum(0)


class Rounded(torch.autograd.Function):
    """Rounding, with the gradient of the identity; its backward cannot be batched."""

    @staticmethod
    def forward(ctx, w):
        return w.mul(4).round() / 4

    @staticmethod
    def backward(ctx, grad):
        return torch.tensor(grad.tolist(), dtype=grad.dtype, device=grad.device)


_rounded = Rounded.apply

case(
    "custom-function",
    lambda: (Net(lambda m, x: Scaled.apply(x, m.w), w=randn(5)), randn(B, 7, 5)),
)
case(
    "custom-function-behind-a-layer",
    lambda: (
        Net(lambda m, x: Scaled.apply(m.f(x), m.w), f=nn.Linear(5, 3), w=randn(3)),
        randn(B, 7, 5),
    ),
)
case(
    "custom-function-of-parameters-alone",
    lambda: (Net(lambda m, x: F.linear(x, _rounded(3 * m.w)), w=randn(3, 5)), randn(B, 7, 5)),
)
case(
    "custom-function-on-the-parameter-itself",
    lambda: (Net(lambda m, x: F.linear(x, Rounded.apply(m.w)), w=randn(3, 5)), randn(B, 7, 5)),
)
case(
    "custom-function-of-data-alone",
    lambda: (Net(lambda m, x: _rounded(m.f(x)), f=nn.Linear(5, 3)), randn(B, 7, 5)),
)


def _filled(x, value):
    x[:, 0].fill_(value)
    return x


def _with_bias(bias: torch.Tensor, x: torch.Tensor):
    return torch.tanh(bias + x) * x


with warnings.catch_warnings(action="ignore"):
    _scripted = torch.jit.script(_with_bias)


def _mapped(name, function, **parts):
    """A case of a function that is mapped over the samples."""
    case(
        f"vmap-{name}",
        lambda: (
            Net(
                lambda m, x: torch.vmap(lambda row: function(m, row))(x),
                **{key: make() for key, make in parts.items()},
            ),
            randn(B, 7, 5),
        ),
    )


case(
    "scripted-function",
    lambda: (
        Net(lambda m, x: _scripted(m.b, m.f(x)), f=nn.Linear(5, 3), b=randn(3)),
        randn(B, 7, 5),
    ),
)
case(
    "scripted-function-of-parameters-alone",
    lambda: (Net(lambda m, x: F.linear(x, _scripted(m.w, m.w)), w=randn(3, 5)), randn(B, 7, 5)),
)
_mapped("matmul", lambda m, x: x @ m.w, w=lambda: randn(5, 3))
_mapped(
    "layers",
    lambda m, x: m.n(m.f(x).tanh()),
    f=lambda: nn.Linear(5, 3),
    n=lambda: nn.LayerNorm(3),
)
_mapped("derived-weight", lambda m, x: x @ m.w.exp(), w=lambda: randn(5, 3))
_mapped(
    "gradient",
    lambda m, x: torch.func.grad(lambda y: (y @ m.w).tanh().sum())(x),
    w=lambda: randn(5, 3),
)
_mapped(
    "jacobian",
    lambda m, x: torch.func.jacrev(lambda y: m.f(y).tanh())(x[0]),
    f=lambda: nn.Linear(5, 3),
)
_mapped(
    "derivative-along-a-direction",
    lambda m, x: torch.func.jvp(lambda y: m.f(y).tanh(), (x,), (torch.ones_like(x),))[1],
    f=lambda: nn.Linear(5, 3),
)
