"""Step time of models whose rows belong to samples in any order and number, over a plain step.

Usage: python benchmarks/ragged_time.py [--rounds 7] [--only mixtral,lstm] [--json FILE]

Mixtures of experts of transformers, an LSTM on packed sequences, and a network on joined graphs. Of
each, private and plain steps (forward, backward, optimizer) run in turns on the same samples, on
one thread; the median of the CPU times is shown, and how many backward passes a step takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import quietgrad as qg

BATCH, TOKENS, WARM_UP = 8, 64, 6


@dataclass(frozen=True)
class Workload:
    """A model, its samples, how a batch is made of them, and its losses."""

    model: nn.Module
    samples: list[Any]
    collate: Callable[[list[Any]], Any]
    losses: Callable[[nn.Module, Any], Tensor]


# -- mixtures of experts -------------------------------------------------------------------------


def language_model(kind: str) -> Workload:
    import transformers

    common = {
        "vocab_size": 4096,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    routed = {"num_experts_per_tok": 2, "num_key_value_heads": 8}
    made = {
        "mixtral": lambda: transformers.MixtralConfig(
            **common, **routed, intermediate_size=512, num_local_experts=8
        ),
        "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
            **common, **routed, moe_intermediate_size=512, num_experts=8, head_dim=32
        ),
        "deepseek-v3": lambda: transformers.DeepseekV3Config(
            **common,
            **routed,
            intermediate_size=512,
            moe_intermediate_size=256,
            n_routed_experts=8,
            n_group=2,
            topk_group=1,
            q_lora_rank=64,
            kv_lora_rank=32,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=32,
            first_k_dense_replace=1,
        ),
        "olmoe": lambda: transformers.OlmoeConfig(
            **common, **routed, intermediate_size=512, num_experts=8
        ),
        "gpt-oss": lambda: transformers.GptOssConfig(
            **common, **routed, intermediate_size=256, num_local_experts=8, head_dim=32
        ),
    }
    model = transformers.AutoModelForCausalLM.from_config(made[kind]())
    texts = [torch.randint(1, 4096, (TOKENS,)) for _ in range(BATCH)]
    return Workload(model, texts, torch.stack, next_tokens)


def next_tokens(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").sum(1)


# -- packed sequences and joined graphs ----------------------------------------------------------


class Reader(nn.Module):
    """Two LSTM layers on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(64, 128, num_layers=2)
        self.head = nn.Linear(128, 5)

    def forward(self, packed: Any) -> Tensor:
        _, (hidden, _) = self.layers(packed)
        logits: Tensor = self.head(hidden[-1])
        return logits


def packed_lstm() -> Workload:
    lengths = torch.linspace(10, TOKENS, 4 * BATCH).long().tolist()
    samples = [torch.randn(length, 64) for length in lengths]
    return Workload(
        Reader(), samples, lambda some: pack_sequence(some, enforce_sorted=False), squares
    )


def squares(model: nn.Module, batch: Any) -> Tensor:
    outputs: Tensor = model(*batch) if type(batch) is tuple else model(batch)
    return outputs.square().sum(1)


class MessagePassing(nn.Module):
    """Three rounds of messages along edges, then the sum of each graph's nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(32, 128), nn.Linear(128, 5)
        self.messages = nn.ModuleList(nn.Linear(256, 128) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(3))

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor, count: Tensor) -> Tensor:
        hidden = self.enter(nodes)
        source, target = edges
        for message, norm in zip(self.messages, self.norms, strict=True):
            sent = message(torch.cat([hidden[source], hidden[target]], -1)).relu()
            hidden = norm(hidden + torch.zeros_like(hidden).index_add(0, target, sent))
        pooled = hidden.new_zeros(len(count), 128).index_add(0, graph, hidden)
        result: Tensor = self.leave(pooled)
        return result


def joined_graphs() -> Workload:
    sizes = torch.linspace(10, 40, 4 * BATCH).long().tolist()
    samples = [(torch.randn(n, 32), torch.randint(n, (2, 4 * n))) for n in sizes]

    def join(some: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        counts = torch.tensor([len(nodes) for nodes, _ in some])
        starts = counts.cumsum(0) - counts
        edges = [edges + start for (_, edges), start in zip(some, starts, strict=True)]
        graph = torch.arange(len(some)).repeat_interleave(counts)
        return torch.cat([nodes for nodes, _ in some]), torch.cat(edges, 1), graph, counts

    return Workload(MessagePassing(), samples, join, squares)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    **{
        kind: (lambda kind=kind: language_model(kind))  # type: ignore[misc]
        for kind in ("mixtral", "qwen3-moe", "deepseek-v3", "olmoe", "gpt-oss")
    },
    "lstm-packed": packed_lstm,
    "joined-graphs": joined_graphs,
}


# -- measuring -----------------------------------------------------------------------------------


def measure(build: Callable[[], Workload], rounds: int) -> dict[str, float]:
    """Medians of private and plain steps that run in turns, without verified ones."""
    torch.manual_seed(0)
    private, plain = build(), build()
    optimizer = torch.optim.SGD(private.model.parameters(), lr=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = qg.PrivacyEngine(
            private.model.train(),
            optimizer,
            private.samples,  # type: ignore[arg-type]
            batch_size=len(private.samples),
            sampling="full-batch",
            noise_multiplier=1.0,
            delta=1e-6,
            noise="fast",
            collate_fn=private.collate,
            verification="once",
            seed=0,
        )
    plain_optimizer = torch.optim.SGD(plain.model.train().parameters(), lr=1e-3)
    passes = [0]
    backward = torch.autograd.backward

    def count(*args: Any, **kwargs: Any) -> None:
        passes[0] += 1
        backward(*args, **kwargs)

    pairs = []
    for turn in range(rounds + WARM_UP):
        started, passes[0] = time.process_time(), 0
        torch.autograd.backward = count  # type: ignore[assignment]
        for batch in engine.batches():
            for content in batch:
                engine.backward(private.losses(private.model, content))
            engine.step()
        torch.autograd.backward = backward
        middle = time.process_time()
        content = plain.collate(plain.samples)
        plain_optimizer.zero_grad()
        plain.losses(plain.model, content).sum().backward()
        plain_optimizer.step()
        if turn >= WARM_UP:
            pairs.append((middle - started, time.process_time() - middle))
    private_ms, plain_ms = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    return {"private": private_ms, "plain": plain_ms, "ratio": ratio, "passes": passes[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("model", "plain, ms", "private, ms", "ratio", "backward passes")
    found = {}
    for name in options.only.split(","):
        found[name] = row = measure(WORKLOADS[name], options.rounds)
        times = (f"{row[key]:.1f}" for key in ("plain", "private"))
        table.add_row(name, *times, f"{row['ratio']:.2f}", f"{row['passes']:.0f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
