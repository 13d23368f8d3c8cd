"""Operations on the features of each position: any dimensions may come before the last."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .pool import WIDTH, WORDS, Pool

Operation = Callable[[Pool, str, Tensor], Tensor]
POINTWISE: dict[str, Operation] = {
    # without parameters
    "tanh": lambda p, k, h: h.tanh(),
    "gelu": lambda p, k, h: F.gelu(h),
    "sine": lambda p, k, h: h.sin(),
    "leaky_relu": lambda p, k, h: F.leaky_relu(h, 0.3),
    "softmax": lambda p, k, h: h.softmax(-1),
    "centred": lambda p, k, h: h - h.mean(-1, keepdim=True),
    "flipped": lambda p, k, h: h.flip(-1),
    "no dropout": lambda p, k, h: F.dropout(h, 0.0),
    "in place": lambda p, k, h: (h + 0).mul_(0.5).tanh_(),
    # products
    "linear": lambda p, k, h: F.linear(h, p.square(k), p.row(k)),
    "nn.Linear": lambda p, k, h: p.layer(k, linear)(h),
    "matmul": lambda p, k, h: h @ p.square(k),
    "matmul transposed": lambda p, k, h: h @ p.square(k).T,
    "matmul from the left": lambda p, k, h: (p.square(k) @ h.unsqueeze(-1)).squeeze(-1),
    "einsum": lambda p, k, h: torch.einsum("...d,de->...e", h, p.square(k)),
    "quadratic": lambda p, k, h: (
        h * torch.einsum("...i,ij,...j->...", h, p.square(k), h).tanh().unsqueeze(-1)
    ),
    "bilinear": lambda p, k, h: F.bilinear(h, h.cos(), p.tensor(k, WIDTH, WIDTH, WIDTH)).tanh(),
    # broadcasting
    "scale": lambda p, k, h: h * p.row(k),
    "shift": lambda p, k, h: p.row(k) + h,
    "scalar": lambda p, k, h: h * p.tensor(k),
    "power": lambda p, k, h: (h.square() + 1) ** p.row(k),
    "lerp": lambda p, k, h: torch.lerp(h, p.row(k), 0.3),
    "addcmul": lambda p, k, h: torch.addcmul(h, h.cos(), p.row(k)),
    "prelu": lambda p, k, h: torch.where(h > 0, h, h * p.row(k)),
    "gate": lambda p, k, h: h * torch.sigmoid(F.linear(h, p.square(k))),
    # normalization
    "layer_norm": lambda p, k, h: F.layer_norm(h, (WIDTH,), p.row(k), p.square(k)[0]),
    "nn.LayerNorm": lambda p, k, h: p.layer(k, layer_norm)(h),
    "rms_norm": lambda p, k, h: F.rms_norm(h, (WIDTH,), p.row(k)),
    # weights made of parameters
    "low rank": lambda p, k, h: h @ (p.square(k)[:, :2] @ p.square(k)[:2]),
    "normalized weight": lambda p, k, h: F.linear(h, F.normalize(p.square(k), dim=1)),
    "magnitude and direction": lambda p, k, h: F.linear(
        h, p.row(k)[:, None] * p.square(k) / p.square(k).norm(dim=1, keepdim=True)
    ),
    "weight of two": lambda p, k, h: F.linear(h, p.square(k) * p.tensor(k, WIDTH, 1).exp()),
    "slices": lambda p, k, h: torch.cat([h[..., :2] @ p.square(k)[:2, :2], h[..., 2:]], -1),
    "overlapping slices": lambda p, k, h: h @ (p.square(k)[:3].mT @ p.square(k)[1:]),
    "stacked rows": lambda p, k, h: F.linear(h, torch.stack(p.square(k).unbind(0)[::-1])),
    "exponential": lambda p, k, h: h * p.row(k).exp(),
    "orthogonal": lambda p, k, h: h @ torch.matrix_exp(p.square(k) - p.square(k).T),
    "half detached": lambda p, k, h: h @ (p.square(k) * p.square(k).detach()),
    "norm of a weight": lambda p, k, h: h * p.square(k).norm(),
    "nn weight_norm": lambda p, k, h: p.layer(k, weight_normed)(h),
    # look-ups by data
    "looked up": lambda p, k, h: h + F.embedding(_ids(h), p.tensor(k, WORDS, WIDTH)),
    "indexed": lambda p, k, h: h * p.square(k)[_ids(h) % WIDTH],
}


def _ids(h: Tensor) -> Tensor:
    return (3 * h.detach().tanh() + 3).sum(-1).long() % WORDS


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def layer_norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


def weight_normed() -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
