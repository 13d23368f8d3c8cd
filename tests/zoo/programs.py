"""Plain torch programs as people write them: rows that move, graphs, packed and sorted batches.

Every one of them keeps samples apart, and every one is to be exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

from .judge import Subject

WIDTH, LENGTHS = 6, (3, 5, 2, 4)

Program = Callable[[nn.Module, list[Tensor]], Tensor]
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Program]] = {}


def program(make: Callable[[], nn.Module]) -> Callable[[Program], Program]:
    """Enter a program: what it runs on a list of ``[length, WIDTH]`` tensors, one loss each."""

    def enter(run: Program) -> Program:
        PROGRAMS[run.__name__.replace("_", " ")] = (make, run)
        return run

    return enter


def programs() -> dict[str, Callable[[], Subject]]:
    """All of them, by name."""
    return {f"program {name}": partial(subject_of, name) for name in PROGRAMS}


def subject_of(name: str) -> Subject:
    make, run = PROGRAMS[name]
    torch.manual_seed(5)
    model = make().double().train()
    samples = [torch.randn(n, WIDTH, dtype=torch.float64) for n in LENGTHS]
    model.run = run
    return Subject(model, samples, lambda model, xs: model(xs), name)


class Parts(nn.Module):
    """A model of these modules and parameters, whose forward is the program."""

    def __init__(self, parameters: dict[str, Tensor] | None = None, **modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({f"the_{name}": module for name, module in modules.items()})
        self.run: Program | None = None
        for name, value in (parameters or {}).items():
            self.register_parameter(name, nn.Parameter(value))

    def __getitem__(self, name: str) -> nn.Module:
        return self.parts[f"the_{name}"]

    def forward(self, xs: list[Tensor]) -> Tensor:
        assert self.run is not None
        return self.run(self, xs)


def linear() -> nn.Module:
    return Parts(first=nn.Linear(WIDTH, 8), last=nn.Linear(8, 1))


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        cell = kind(WIDTH, 4, batch_first=True, **options)
        return Parts(rnn=cell, head=nn.Linear(4 * (1 + cell.bidirectional), 1))

    return make


def lengths_of(xs: list[Tensor]) -> Tensor:
    return torch.tensor([len(x) for x in xs])


def owners_of(xs: list[Tensor]) -> Tensor:
    """The sample of every row of the joined samples."""
    return torch.arange(len(xs)).repeat_interleave(lengths_of(xs))


def padded(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """``[B, 6, WIDTH]`` whatever is in the batch, and which rows are real."""
    x = torch.stack([F.pad(x, (0, 0, 0, 6 - len(x))) for x in xs])
    return x, torch.arange(6) < lengths_of(xs)[:, None]


def added(rows: Tensor, owners: Tensor, count: int) -> Tensor:
    return torch.zeros(count, *rows.shape[1:], dtype=rows.dtype).index_add(0, owners, rows)


# Recurrent networks on packed sequences.


@program(recurrent(nn.LSTM))
def lstm_packed(model: Any, xs: list[Tensor]) -> Tensor:
    packed = pack_sequence(xs, enforce_sorted=False)
    _, (hidden, _) = model["rnn"](packed)
    return model["head"](hidden[-1]).squeeze(1)


@program(recurrent(nn.GRU))
def gru_packed(model: Any, xs: list[Tensor]) -> Tensor:
    _, hidden = model["rnn"](pack_sequence(xs, enforce_sorted=False))
    return model["head"](hidden[-1]).squeeze(1)


@program(recurrent(nn.RNN, bidirectional=True))
def bidirectional_packed(model: Any, xs: list[Tensor]) -> Tensor:
    output, _ = model["rnn"](pack_sequence(xs, enforce_sorted=False))
    rows, lengths = pad_packed_sequence(output, batch_first=True, total_length=6)
    return (model["head"](rows).squeeze(2) * (torch.arange(6) < lengths[:, None])).sum(1)


@program(recurrent(nn.LSTM, num_layers=2))
def lstm_padded_and_packed(model: Any, xs: list[Tensor]) -> Tensor:
    x, _ = padded(xs)
    packed = pack_padded_sequence(x, lengths_of(xs), batch_first=True, enforce_sorted=False)
    output, _ = model["rnn"](packed)
    rows, lengths = pad_packed_sequence(output, batch_first=True, total_length=6)
    last = rows[torch.arange(len(xs)), lengths - 1]
    return model["head"](last).squeeze(1)


@program(recurrent(nn.GRU))
def sorted_by_hand_and_restored(model: Any, xs: list[Tensor]) -> Tensor:
    lengths, order = lengths_of(xs).sort(descending=True, stable=True)
    x, _ = padded(xs)
    _, hidden = model["rnn"](pack_padded_sequence(x[order], lengths, batch_first=True))
    return model["head"](hidden[-1][order.argsort()]).squeeze(1)


@program(linear)
def linear_on_packed_data(model: Any, xs: list[Tensor]) -> Tensor:
    packed = pack_sequence(xs, enforce_sorted=False)
    data = model["last"](model["first"](packed.data).tanh())
    rows, _ = pad_packed_sequence(
        PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices),
        batch_first=True,
        total_length=6,
    )
    return rows.squeeze(2).sum(1)


@program(lambda: Parts(cell=nn.LSTMCell(WIDTH, 4), head=nn.Linear(4, 1)))
def lstm_cell_in_a_loop(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    hidden = cell = x.new_zeros(len(xs), 4)
    for step in range(6):
        new = model["cell"](x[:, step], (hidden, cell))
        keep = real[:, step, None]
        hidden, cell = (torch.where(keep, n, o) for n, o in zip(new, (hidden, cell), strict=True))
    return model["head"](hidden).squeeze(1)


@program(lambda: Parts(cell=nn.GRUCell(WIDTH, 4), head=nn.Linear(4, 1)))
def shrinking_batch_of_a_hand_written_rnn(model: Any, xs: list[Tensor]) -> Tensor:
    lengths, order = lengths_of(xs).sort(descending=True, stable=True)
    x = padded(xs)[0][order]
    hidden = x.new_zeros(len(xs), 4)
    for step in range(int(lengths[0])):
        alive = int((lengths > step).sum())
        hidden = torch.cat([model["cell"](x[:alive, step], hidden[:alive]), hidden[alive:]])
    return model["head"](hidden[order.argsort()]).squeeze(1)


# Rows of all samples joined into one dimension.


@program(linear)
def masked_rows_through_a_linear(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    rows = model["last"](model["first"](x[real]).relu()).squeeze(1)
    scores = x.new_zeros(real.shape)
    scores[real] = rows
    return scores.sum(1)


@program(linear)
def joined_rows_added_by_owner(model: Any, xs: list[Tensor]) -> Tensor:
    rows = model["last"](model["first"](torch.cat(xs)).relu())
    return added(rows, owners_of(xs), len(xs)).squeeze(1)


@program(linear)
def joined_rows_split_again(model: Any, xs: list[Tensor]) -> Tensor:
    rows = model["first"](torch.cat(xs)).relu().split([len(x) for x in xs])
    return model["last"](torch.stack([part.mean(0) for part in rows])).squeeze(1)


@program(linear)
def joined_rows_by_segment_reduce(model: Any, xs: list[Tensor]) -> Tensor:
    rows = model["first"](torch.cat(xs)).relu()
    means = torch.segment_reduce(rows, "mean", lengths=lengths_of(xs), axis=0)
    return model["last"](means).squeeze(1)


@program(linear)
def joined_rows_by_scatter_max(model: Any, xs: list[Tensor]) -> Tensor:
    rows = model["first"](torch.cat(xs))
    index = owners_of(xs)[:, None].expand_as(rows)
    start = rows.new_full((len(xs), rows.shape[1]), -1e9)
    return model["last"](start.scatter_reduce(0, index, rows, "amax")).squeeze(1)


@program(lambda: Parts(norm=nn.LayerNorm(WIDTH), first=nn.Linear(WIDTH, 8), last=nn.Linear(8, 1)))
def norm_of_joined_rows(model: Any, xs: list[Tensor]) -> Tensor:
    rows = model["last"](model["first"](model["norm"](torch.cat(xs))).relu())
    return added(rows, owners_of(xs), len(xs)).squeeze(1)


@program(linear)
def loop_over_samples_in_the_forward(model: Any, xs: list[Tensor]) -> Tensor:
    return torch.stack([model["last"](model["first"](x).relu()).mean() for x in xs])


@program(linear)
def loop_with_a_list_of_losses(model: Any, xs: list[Tensor]) -> Tensor:
    losses = []
    for x in xs:
        hidden = model["first"](x.unsqueeze(0)).relu().amax(1)
        losses.append(model["last"](hidden).squeeze(1))
    return torch.cat(losses)


@program(linear)
def halves_of_the_batch(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    rows = [model["first"](part).tanh() for part in x.chunk(2)]
    return (model["last"](torch.cat(rows)).squeeze(2) * real).sum(1)


@program(linear)
def chunks_of_joined_rows(model: Any, xs: list[Tensor]) -> Tensor:
    rows = torch.cat([model["first"](part).relu() for part in torch.cat(xs).split(4)])
    return added(model["last"](rows), owners_of(xs), len(xs)).squeeze(1)


@program(linear)
def time_first(model: Any, xs: list[Tensor]) -> Tensor:
    x, real = padded(xs)
    rows = model["last"](model["first"](x.transpose(0, 1)).tanh()).squeeze(2)
    return (rows.t() * real).sum(1)


@program(linear)
def pad_sequence_of_the_batch(model: Any, xs: list[Tensor]) -> Tensor:
    x = pad_sequence(xs, batch_first=True)
    real = torch.arange(x.shape[1]) < lengths_of(xs)[:, None]
    return (model["last"](model["first"](x).tanh()).squeeze(2) * real).sum(1)


@program(linear)
def nested_tensor(model: Any, xs: list[Tensor]) -> Tensor:
    nested = torch.nested.nested_tensor(xs, layout=torch.jagged)
    rows = model["last"](model["first"](nested).relu())
    return rows.to_padded_tensor(0.0).squeeze(2).sum(1)


@program(lambda: Parts(qkv=nn.Linear(WIDTH, 24), out=nn.Linear(8, 1)))
def packed_attention_by_blocks(model: Any, xs: list[Tensor]) -> Tensor:
    owners = owners_of(xs)
    q, k, v = model["qkv"](torch.cat(xs)).split(8, 1)
    allowed = owners[:, None] == owners[None]
    mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=allowed[None])[0]
    return added(model["out"](mixed), owners, len(xs)).squeeze(1)


@program(lambda: Parts(qkv=nn.Linear(WIDTH, 24), out=nn.Linear(8, 1)))
def packed_attention_by_cu_seqlens(model: Any, xs: list[Tensor]) -> Tensor:
    ends = F.pad(lengths_of(xs).cumsum(0), (1, 0)).tolist()
    q, k, v = model["qkv"](torch.cat(xs)).split(8, 1)
    parts = [
        F.scaled_dot_product_attention(q[a:b][None], k[a:b][None], v[a:b][None])[0]
        for a, b in pairwise(ends)
    ]
    return added(model["out"](torch.cat(parts)), owners_of(xs), len(xs)).squeeze(1)


# Embeddings.


def words_of(xs: list[Tensor]) -> list[Tensor]:
    """Word numbers made of the samples' first columns."""
    return [(x[:, 0].abs() * 10).long() % 20 for x in xs]


