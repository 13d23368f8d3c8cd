"""Look-ups in a table: embeddings, bags of embeddings, parameters indexed by data."""

import torch
import torch.nn.functional as F
from torch import nn, rand, randint, randn

from .table import B, Net, case

case("embedding", lambda: (nn.Embedding(9, 5), randint(9, (B, 7))))
case("embedding-one-id-per-sample", lambda: (nn.Embedding(9, 5), randint(9, (B,))))
case("embedding-3d-ids", lambda: (nn.Embedding(9, 5), randint(9, (B, 2, 3))))
case("embedding-repeated-ids", lambda: (nn.Embedding(2, 5), randint(2, (B, 9))))
case("embedding-same-id-everywhere", lambda: (nn.Embedding(9, 5), torch.full((B, 3), 2)))
case("embedding-padding", lambda: (nn.Embedding(3, 5, padding_idx=1), randint(3, (B, 7))))
case(
    "embedding-padding-from-the-end",
    lambda: (nn.Embedding(3, 5, padding_idx=-1), randint(3, (B, 7))),
)
case("embedding-positions-look-like-samples", lambda: (nn.Embedding(9, B), randint(9, (B, B))))
case(
    "embedding-by-keyword",
    lambda: (
        _table(lambda w, i: F.embedding(input=i, weight=w, padding_idx=0)),
        randint(3, (B, 7)),
    ),
)
case("embedding-native", lambda: (_table(lambda w, i: torch.embedding(w, i)), randint(3, (B, 7))))
case(
    "embedding-frozen-ids-then-linear",
    lambda: (nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 3)), randint(9, (B, 7))),
)
case(
    "embedding-of-a-product",
    lambda: (
        Net(lambda m, i: F.embedding(i, m.u @ m.v), u=randn(9, 2), v=randn(2, 5)),
        randint(9, (B, 7)),
    ),
)


def _table(look_up, *shape):
    return Net(lambda m, *ids: look_up(m.w, *ids), w=randn(shape or (3, 5)))


case("indexed-by-data", lambda: (_table(lambda w, i: w[i]), randint(3, (B, 7))))
case("indexed-by-one-id", lambda: (_table(lambda w, i: w[i]), randint(3, (B,))))
case("indexed-by-int32", lambda: (_table(lambda w, i: w[i.int()]), randint(3, (B, 7))))
case("indexed-from-the-end", lambda: (_table(lambda w, i: w[i - 3]), randint(3, (B, 7))))
case("indexed-vector", lambda: (_table(lambda w, i: w[i], 3), randint(3, (B, 7))))
case("indexed-3d-table", lambda: (_table(lambda w, i: w[i], 3, 5, 2), randint(3, (B, 7))))
case("indexed-by-a-tuple", lambda: (_table(lambda w, i: w[i, :]), randint(3, (B, 7))))
case("index-select", lambda: (_table(lambda w, i: w.index_select(0, i)), randint(3, (B,))))
case(
    "index-select-function",
    lambda: (_table(lambda w, i: torch.index_select(w, 0, i)), randint(3, (B,))),
)

for _mode in ("sum", "mean", "max"):
    case(f"bag-{_mode}", lambda m=_mode: (nn.EmbeddingBag(9, 5, mode=m), randint(9, (B, 7))))
    case(
        f"bag-{_mode}-padding",
        lambda m=_mode: (nn.EmbeddingBag(3, 5, mode=m, padding_idx=1), randint(3, (B, 7))),
    )
    case(f"bag-{_mode}-offsets", lambda m=_mode: _ragged(nn.EmbeddingBag(9, 5, mode=m)))
    case(
        f"bag-{_mode}-offsets-padding",
        lambda m=_mode: _ragged(nn.EmbeddingBag(9, 5, mode=m, padding_idx=-9)),
    )


def _ragged(bag, first=3, last=False, weighted=False):
    """Bags of 3, 2, 1 and 0 (or more) ids: stored as rows, flattened for the model."""
    counts = torch.arange(first, first - B, -1)

    def flattened(bag, ids, counts, weights):
        kept = torch.arange(ids.shape[1]) < counts[:, None]
        offsets = F.pad(counts.cumsum(0), (1, 0))
        offsets = offsets if last else offsets[:-1]
        return bag(ids[kept], offsets, per_sample_weights=weights[kept] if weighted else None)

    net = Net(lambda m, *args: flattened(m.bag, *args), bag=bag)
    return net, (randint(bag.num_embeddings, (B, first)), counts, rand(B, first))


case("bag-last-offset", lambda: _ragged(nn.EmbeddingBag(9, 5, include_last_offset=True), last=True))
case("bag-longer", lambda: _ragged(nn.EmbeddingBag(3, 5, mode="sum"), first=8))
case("bag-weights-offsets", lambda: _ragged(nn.EmbeddingBag(9, 5, mode="sum"), weighted=True))
case(
    "bag-weights",
    lambda: (
        Net(lambda m, i, w: m.bag(i, per_sample_weights=w), bag=nn.EmbeddingBag(9, 5, mode="sum")),
        (randint(9, (B, 7)), rand(B, 7)),
    ),
)
case(
    "bag-weights-that-depend-on-parameters",
    lambda: (
        Net(
            lambda m, i, x: m.bag(i, per_sample_weights=m.f(x)),
            bag=nn.EmbeddingBag(9, 5, mode="sum"),
            f=nn.Linear(3, 7),
        ),
        (randint(9, (B, 7)), rand(B, 3)),
    ),
)
case("bag-max-ties", lambda: (_tied_bag(), randint(9, (B, 7))))
case("bag-max-ties-padding", lambda: (_tied_bag(padding_idx=2), randint(9, (B, 7))))
case("bag-max-ties-offsets", lambda: _ragged(_tied_bag(), first=5))
case("bag-max-ties-offsets-padding", lambda: _ragged(_tied_bag(padding_idx=-1), first=5))
case(
    "bag-max-all-padding",
    lambda: (nn.EmbeddingBag(2, 5, mode="max", padding_idx=1), torch.tensor([[0], [1], [1], [0]])),
)
case("bag-one-id", lambda: (nn.EmbeddingBag(9, 5), randint(9, (B, 1))))
case(
    "bag-int32",
    lambda: (Net(lambda m, i: m.b(i.int()), b=nn.EmbeddingBag(9, 5)), randint(9, (B, 3))),
)
case(
    "bag-several-of-each-sample",
    lambda: (
        Net(
            lambda m, i: m.bag(i.flatten(0, 1)).view(len(i), -1),
            bag=nn.EmbeddingBag(9, 5, mode="max"),
        ),
        randint(9, (B, 3, 2)),
    ),
)
case(
    "bag-trainable-weights",
    lambda: (
        Net(
            lambda m, i: m.bag(i, per_sample_weights=m.w.expand(len(i), -1)),
            bag=nn.EmbeddingBag(9, 5, mode="sum"),
            w=rand(1, 7),
        ),
        randint(9, (B, 7)),
    ),
)


def _tied_bag(**options):
    """Few different values, so that several rows of a bag have the largest."""
    bag = nn.EmbeddingBag(9, 5, mode="max", **options)
    bag.weight.data = randint(2, (9, 5)).to(bag.weight.dtype)
    return bag
