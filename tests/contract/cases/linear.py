"""Linear layers and addmm."""

import torch
import torch.nn.functional as F
from torch import nn, randn

from .table import B, Net, case, frozen

case("linear-2d", lambda: (nn.Linear(5, 3), randn(B, 5)))
case("linear-3d", lambda: (nn.Linear(5, 3), randn(B, 7, 5)))
case("linear-4d", lambda: (nn.Linear(5, 3), randn(B, 2, 3, 5)))
case("linear-no-bias", lambda: (nn.Linear(5, 3, bias=False), randn(B, 3, 5)))
case("linear-one-output", lambda: (nn.Linear(5, 1), randn(B, 5)))
case("linear-positions-look-like-samples", lambda: (nn.Linear(B, B), randn(B, B, B)))
case(
    "linear-transposed-input",
    lambda: (Net(lambda m, x: m.f(x.mT), f=nn.Linear(7, 3)), randn(B, 7, 5)),
)
case(
    "linear-mlp", lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), randn(B, 5))
)


def _frozen_part(name: str) -> nn.Linear:
    layer = nn.Linear(5, 3)
    frozen(getattr(layer, name))
    return layer


case("linear-frozen-weight", lambda: (_frozen_part("weight"), randn(B, 3, 5)))
case("linear-frozen-bias", lambda: (_frozen_part("bias"), randn(B, 3, 5)))
case(
    "linear-frozen-layer-between",
    lambda: (
        nn.Sequential(nn.Linear(5, 6), frozen(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3)),
        randn(B, 5),
    ),
)
case(
    "linear-called-by-keyword",
    lambda: (Net(lambda m, x: m.f(input=x), f=nn.Linear(5, 3)), randn(B, 5)),
)
case(
    "linear-functional-by-keyword",
    lambda: (
        Net(lambda m, x: F.linear(input=x, weight=m.w, bias=m.b), w=randn(3, 5), b=randn(3)),
        randn(B, 5),
    ),
)
case(
    "linear-weight-of-a-child",
    lambda: (
        Net(lambda m, x: F.linear(x, m.f.weight, m.f.bias), f=nn.Linear(5, 3)),
        randn(B, 2, 5),
    ),
)
case(
    "linear-parameter-handed-to-a-child",
    lambda: (
        Net(lambda m, x: m.child(x, m.w), w=randn(3, 5), child=Net(lambda m, x, w: F.linear(x, w))),
        randn(B, 5),
    ),
)
case(
    "linear-parameter-list",
    lambda: (
        Net(
            lambda m, x: F.linear(F.linear(x, m.ws[0]), m.ws[1]),
            ws=nn.ParameterList([randn(6, 5), randn(3, 6)]),
        ),
        randn(B, 5),
    ),
)
case(
    "linear-of-a-parameter",
    lambda: (
        Net(lambda m, x: x @ F.linear(m.w, m.v).mT, w=randn(3, 2), v=randn(5, 2)),
        randn(B, 5),
    ),
)


def _addmm(function, **parts):
    return Net(lambda m, x: function(m, x), **parts), randn(B, 5)


case("addmm", lambda: _addmm(lambda m, x: torch.addmm(m.b, x, m.w), b=randn(3), w=randn(5, 3)))
case("addmm-method", lambda: _addmm(lambda m, x: m.b.addmm(x, m.w), b=randn(3), w=randn(5, 3)))
case(
    "addmm-by-keyword",
    lambda: _addmm(
        lambda m, x: torch.addmm(input=m.b, mat1=x, mat2=m.w, beta=1), b=randn(3), w=randn(5, 3)
    ),
)
case(
    "addmm-scaled",
    lambda: _addmm(
        lambda m, x: torch.addmm(m.b, x, m.w, alpha=0.5, beta=2), b=randn(3), w=randn(5, 3)
    ),
)
case(
    "addmm-row-bias",
    lambda: _addmm(lambda m, x: torch.addmm(m.b, x, m.w), b=randn(1, 3), w=randn(5, 3)),
)
case(
    "addmm-scalar-bias",
    lambda: _addmm(lambda m, x: torch.addmm(m.b, x, m.w), b=randn(()), w=randn(5, 3)),
)
case(
    "addmm-parameter-on-the-left",
    lambda: _addmm(lambda m, x: torch.addmm(m.b, m.w, x.mT).mT, b=randn(3, 1), w=randn(3, 5)),
)
case(
    "addmm-only-bias-trainable",
    lambda: _addmm(lambda m, x: torch.addmm(m.b, x, m.w), b=randn(3), w=frozen(randn(5, 3))),
)
case(
    "addmm-onto-data",
    lambda: (
        Net(lambda m, x, y: torch.addmm(y, x, m.w), w=randn(5, 3)),
        (randn(B, 5), randn(B, 3)),
    ),
)
case(
    "addmm-flattened-tokens",
    lambda: (
        Net(
            lambda m, x: torch.addmm(m.b, x.view(-1, 5), m.w).view(*x.shape[:2], 3),
            b=randn(3),
            w=randn(5, 3),
        ),
        randn(B, 7, 5),
    ),
)

