"""Products of a parameter with data: matmul and its relatives, einsum, bilinear."""

import torch
import torch.nn.functional as F
from torch import einsum, nn, randn

from .table import B, Net, case, frozen


def _product(name, function, parameter, *inputs, **more):
    """A case of ``function(parameter, *inputs)``, all given by their shapes."""

    def build():
        net = Net(lambda m, *x: function(m.w, *x), w=randn(parameter), **more)
        return net, tuple(randn(B, *shape) for shape in inputs)

    case(name, build)


_product("matmul-right", lambda w, x: torch.matmul(x, w), (5, 3), (5,))
_product("matmul-method", lambda w, x: x.matmul(w), (5, 3), (2, 5))
_product("matmul-operator", lambda w, x: x @ w, (5, 3), (2, 3, 5))
_product("matmul-by-keyword", lambda w, x: torch.matmul(input=x, other=w), (5, 3), (5,))
_product("matmul-left", lambda w, x: w @ x, (3, 5), (5, 2))
_product("matmul-left-of-columns", lambda w, x: (w @ x.mT).mT, (3, 5), (5,))
_product("matmul-right-vector", lambda w, x: x @ w, (5,), (7, 5))
_product("matmul-left-vector", lambda w, x: w @ x, (7,), (7, 5))
_product("matmul-batched-parameter", lambda w, x: x @ w, (3, 5, 2), (3, 7, 5))
_product("matmul-batched-parameter-left", lambda w, x: w @ x, (3, 2, 7), (3, 7, 5))
_product("matmul-parameter-with-leading-one", lambda w, x: x @ w, (1, 3, 5, 2), (3, 7, 5))
_product("matmul-parameter-broadcast-inside", lambda w, x: x @ w, (3, 1, 5, 2), (3, 2, 7, 5))
_product("matmul-data-broadcast", lambda w, x: x.unsqueeze(1) @ w, (3, 5, 2), (7, 5))
_product("matmul-rows-before-samples", lambda w, x: (x @ w).transpose(0, 1), (3, 5, 2), (5,))
_product("matmul-parameter-of-one", lambda w, x: x @ w, (1, 5, 2), (7, 5))
_product("matmul-parameter-of-ones", lambda w, x: x @ w, (1, 1, 5, 2), (3, 7, 5))
_product("matmul-parameter-of-one-left", lambda w, x: w @ x, (1, 2, 7), (7, 5))
_product("matmul-parameter-of-one-row", lambda w, x: x @ w, (3, 1, 1, 2), (3, 5, 7, 1))
_product("einsum-parameter-of-ones", lambda w, x: einsum("bti,bij->btj", x, w), (1, 5, 2), (7, 5))
_product("matmul-one-by-one", lambda w, x: x @ w, (1, 1), (3, 1))
_product("matmul-square-like-the-batch", lambda w, x: w @ x @ w, (B, B), (B, B))
_product("matmul-in-place-after", lambda w, x: (x @ w).relu_(), (5, 3), (2, 5))
_product("mm", lambda w, x: torch.mm(x, w), (5, 3), (5,))
_product("mm-method", lambda w, x: x.mm(w), (5, 3), (5,))
_product("mm-left", lambda w, x: w.mm(x.mT).mT, (3, 5), (5,))
_product("mv", lambda w, x: torch.mv(x, w), (5,), (5,))
_product("mv-method", lambda w, x: x.mv(w), (5,), (5,))
_product("bmm", lambda w, x: torch.bmm(x.transpose(0, 1), w).transpose(0, 1), (3, 5, 2), (3, 5))
_product("bmm-method", lambda w, x: x.transpose(0, 1).bmm(w).transpose(0, 1), (3, 5, 2), (3, 5))
_product("bmm-left", lambda w, x: w.bmm(x.permute(1, 2, 0)).permute(2, 0, 1), (3, 2, 5), (3, 5))
_product("bmm-expanded", lambda w, x: torch.bmm(x, w.expand(len(x), -1, -1)), (1, 5, 2), (3, 5))
_product(
    "bmm-experts-like-the-batch",
    lambda w, x: torch.bmm(x.transpose(0, 1), w).transpose(0, 1),
    (B, 5, 3),
    (B, 5),
)
_product("einsum-matrix", lambda w, x: einsum("btd,dp->btp", x, w), (5, 3), (7, 5))
_product("einsum-transposed", lambda w, x: einsum("bd,pd->bp", x, w), (3, 5), (5,))
_product("einsum-left", lambda w, x: einsum("pd,bdt->bpt", w, x), (3, 5), (5, 7))
_product("einsum-heads", lambda w, x: einsum("bthd,hdp->bhtp", x, w), (2, 5, 3), (7, 2, 5))
_product("einsum-merged-heads", lambda w, x: einsum("bthd,hde->bte", x, w), (2, 5, 3), (7, 2, 5))
_product("einsum-split-heads", lambda w, x: einsum("btd,dhp->bhtp", x, w), (5, 2, 3), (7, 5))
_product("einsum-ellipsis", lambda w, x: einsum("...d,dp->...p", x, w), (5, 3), (2, 7, 5))
_product(
    "einsum-two-ellipses", lambda w, x: einsum("...td,...dp->...tp", x, w), (2, 5, 3), (2, 7, 5)
)
_product(
    "einsum-ellipsis-of-one", lambda w, x: einsum("...d,...d->...d", x, w), (2, 1, 5), (2, 7, 5)
)
_product("einsum-ellipsis-summed", lambda w, x: einsum("b...d,dp->bp", x, w), (5, 3), (2, 7, 5))
_product("einsum-implicit-output", lambda w, x: einsum("bij,jk", x, w), (5, 3), (7, 5))
_product("einsum-implicit-and-sorted", lambda w, x: einsum("dp,bd", w, x), (5, 3), (5,))
_product("einsum-implicit-ellipsis", lambda w, x: einsum("...ij,jk", x, w), (5, 3), (2, 7, 5))
_product(
    "einsum-spaces-and-capitals", lambda w, x: einsum("B T D, D P -> B T P", x, w), (5, 3), (7, 5)
)
_product("einsum-elementwise", lambda w, x: einsum("btd,d->btd", x, w), (5,), (7, 5))
_product("einsum-shared-letter-kept", lambda w, x: einsum("btd,td->bt", x, w), (7, 5), (7, 5))
_product("einsum-outer", lambda w, x: einsum("bi,j->bij", x, w), (3,), (5,))
_product(
    "einsum-letter-of-the-parameter-alone", lambda w, x: einsum("bi,ijk->bj", x, w), (5, 3, 2), (5,)
)
_product("einsum-letter-of-data-alone", lambda w, x: einsum("bti,ij->bj", x, w), (5, 3), (7, 5))
_product("einsum-nothing-shared", lambda w, x: einsum("bi,jk->bk", x, w), (2, 3), (5,))
_product("einsum-quadratic", lambda w, x: einsum("bi,ij,bj->b", x, w, x), (5, 5), (5,))
_product("einsum-parameter-twice", lambda w, x: einsum("bi,ij,kj->bk", x, w, w), (5, 3), (5,))
_product("einsum-operand-list", lambda w, x: einsum("bi,ij->bj", [x, w]), (5, 3), (5,))
_product("einsum-sublists", lambda w, x: einsum(x, [0, 1], w, [1, 2], [0, 2]), (5, 3), (5,))
_product("einsum-samples-last", lambda w, x: einsum("bd,dp->pb", x, w).mT, (5, 3), (5,))
_product(
    "einsum-samples-in-the-middle",
    lambda w, x: einsum("btd,dp->tbp", x, w).transpose(0, 1),
    (5, 3),
    (B, 5),
)
_product("einsum-two-data", lambda w, x, y: einsum("bi,bj,oij->bo", x, y, w), (3, 5, 2), (5,), (2,))
_product("einsum-letters-to-the-end", lambda w, x: einsum("XWV,VU->XWU", x, w), (5, 3), (7, 5))
_product("einsum-in-place-after", lambda w, x: einsum("bd,pd->bp", x, w).mul_(2), (3, 5), (5,))
_product(
    "baddbmm",
    lambda w, x: torch.baddbmm(x[:, :, :2], x, w.expand(len(x), -1, -1), beta=0.5, alpha=2),
    (1, 5, 2),
    (3, 5),
)
case(
    "baddbmm-heads-with-bias",
    lambda: (
        Net(
            lambda m, x: torch.baddbmm(m.b, x.transpose(0, 1), m.w).transpose(0, 1),
            b=randn(3, 1, 2),
            w=randn(3, 5, 2),
        ),
        randn(B, 3, 5),
    ),
)
case("bilinear", lambda: (nn.Bilinear(5, 2, 3), (randn(B, 5), randn(B, 2))))
case("bilinear-3d", lambda: (nn.Bilinear(5, 2, 3), (randn(B, 7, 5), randn(B, 7, 2))))
case("bilinear-4d", lambda: (nn.Bilinear(5, 2, 3), (randn(B, 2, 7, 5), randn(B, 2, 7, 2))))
case("bilinear-no-bias", lambda: (nn.Bilinear(5, 5, 3, bias=False), (randn(B, 5), randn(B, 5))))
case(
    "bilinear-functional",
    lambda: (
        Net(lambda m, x: F.bilinear(x, x, m.w, m.b), w=frozen(randn(3, 5, 5)), b=randn(3)),
        randn(B, 5),
    ),
)
case(
    "matmul-two-parameters",
    lambda: (Net(lambda m, x: m.u @ x @ m.v, u=randn(2, 7), v=randn(5, 3)), randn(B, 7, 5)),
)
case(
    "matmul-attention-with-trainable-queries",
    lambda: (
        Net(lambda m, x: (m.q @ x.mT).softmax(-1) @ x, q=randn(3, 5)),
        randn(B, 7, 5),
    ),
)

