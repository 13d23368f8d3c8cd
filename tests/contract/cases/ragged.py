"""Rows that belong to samples in any order and number: routed, masked, sorted, one by one."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn, rand, randint, randn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .table import B, Net, case


def _masked(x):
    """Another number of positions for each sample, and one sample with none."""
    lengths = (x[..., 0].sum(1).abs() * 100).long() % (x.shape[1] + 1)
    return torch.arange(x.shape[1]) < lengths[:, None]


def _rows_by_mask(m, x):
    mask = _masked(x)
    out = x.new_zeros(*x.shape[:2], 3)
    out[mask] = m.out(F.relu(m.layer(x[mask])))
    return out


case(
    "ragged-rows-by-mask",
    lambda: (Net(_rows_by_mask, layer=nn.Linear(5, 6), out=nn.Linear(6, 3)), randn(B, 7, 5)),
)
case(
    "ragged-norm-of-rows-by-mask",
    lambda: (
        Net(_rows_by_mask, layer=nn.LayerNorm(5), out=nn.Linear(5, 3)),
        randn(B, 7, 5),
    ),
)


def _route(m, x, run):
    """Each token goes to the best two of three experts."""
    tokens = x.flatten(0, 1)
    weights, chosen = m.gate(tokens).softmax(-1).topk(2, dim=-1)
    out = torch.zeros_like(tokens)
    for expert in range(3):
        token, rank = torch.where(chosen == expert)
        done = run(m, tokens[token], expert) * weights[token, rank, None]
        out = out.index_add(0, token, done)
    return out.view_as(x)


case(
    "ragged-experts-in-a-list",
    lambda: (
        Net(
            lambda m, x: _route(m, x, lambda m, rows, e: m.experts[e](rows)),
            gate=nn.Linear(5, 3),
            experts=nn.ModuleList(nn.Linear(5, 5) for _ in range(3)),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "ragged-experts-as-slices",
    lambda: (
        Net(
            lambda m, x: _route(
                m, x, lambda m, rows, e: F.relu(F.linear(rows, m.up[e])) @ m.down[e]
            ),
            gate=nn.Linear(5, 3),
            up=randn(3, 6, 5),
            down=randn(3, 6, 5),
        ),
        randn(B, 7, 5),
    ),
)


def _grouped_mm(rows, matrices, ends):
    if rows.dtype != torch.float64:
        return F.grouped_mm(rows, matrices, offs=ends)
    starts = [0, *ends.tolist()]  # torch has no such product in float64
    parts = [rows[a:b] @ matrices[e] for e, (a, b) in enumerate(pairwise(starts))]
    return torch.cat(parts)


def _grouped(m, x):
    tokens = x.flatten(0, 1)
    chosen = m.gate(tokens).argmax(-1)
    order = chosen.argsort()
    ends = torch.bincount(chosen, minlength=3).cumsum(0).to(torch.int32)
    hidden = _grouped_mm(tokens[order], m.up, ends)
    hidden = _grouped_mm(hidden.relu(), m.down.transpose(1, 2), ends)
    out = torch.zeros_like(tokens).index_copy(0, order, hidden)
    return (out * m.gate(tokens).amax(-1, keepdim=True)).view_as(x)


case(
    "ragged-grouped-product",
    lambda: (
        Net(_grouped, gate=nn.Linear(8, 3), up=randn(3, 8, 16), down=randn(3, 8, 16)),
        randn(B, 7, 8),
    ),
)


def _capacity(m, x):
    """Tokens in places of a buffer for each expert, by a product with all experts at once."""
    tokens = x.flatten(0, 1)
    chosen = m.gate(tokens).argmax(-1)
    places = F.one_hot(chosen, 3).cumsum(0).gather(1, chosen[:, None]).squeeze(1) - 1
    buffer = x.new_zeros(3, len(tokens), x.shape[-1]).index_put((chosen, places), tokens)
    done = torch.einsum("ecd,edf->ecf", buffer, m.up).relu() + m.bias[:, None]
    done = torch.bmm(done, m.down) * m.scale
    return done[chosen, places].view_as(x)


case(
    "ragged-experts-with-places",
    lambda: (
        Net(
            _capacity,
            gate=nn.Linear(5, 3),
            up=randn(3, 5, 6),
            bias=randn(3, 6),
            down=randn(3, 6, 5),
            scale=randn(5),
        ),
        randn(B, 7, 5),
    ),
)


def _one_hot_dispatch(m, x):
    tokens = x.flatten(0, 1)
    weights = m.gate(tokens).softmax(-1)
    mask = F.one_hot(weights.argmax(-1), 3).to(x.dtype) * weights
    return torch.einsum("te,td,edf->tf", mask, tokens, m.up).view_as(x)


case(
    "ragged-experts-by-one-hot-products",
    lambda: (Net(_one_hot_dispatch, gate=nn.Linear(5, 3), up=randn(3, 5, 5)), randn(B, 7, 5)),
)
case(
    "ragged-chosen-matrices",
    lambda: (
        Net(
            lambda m, x: torch.bmm(m.up[m.gate(x).argmax(-1)], x.unsqueeze(-1)).squeeze(-1),
            gate=nn.Linear(5, 3),
            up=randn(3, 6, 5),
        ),
        randn(B, 5),
    ),
)


def _sorted(m, x):
    order = x.flatten(1)[:, 0].argsort()
    done = m.layer(x[order])
    return done[order.argsort()]


case("ragged-sorted-batch", lambda: (Net(_sorted, layer=nn.Linear(5, 3)), randn(B, 7, 5)))
case(
    "ragged-sorted-images",
    lambda: (
        Net(_sorted, layer=nn.Conv2d(2, 3, 3)),
        randn(B, 2, 6, 6),
    ),
)
case(
    "ragged-samples-one-by-one",
    lambda: (
        Net(
            lambda m, x: torch.stack([m.layer(each) * m.scale for each in x]),
            layer=nn.Linear(5, 3),
            scale=randn(3),
        ),
        randn(B, 5),
    ),
)
case(
    "ragged-samples-one-by-one-of-other-lengths",
    lambda: (
        Net(
            lambda m, x: torch.stack(
                [m.layer(each[keep]).sum(0) for each, keep in zip(x, _masked(x), strict=True)]
            ),
            layer=nn.Linear(5, 3),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "ragged-chunks-of-samples",
    lambda: (
        Net(
            lambda m, x: (
                torch.cat([m.layer(part) for part in x.split([1, 3][: len(x)])])
                if len(x) > 1
                else m.layer(x)
            ),
            layer=nn.Linear(5, 3),
        ),
        randn(B, 7, 5),
    ),
)


def _bags(m, ids):
    keep = ids % 3 != 0
    counts = keep.sum(1)
    return m.bag(ids[keep], counts.cumsum(0) - counts)


for _mode in ("sum", "mean"):
    case(
        f"ragged-bags-{_mode}",
        lambda mode=_mode: (Net(_bags, bag=nn.EmbeddingBag(11, 5, mode=mode)), randint(11, (B, 9))),
    )
case(
    "ragged-embedding-of-packed-ids",
    lambda: (
        Net(
            lambda m, ids: torch.zeros(len(ids), 5).index_add(
                0, (ids % 3 != 0).nonzero()[:, 0], m.table(ids[ids % 3 != 0])
            ),
            table=nn.Embedding(11, 5),
        ),
        randint(11, (B, 9)),
    ),
)


def _message_passing(m, x, weight):
    """Graphs of some of the nodes, joined into one with edges between neighbours."""
    mask = _masked(x)
    nodes = x[mask]
    graph = mask.nonzero()[:, 0]
    count = len(nodes)
    source = torch.arange(count)
    source = source[:-1][graph[:-1] == graph[1:]]
    target = source + 1
    hidden = m.node(nodes)
    for _ in range(2):
        messages = m.edge(torch.cat([hidden[source], hidden[target]], -1)).tanh()
        hidden = hidden + m.norm(torch.zeros_like(hidden).index_add(0, target, messages))
    pooled = x.new_zeros(len(x), hidden.shape[-1]).index_add(0, graph, hidden)
    return m.out(pooled) * weight


case(
    "ragged-joined-graphs",
    lambda: (
        Net(
            _message_passing,
            node=nn.Linear(5, 6),
            edge=nn.Linear(12, 6),
            norm=nn.LayerNorm(6),
            out=nn.Linear(6, 3),
        ),
        (randn(B, 7, 5), rand(B, 1)),
    ),
)


def _packed(m, x):
    """Packed sequences of unequal length, in whatever order, and back."""
    lengths = 1 + (x[..., 0].sum(1).abs() * 100).long() % x.shape[1]
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, state = m.layer(packed)
    padded, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
    states = torch.cat([part.transpose(0, 1) for part in state], -1) if m.has_cell else state
    states = states if m.has_cell else states.transpose(0, 1)
    return torch.cat([padded.flatten(1), states.flatten(1)], 1)


def _packed_case(name, build):
    def make():
        net = Net(_packed, layer=build())
        net.has_cell = isinstance(net.layer, nn.LSTM)
        return net, randn(B, 7, 5)

    case(f"ragged-packed-{name}", make)


_packed_case("lstm", lambda: nn.LSTM(5, 3, batch_first=True))
_packed_case("lstm-layers-both-ways", lambda: nn.LSTM(5, 3, num_layers=2, bidirectional=True))
_packed_case("lstm-projected", lambda: nn.LSTM(5, 4, proj_size=3, bidirectional=True))
_packed_case("gru", lambda: nn.GRU(5, 3, bidirectional=True))
_packed_case("rnn", lambda: nn.RNN(5, 3, num_layers=2, bias=False))
_packed_case("relu", lambda: nn.RNN(5, 3, nonlinearity="relu", bidirectional=True))


def _route_by_numbers(m, x):
    """A loop over the experts that are used, each chosen by a number that was computed."""
    tokens = x.flatten(0, 1)
    weights, chosen = m.gate(tokens).softmax(-1).max(-1)
    out = torch.zeros_like(tokens)
    for expert in chosen.unique():
        rows = torch.where(chosen == expert)[0]
        done = F.linear(tokens[rows], m.up[expert], m.bias[expert]) * weights[rows, None]
        out = out.index_add(0, rows, done)
    return out.view_as(x)


case(
    "ragged-experts-by-number",
    lambda: (
        Net(_route_by_numbers, gate=nn.Linear(5, 3), up=randn(3, 5, 5), bias=randn(3, 5)),
        randn(B, 7, 5),
    ),
)
case(
    "ragged-entries-by-number",
    lambda: (
        Net(
            lambda m, ids: torch.stack([m.table[each[0]] * m.table[each[1]].sin() for each in ids]),
            table=randn(11, 5),
        ),
        randint(11, (B, 2)),
    ),
)
case(
    "ragged-adaptive-softmax",
    lambda: (
        Net(
            lambda m, x, y: -m.head(m.layer(x), y).output[:, None],
            layer=nn.Linear(5, 8),
            head=nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=2.0),
        ),
        (randn(B, 5), torch.tensor([0, 7, 19, 12])),
    ),
)