@program(lambda: Parts(bag=nn.EmbeddingBag(20, 4, mode="mean"), head=nn.Linear(4, 1)))
def embedding_bag_with_offsets(model: Any, xs: list[Tensor]) -> Tensor:
    offsets = F.pad(lengths_of(xs).cumsum(0)[:-1], (1, 0))
    return model["head"](model["bag"](torch.cat(words_of(xs)), offsets)).squeeze(1)


@program(lambda: Parts(bag=nn.EmbeddingBag(20, 4, mode="sum"), head=nn.Linear(4, 1)))
def weighted_embedding_bag(model: Any, xs: list[Tensor]) -> Tensor:
    offsets = F.pad(lengths_of(xs).cumsum(0)[:-1], (1, 0))
    weights = torch.cat(xs)[:, 1]
    bags = model["bag"](torch.cat(words_of(xs)), offsets, per_sample_weights=weights)
    return model["head"](bags).squeeze(1)


@program(lambda: Parts(table=nn.Embedding(20, 4), head=nn.Linear(4, 1)))
def joined_words_added_by_owner(model: Any, xs: list[Tensor]) -> Tensor:
    rows = model["table"](torch.cat(words_of(xs)))
    return model["head"](added(rows, owners_of(xs), len(xs))).squeeze(1)


@program(lambda: Parts({"table": torch.randn(20, 4)}, head=nn.Linear(4, 1)))
def table_indexed_by_unique_words(model: Any, xs: list[Tensor]) -> Tensor:
    unique, places = torch.cat(words_of(xs)).unique(return_inverse=True)
    rows = model.table[unique][places]
    return model["head"](added(rows, owners_of(xs), len(xs))).squeeze(1)