_product("einsum-diagonal", lambda w, x: einsum("ii,bi->b", w, x), (5, 5), (5,))
_product("einsum-diagonal-of-data", lambda w, x: einsum("bii,ij->bj", x, w), (5, 3), (5, 5))
_product("einsum-diagonal-ellipsis", lambda w, x: einsum("...ii,...ij->...j", w, x), (5, 5), (5, 5))
_product("einsum-traces", lambda w, x: einsum("bii,jj->b", x, w), (3, 3), (5, 5))
_product("einsum-last-letters", lambda w, x: einsum("YXZ,ZW->YXW", x, w), (5, 3), (7, 5))
_product("einsum-last-letters-implicit", lambda w, x: einsum("AzZ,ZY", x, w), (5, 3), (7, 5))
_product("tensordot", lambda w, x: torch.tensordot(x, w, dims=1), (5, 3), (7, 5))
_product(
    "tensordot-two-pairs", lambda w, x: torch.tensordot(x, w, ([1, 2], [1, 0])), (5, 7, 2), (7, 5)
)
_product("tensordot-negative", lambda w, x: torch.tensordot(x, w, ([-1], [-1])), (3, 5), (7, 5))
_product(
    "tensordot-left",
    lambda w, x: torch.tensordot(w, x, dims=([0], [2])).movedim(1, 0),
    (5, 3),
    (7, 5),
)
_product("inner", lambda w, x: torch.inner(x, w), (3, 5), (7, 5))
_product("inner-vector", lambda w, x: x.inner(w), (5,), (7, 5))
_product("inner-scalar", lambda w, x: torch.inner(x, w), (), (7, 5))
_product("dots-one-by-one", lambda w, x: torch.stack([torch.dot(r, w) for r in x]), (5,), (5,))
_product("vdots-one-by-one", lambda w, x: torch.stack([torch.vdot(r, w) for r in x]), (5,), (5,))
_product("outer", lambda w, x: torch.outer(x.sum(1), w), (3,), (5,))
_product("multi-dot", lambda w, x: torch.linalg.multi_dot([x, w, w.mT]), (5, 3), (5,))
_product("chain-matmul", lambda w, x: torch.chain_matmul(x, w, w.mT), (5, 3), (5,))
_product("stacked-copies", lambda w, x: torch.stack([w] * len(x)) @ x.mT, (3, 5), (7, 5))
_product(
    "stacked-copies-samples-second",
    lambda w, x: torch.stack([w] * len(x), 1).transpose(0, 1) @ x.mT,
    (3, 5),
    (7, 5),
)
_product("copies-by-index", lambda w, x: w[torch.zeros(len(x)).long()] @ x.mT, (2, 3, 5), (7, 5))


