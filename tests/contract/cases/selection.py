"""Entries of a parameter that data selects, in all the ways to write it."""

import torch
from torch import arange, nn, randint, randn

from .table import B, Net, case


def _selected(name, select, shape, *ids, below=5):
    """A case of ``select(parameter, *ids)``, given by their shapes, with ids below ``below``."""
    case(
        f"select-{name}",
        lambda: (
            Net(lambda m, *i: select(m.w, *i), w=randn(shape)),
            tuple(randint(below, (B, *each)) for each in ids),
        ),
    )


_selected("columns", lambda w, i: w[:, i].movedim(1, 0), (3, 5), (7,))
_selected("columns-like-the-batch", lambda w, i: w[:, i].movedim(1, 0), (B, 5), (B,))
_selected("behind-an-ellipsis", lambda w, i: w[..., i].movedim(2, 0), (3, 2, 5), (7,))
_selected("before-an-ellipsis", lambda w, i: w[i, ...], (5, 2, 3), (7,))
_selected("two-indices", lambda w, i, j: w[i, j], (5, 5, 2), (7,), (7,))
_selected("two-indices-of-a-matrix", lambda w, i, j: w[i, j], (5, 5), (7,), (7,))
_selected("two-indices-that-broadcast", lambda w, i, j: w[i[:, :, None], j], (5, 5), (7,), (7, 1))
_selected("indices-apart", lambda w, i: w[i, :, i], (5, 2, 5), (7,))
_selected("with-a-constant", lambda w, i: w[arange(3), i[:, None]], (3, 5, 2), ())
_selected("with-a-number", lambda w, i: w[1, i], (3, 5, 2), (7,))
_selected("with-a-slice", lambda w, i: w[i, 1:], (5, 4, 2), (7,))
_selected("with-steps", lambda w, i: w[i, ::2], (5, 7), (3,))
_selected("with-a-new-dimension", lambda w, i: w[i, None], (5, 3), (7,))
_selected("transposed-rows", lambda w, i: w.mT[i], (2, 5), (7,))
_selected("of-something-derived", lambda w, i: w.exp()[:, i].movedim(1, 0), (3, 5), (7,))
_selected("samples-second", lambda w, i: w[:, i.mT].permute(2, 0, 1), (3, 5), (7,))
_selected("index-select-columns", lambda w, i: w.index_select(1, i).mT, (3, 5), ())
_selected("gather-rows", lambda w, i: w.gather(0, i), (5, 3), (3,))
_selected("gather-by-keyword", lambda w, i: torch.gather(input=w, dim=0, index=i), (5, 3), (3,))
_selected("gather-of-copies", lambda w, i: w.expand(len(i), 2, 5).gather(2, i), (1, 1, 5), (2, 3))
_selected("take-along", lambda w, i: torch.take_along_dim(w[None], i, 2), (3, 5), (3, 7))
_selected("take-along-rows", lambda w, i: w.take_along_dim(i, 0), (5, 3), (3,))
_selected("take", lambda w, i: torch.take(w, i), (3, 5), (7,), below=15)
_selected(
    "masked-constant", lambda w, i: w[:, arange(5) > 2][:, i].movedim(1, 0), (3, 5), (7,), below=2
)
case(
    "select-rows-and-entries",
    lambda: (
        Net(lambda m, i: m.w[i] + m.w[:, i].movedim(1, 0) + m.w[i, i, None], w=randn(5, 5)),
        randint(5, (B, 5)),
    ),
)
case(
    "select-and-multiply",
    lambda: (
        Net(lambda m, i, x: m.w[:, i].movedim(1, 0) + x @ m.w, w=randn(5, 5)),
        (randint(5, (B, 5)), randn(B, 5, 5)),
    ),
)
case(
    "select-relative-positions",
    lambda: (
        Net(
            lambda m, x, p: x @ x.mT + m.table.weight.mT[0, p[:, None] - p[:, :, None] + 8],
            table=nn.Embedding(17, 1),
        ),
        (randn(B, 3, 5), randint(8, (B, 3))),
    ),
)
