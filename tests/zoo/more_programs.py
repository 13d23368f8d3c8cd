"""More programs: graphs, experts by hand, and convolutions of joined samples."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .programs import WIDTH, Parts, added, linear, owners_of, padded, program, programs

__all__ = ["programs"]


def edges_of(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """A ring within every sample, with nodes numbered through the batch."""
    start, source, target = 0, [], []
    for x in xs:
        nodes = torch.arange(len(x))
        source.append(start + nodes)
        target.append(start + (nodes + 1) % len(x))
        start += len(x)
    return torch.cat(source), torch.cat(target)


def graph() -> nn.Module:
    return Parts(message=nn.Linear(WIDTH, 8), update=nn.Linear(WIDTH + 8, 8), out=nn.Linear(8, 1))


@program(graph)
def messages_by_index_add(model: Any, xs: list[Tensor]) -> Tensor:
    x, (source, target) = torch.cat(xs), edges_of(xs)
    received = added(model["message"](x[source]).relu(), target, len(x))
    nodes = model["update"](torch.cat([x, received], 1)).relu()
    return model["out"](added(nodes, owners_of(xs), len(xs))).squeeze(1)


@program(graph)
def messages_by_scatter_add(model: Any, xs: list[Tensor]) -> Tensor:
    x, (source, target) = torch.cat(xs), edges_of(xs)
    messages = model["message"](x).relu()[source]
    received = messages.new_zeros(len(x), 8)
    received.scatter_add_(0, target[:, None].expand_as(messages), messages)
    nodes = model["update"](torch.cat([x, received], 1)).relu()
    means = torch.stack([nodes[owners_of(xs) == i].mean(0) for i in range(len(xs))])
    return model["out"](means).squeeze(1)


@program(graph)
def messages_by_a_sparse_matrix(model: Any, xs: list[Tensor]) -> Tensor:
    x, (source, target) = torch.cat(xs), edges_of(xs)
    ones = torch.ones(len(source), dtype=x.dtype)
    adjacency = torch.sparse_coo_tensor(torch.stack([target, source]), ones, (len(x), len(x)))
    received = torch.sparse.mm(adjacency, model["message"](x).relu())
    nodes = model["update"](torch.cat([x, received], 1)).relu()
    return model["out"](added(nodes, owners_of(xs), len(xs))).squeeze(1)


@program(graph)
def messages_by_a_block_diagonal(model: Any, xs: list[Tensor]) -> Tensor:
    x, (source, target) = torch.cat(xs), edges_of(xs)
    adjacency = x.new_zeros(len(x), len(x))
    adjacency[target, source] = 1.0
    nodes = model["update"](torch.cat([x, adjacency @ model["message"](x).relu()], 1)).relu()
    return model["out"](added(nodes, owners_of(xs), len(xs))).squeeze(1)


@program(
    lambda: Parts({"attend": torch.randn(16)}, project=nn.Linear(WIDTH, 8), out=nn.Linear(8, 1))
)
def graph_attention(model: Any, xs: list[Tensor]) -> Tensor:
    x, (source, target) = model["project"](torch.cat(xs)), edges_of(xs)
    scores = F.leaky_relu(torch.cat([x[source], x[target]], 1) @ model.attend).exp()
    totals = added(scores, target, len(x))
    weighted = added(x[source] * (scores / totals[target])[:, None], target, len(x))
    return model["out"](added(weighted.relu(), owners_of(xs), len(xs))).squeeze(1)


# Mixtures of experts written by hand, on joined rows.

EXPERTS = 3


def experts() -> nn.Module:
    made = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(EXPERTS))
    return Parts(router=nn.Linear(WIDTH, EXPERTS), experts=made, head=nn.Linear(4, 1))


def stacked_experts() -> nn.Module:
    weights = {"up": torch.randn(EXPERTS, WIDTH, 4) / 2}
    return Parts(weights, router=nn.Linear(WIDTH, EXPERTS), head=nn.Linear(4, 1))


def routed(model: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    weights, chosen = model["router"](rows).softmax(1).topk(2)
    return weights / weights.sum(1, keepdim=True), chosen


@program(experts)
def experts_by_index_add(model: Any, xs: list[Tensor]) -> Tensor:
    rows = torch.cat(xs)
    weights, chosen = routed(model, rows)
    out = rows.new_zeros(len(rows), 4)
    for number, expert in enumerate(model["experts"]):
        where, slot = (chosen == number).nonzero(as_tuple=True)
        out.index_add_(0, where, expert(rows[where]).relu() * weights[where, slot, None])
    return added(model["head"](out), owners_of(xs), len(xs)).squeeze(1)


@program(experts)
def experts_run_on_all_rows(model: Any, xs: list[Tensor]) -> Tensor:
    rows = torch.cat(xs)
    weights, chosen = routed(model, rows)
    dense = torch.zeros(len(rows), EXPERTS, dtype=rows.dtype).scatter(1, chosen, weights)
    outs = torch.stack([expert(rows).relu() for expert in model["experts"]], 1)
    out = (outs * dense[:, :, None]).sum(1)
    return added(model["head"](out), owners_of(xs), len(xs)).squeeze(1)


@program(stacked_experts)
def experts_by_gathered_weights(model: Any, xs: list[Tensor]) -> Tensor:
    rows = torch.cat(xs)
    weights, chosen = routed(model, rows)
    outs = torch.einsum("nd,nkdh->nkh", rows, model.up[chosen]).relu()
    out = (outs * weights[:, :, None]).sum(1)
    return added(model["head"](out), owners_of(xs), len(xs)).squeeze(1)


@program(stacked_experts)
def experts_by_one_hot_einsum(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    weights, chosen = model["router"](x).softmax(2).topk(2)
    hot = F.one_hot(chosen, EXPERTS).to(x.dtype)
    out = torch.einsum("btke,btk,btd,edh->bth", hot, weights, x, model.up).relu()
    return (model["head"](out).squeeze(2) * real).sum(1)


@program(stacked_experts)
def experts_by_sorted_rows(model: Any, xs: list[Tensor]) -> Tensor:
    rows = torch.cat(xs)
    chosen = model["router"](rows).argmax(1)
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=EXPERTS).tolist()
    parts = [part @ model.up[i] for i, part in enumerate(rows[order].split(counts))]
    out = torch.cat(parts)[order.argsort()].relu()
    gates = model["router"](rows).softmax(1).amax(1, keepdim=True)
    return added(model["head"](out * gates), owners_of(xs), len(xs)).squeeze(1)


@program(stacked_experts)
def experts_by_batched_product(model: Any, xs: list[Tensor]) -> Tensor:
    rows = torch.cat(xs)
    gates = model["router"](rows).softmax(1)
    outs = torch.bmm(rows.expand(EXPERTS, *rows.shape), model.up).relu()
    out = (outs * gates.t()[:, :, None]).sum(0)
    return added(model["head"](out), owners_of(xs), len(xs)).squeeze(1)


# Convolutions, crops and sets.


@program(lambda: Parts(conv=nn.Conv1d(WIDTH, 4, 3, padding=1), head=nn.Linear(4, 1)))
def convolution_of_each_sample_alone(model: Any, xs: list[Tensor]) -> Tensor:
    pooled = [model["conv"](x.t()[None]).relu().mean(2) for x in xs]
    return model["head"](torch.cat(pooled)).squeeze(1)


@program(lambda: Parts(conv=nn.Conv1d(WIDTH, 4, 1), head=nn.Linear(4, 1)))
def crops_folded_into_the_batch(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    crops = (x * real[:, :, None]).reshape(len(xs) * 2, 3, WIDTH)
    maps = model["conv"](crops.transpose(1, 2)).tanh().mean(2)
    return model["head"](maps.reshape(len(xs), 2, 4).mean(1)).squeeze(1)


@program(linear)
def pairs_of_rows_within_a_sample(model: Any, xs: list[Tensor]) -> Tensor:
    owners = owners_of(xs)
    rows = torch.cat(xs)
    first, second = ((owners[:, None] == owners) & ~torch.eye(len(rows)).bool()).nonzero().T
    products = model["first"](rows[first] * rows[second]).relu()
    return added(model["last"](products), owners[first], len(xs)).squeeze(1)


@program(linear)
def two_views_stacked_into_the_batch(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    both = model["last"](model["first"](torch.cat([x, x.flip(2)])).tanh()).squeeze(2)
    one, two = both.chunk(2)
    return ((one - two).square() * real).sum(1)


@program(linear)
def rows_rolled_and_flipped_back(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    rows = model["first"](x.flip(0)).tanh().flip(0)
    return (model["last"](rows).squeeze(2) * real).sum(1)


@program(
    lambda: Parts({"seeds": torch.randn(2, 8)}, first=nn.Linear(WIDTH, 8), last=nn.Linear(8, 1))
)
def learned_queries_over_a_padded_set(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    keys = model["first"](x)
    scores = (model.seeds @ keys.transpose(1, 2)).masked_fill(~real[:, None], -1e9)
    return model["last"](scores.softmax(2) @ keys).squeeze(2).sum(1)


@program(lambda: Parts(first=nn.Linear(WIDTH, 8), last=nn.Linear(8, 1)))
def vmap_over_samples(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)

    def one(sample: Tensor, kept: Tensor) -> Tensor:
        return (model["last"](model["first"](sample).tanh()).squeeze(1) * kept).sum()

    return torch.vmap(one)(x, real)


def remember(_module: nn.Module, _given: Any, output: Tensor) -> None:
    kept.append(output)


kept: list[Tensor] = []


@program(lambda: Parts(first=nn.Linear(WIDTH, 8), last=nn.Linear(8, 1)))
def hooks_that_the_first_call_installs(model: Any, xs: list[Tensor]) -> Tensor:
    """As transformers collects hidden states: installed twice, they collect everything twice."""
    if not getattr(model, "is_hooked", False):
        model["first"].register_forward_hook(remember)
        model.is_hooked = True
    kept.clear()
    x, real = padded(xs)
    model["first"](x)
    outputs = torch.stack(kept)
    kept.clear()
    return (model["last"](outputs.tanh()).sum(0).squeeze(2) * real).sum(1)