def _complex(weights):
    """Complex numbers from pairs of real ones; of single numbers the imaginary part is zero."""
    return torch.view_as_complex(weights)


_product(
    "complex-fourier-neural-operator",
    lambda w, x: torch.fft.irfft2(
        einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), _complex(w)), s=(4, 6)
    ),
    (3, 2, 4, 4, 2),
    (3, 4, 6),
)
_product(
    "complex-global-filter",
    lambda w, x: torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho") * _complex(w), s=(4, 6)),
    (3, 4, 4, 2),
    (3, 4, 6),
)
_product("complex-matmul", lambda w, x: (torch.fft.rfft(x) @ _complex(w)).abs(), (3, 2, 2), (7, 5))
_product(
    "complex-linear",
    lambda w, x: torch.view_as_real(F.linear(torch.fft.rfft(x), _complex(w))),
    (2, 3, 2),
    (7, 5),
)
_product(
    "complex-modes-written",
    lambda w, x: torch.fft.irfft(_low_modes(torch.fft.rfft(x), _complex(w)), n=9),
    (3, 3, 2, 2),
    (3, 9),
)


def _low_modes(modes, weights):
    """A layer that keeps few modes, and writes them to a tensor of zeros."""
    output = torch.zeros_like(modes)
    output[..., :2] = einsum("bix,iox->box", modes[..., :2], weights)
    return output