_BIASES = {"one": (1,), "scalar": (), "row": (1, 3), "column": (1, 1), "cube": (1, 1, 1)}
for _kind, _shape in _BIASES.items():
    if len(_shape) < 3:
        case(
            f"linear-bias-{_kind}",
            lambda s=_shape: (
                Net(lambda m, x: F.linear(x, m.w, m.b), w=randn(3, 5), b=randn(s)),
                randn(B, 5),
            ),
        )
        case(
            f"addmm-bias-{_kind}",
            lambda s=_shape: _addmm(
                lambda m, x: torch.addmm(m.b, x, m.w), b=randn(s), w=randn(5, 3)
            ),
        )
        case(
            f"addmm-scaled-bias-{_kind}",
            lambda s=_shape: _addmm(
                lambda m, x: m.b.addmm(x, m.w, beta=0.3, alpha=-2), b=randn(s), w=randn(5, 3)
            ),
        )
    case(
        f"linear-3d-bias-{_kind}",
        lambda s=_shape: (
            Net(lambda m, x: F.linear(x, m.w, m.b), w=randn(3, 5), b=randn(s)),
            randn(B, 7, 5),
        ),
    )
    case(
        f"linear-frozen-weight-bias-{_kind}",
        lambda s=_shape: (
            Net(lambda m, x: F.linear(x, m.w, m.b), w=frozen(randn(3, 5)), b=randn(s)),
            randn(B, 7, 5),
        ),
    )
    case(
        f"baddbmm-bias-{_kind}",
        lambda s=_shape: (
            Net(
                lambda m, x: torch.baddbmm(m.b, x.transpose(0, 1), m.w).transpose(0, 1),
                b=randn(s),
                w=randn(7, 5, 3),
            ),
            randn(B, 7, 5),
        ),
    )
case(
    "linear-bias-expanded-over-samples",
    lambda: (
        Net(lambda m, x: F.linear(x, m.w, m.b.expand(len(x), -1)), w=randn(3, 5), b=randn(1, 3)),
        randn(B, 5),
    ),
)
case(
    "linear-bias-computed",
    lambda: (
        Net(lambda m, x: F.linear(x, m.w, m.b.sum(0, keepdim=True)), w=randn(3, 5), b=randn(4)),
        randn(B, 5),
    ),
)
case(
    "linear-vector-weight",
    lambda: (Net(lambda m, x: F.linear(x, m.w), w=randn(5)), randn(B, 7, 5)),
)
case(
    "linear-vector-weight-and-bias",
    lambda: (Net(lambda m, x: F.linear(x, m.w, m.b), w=randn(5), b=randn(())), randn(B, 7, 5)),
)
case(
    "addmm-scaled-onto-data",
    lambda: (
        Net(lambda m, x, y: y.addmm(x, m.w, beta=0.3, alpha=2), w=randn(5, 3)),
        (randn(B, 5), randn(B, 3)),
    ),
)
case(
    "addmm-without-its-addend",
    lambda: _addmm(lambda m, x: torch.addmm(m.b, x, m.w, beta=0), b=randn(3), w=randn(5, 3)),
)
case(
    "addmm-samples-in-columns",
    lambda: _addmm(lambda m, x: torch.addmm(m.b, m.w, x.mT).mT, b=randn(1), w=randn(3, 5)),
)
