"""Samples that a model is called with as rows of one tensor: packed, joined into one graph."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import quietgrad as qg
from quietgrad.errors import QuietgradError, SampleMixingError

torch.manual_seed(0)
WIDTH = 5


def close(found, expected):
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-11)


def loop(model, losses, elements, join):
    rows = []
    for element in elements:
        (loss,) = losses(model, *join([element]))
        loss.backward()
        rows.append(
            {
                n: torch.zeros_like(p) if p.grad is None else p.grad
                for n, p in model.named_parameters()
            }
        )
        model.zero_grad()
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def check(model, losses, elements, join):
    model = model.double()
    batch = join(elements)
    found = qg.per_sample_grads(model, lambda: losses(model, *batch))
    close(found, loop(model, losses, elements, join))


# -- graphs --------------------------------------------------------------------------------------


def graphs(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for size in sizes:
        nodes = torch.randn(size, WIDTH, generator=generator, dtype=torch.float64)
        edges = torch.randint(size, (2, 2 * size), generator=generator)
        kinds = torch.randint(4, (2 * size,), generator=generator)
        made.append((nodes, edges, kinds))
    return made


def join_graphs(elements):
    starts, total = [], 0
    for nodes, *_ in elements:
        starts.append(total)
        total += len(nodes)
    nodes = torch.cat([nodes for nodes, *_ in elements])
    edges = torch.cat(
        [edges + start for (_, edges, _), start in zip(elements, starts, strict=True)], 1
    )
    kinds = torch.cat([kinds for *_, kinds in elements])
    owner = torch.cat([torch.full((len(n),), i) for i, (n, *_) in enumerate(elements)])
    return nodes, edges, kinds, owner


class GraphNet(nn.Module):
    def __init__(self, mix=None):
        super().__init__()
        self.node, self.edge = nn.Linear(WIDTH, 6), nn.Linear(12, 6)
        self.kind, self.norm, self.out = nn.Embedding(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.mix = mix or (lambda hidden: hidden)

    def forward(self, nodes, edges, kinds, owner):
        hidden = self.mix(self.node(nodes))
        for _ in range(2):
            source, target = edges
            messages = self.edge(torch.cat([hidden[source], hidden[target]], -1)) + self.kind(kinds)
            hidden = hidden + self.norm(
                torch.zeros_like(hidden).index_add(0, target, messages.tanh())
            )
        pooled = hidden.new_zeros(int(owner.max()) + 1, 6).index_add(0, owner, hidden)
        return self.out(pooled)


def graph_losses(model, *batch):
    return model(*batch).square().sum(1)


@pytest.mark.parametrize("sizes", [(3, 5, 2, 4), (4, 4, 4), (1, 7), (5, 5, 5, 5, 5), (2, 3, 6)])
def test_graphs_joined_into_one_are_exact(sizes):
    check(GraphNet(), graph_losses, graphs(*sizes), join_graphs)


def test_graphs_in_any_order_of_nodes_are_refused():
    """Nothing tells whether nodes belong to the element that they came with."""
    model, (nodes, edges, kinds, owner) = GraphNet().double(), join_graphs(graphs(3, 5, 2, 4))
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(3))
    batch = nodes[order], order.argsort()[edges], kinds, owner[order]
    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, lambda: graph_losses(model, *batch))


MIXES = {
    "centred": lambda hidden: hidden - hidden.mean(0),
    "centred by what is detached": lambda hidden: hidden - hidden.detach().mean(0),
    "scaled by the largest": lambda hidden: hidden / hidden.detach().abs().max(),
    "shifted": lambda hidden: hidden + 1e-4 * hidden.roll(1, 0),
    "ranked": lambda hidden: hidden * hidden.detach().argsort(0),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("sizes", [(3, 5, 2, 4), (4, 4, 4)])
def test_graphs_that_are_mixed_are_refused(mix, sizes):
    model, batch = GraphNet(MIXES[mix]).double(), join_graphs(graphs(*sizes))
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: graph_losses(model, *batch))


# -- packed tokens -------------------------------------------------------------------------------


def texts(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(11, (size,), generator=generator) for size in sizes]


def join_texts(elements):
    ends = torch.tensor([0, *(len(e) for e in elements)]).cumsum(0)
    return torch.cat(elements), ends


class PackedTransformer(nn.Module):
    """Tokens of all texts in one row; attention stays within a text."""

    def __init__(self, lead=False, pool=True):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 6), nn.Embedding(20, 6)
        self.qkv, self.out, self.head = nn.Linear(6, 18), nn.Linear(6, 6), nn.Linear(6, 3)
        self.lead, self.pool = lead, pool

    def forward(self, ids, ends):
        ids = ids[None] if self.lead else ids
        size = ends[-1]
        text = torch.bucketize(torch.arange(size), ends[1:], right=True)
        hidden = self.tokens(ids) + self.places(torch.arange(size) - ends[text])
        query, key, value = self.qkv(hidden).chunk(3, -1)
        allowed = text[:, None] == text
        shape = (1, 1, int(size), 6)
        mixed = F.scaled_dot_product_attention(
            *(part.reshape(shape) for part in (query, key, value)), attn_mask=allowed
        )
        hidden = hidden + self.out(mixed.reshape(hidden.shape))
        hidden = hidden[0] if self.lead else hidden
        if not self.pool:
            return self.head(hidden)
        return self.head(hidden.new_zeros(len(ends) - 1, 6).index_add(0, text, hidden))


def text_losses(model, ids, ends):
    output = model(ids, ends)
    if model.pool:
        return output.square().sum(1)
    parts = output.square().sum(1).split(ends.diff().tolist())
    return torch.stack([part.sum() for part in parts])


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("lead", [True, False])
@pytest.mark.parametrize("sizes", [(3, 5, 2, 4), (4, 4, 4), (1, 7), (2, 2, 2, 3)])
def test_packed_texts_are_exact(sizes, lead, pool):
    check(PackedTransformer(lead, pool), text_losses, texts(*sizes), join_texts)


class PackedBag(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(11, 6, mode=mode), nn.Linear(6, 3)

    def forward(self, ids, offsets):
        return self.out(self.bag(ids, offsets))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("sizes", [(3, 5, 2, 4), (4, 4, 4), (1, 7), (2, 2, 2, 3)])
def test_bags_by_offsets_are_exact(sizes, mode):
    def join(elements):
        ids, ends = join_texts(elements)
        return ids, ends[:-1]

    check(PackedBag(mode), lambda m, *b: m(*b).square().sum(1), texts(*sizes), join)


# -- packed sequences ----------------------------------------------------------------------------


class Tagger(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(WIDTH, 4, bidirectional=True)
        self.out = nn.Linear(8, 3)

    def forward(self, packed):
        output, _ = self.layer(packed)
        scores = PackedSequence(self.out(output.data), *output[1:])
        return pad_packed_sequence(scores, batch_first=True)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("sizes", [(5, 4, 2), (2, 5, 3, 1), (4, 4, 4)])
def test_packed_sequences_are_exact(kind, sizes):
    elements = [nodes for nodes, *_ in graphs(*sizes)]

    def join(some):
        return (pack_sequence(some, enforce_sorted=False),)

    check(Tagger(kind), lambda m, packed: m(packed).square().sum((1, 2)), elements, join)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_packed_layer_as_the_model_is_exact(kind):
    elements = [nodes for nodes, *_ in graphs(5, 4, 3, 2)]

    def losses(model, packed):
        state = model(packed)[1]
        state = state[0] if isinstance(state, tuple) else state
        return state[-1].square().sum(1)

    check(kind(WIDTH, 2), losses, elements, lambda some: (pack_sequence(some),))


def test_a_loader_of_graphs_trains():
    """By a collate_fn that joins graphs: in every step as clipped one by one."""
    data = graphs(3, 5, 2, 4, 6, 2, 3, 4)
    model = GraphNet().double()
    rate = 1e-3
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        data,
        batch_size=4,
        noise_multiplier=1e-9,
        delta=0.1,
        collate_fn=join_graphs,
        seed=0,
    )
    while engine.steps_taken < 6:
        for batch in engine.batches():
            before = [p.detach().clone() for p in model.parameters()]
            total = [torch.zeros_like(p) for p in before]
            for nodes, edges, kinds, owner in batch:
                model.eval()
                parts = []
                for graph in range(int(owner.max()) + 1):
                    mine = owner == graph
                    first = int(mine.nonzero()[0])
                    inside = mine[edges[0]]
                    parts.append((nodes[mine], edges[:, inside] - first, kinds[inside]))
                grads = loop(model, graph_losses, parts, join_graphs)
                model.train()
                norms = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
                weights = 1 / (norms + 0.01)
                total = [
                    t + torch.einsum("b,b...->...", weights, g)
                    for t, g in zip(total, grads.values(), strict=True)
                ]
                engine.backward(graph_losses(model, nodes, edges, kinds, owner))
            engine.step()
            for was, now, expected in zip(before, model.parameters(), total, strict=True):
                moved = (was - now.detach()) * 4 / rate
                torch.testing.assert_close(moved, expected, rtol=0, atol=1e-6)


def test_a_loader_whose_model_counts_the_nodes_of_all_graphs_is_refused():
    """Numbers of nodes are no values of rows: collating graphs with each other shows them."""
    data = graphs(3, 5, 2, 4, 6, 2, 3, 4)
    model = GraphNet(lambda hidden: hidden * len(hidden) / 10).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        data,
        batch_size=6,
        noise_multiplier=1.0,
        delta=0.1,
        collate_fn=join_graphs,
        seed=0,
    )

    def train():
        for batch in engine.batches():
            for content in batch:
                engine.backward(graph_losses(model, *content))
            engine.step()

    with pytest.raises(QuietgradError):
        train()
