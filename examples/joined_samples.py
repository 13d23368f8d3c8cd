"""Samples of any size: graphs joined into one, packed sequences, bags by offsets, and experts.

Usage: python examples/joined_samples.py [graphs|sequences|bags|experts]
       quietgrad check examples/joined_samples.py:graphs

Each function returns a model as it is trained without privacy, elements of a data set (made up at
random), the losses, and a collate_fn that joins elements. Nothing else is needed: which rows belong
to which sample is found out from the gradients. Join samples in collate_fn, not in the loop: it is
verified there that a sample does not notice which others it was joined with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence

import quietgrad as qg

CLASSES, COUNT = 3, 256
Subject = tuple[
    nn.Module, list[Any], Callable[[nn.Module, Any], Tensor], Callable[[list[Any]], Any]
]


def draw_sizes() -> list[int]:
    return torch.randint(2, 12, (COUNT,)).tolist()


class GraphNet(nn.Module):
    """Messages along edges, then the sum of each graph's nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.message = nn.Linear(8, 32), nn.Linear(64, 32)
        self.norm, self.leave = nn.LayerNorm(32), nn.Linear(32, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        hidden = self.enter(nodes)
        source, target = edges
        sent = self.message(torch.cat([hidden[source], hidden[target]], -1)).relu()
        hidden = self.norm(hidden + torch.zeros_like(hidden).index_add(0, target, sent))
        pooled = hidden.new_zeros(int(graph.max()) + 1, 32).index_add(0, graph, hidden)
        scores: Tensor = self.leave(pooled)
        return scores


def graphs() -> Subject:
    def join(elements: list[tuple[Tensor, Tensor, int]]) -> Any:
        counts = torch.tensor([len(nodes) for nodes, _, _ in elements])
        starts = counts.cumsum(0) - counts  # edges of the second graph begin behind the first
        edges = [edges + start for (_, edges, _), start in zip(elements, starts, strict=True)]
        owner = torch.arange(len(elements)).repeat_interleave(counts)
        labels = torch.tensor([label for _, _, label in elements])
        return torch.cat([nodes for nodes, _, _ in elements]), torch.cat(edges, 1), owner, labels

    elements = [
        (torch.randn(n, 8), torch.randint(n, (2, 3 * n)), n % CLASSES) for n in draw_sizes()
    ]
    return GraphNet(), elements, classify, join


class Reader(nn.Module):
    """An LSTM on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.leave = nn.LSTM(8, 32), nn.Linear(32, CLASSES)

    def forward(self, packed: PackedSequence) -> Tensor:
        _, (hidden, _) = self.layer(packed)
        scores: Tensor = self.leave(hidden[-1])
        return scores


def sequences() -> Subject:
    def join(elements: list[tuple[Tensor, int]]) -> Any:
        packed = pack_sequence([steps for steps, _ in elements], enforce_sorted=False)
        return packed, torch.tensor([label for _, label in elements])

    return Reader(), [(torch.randn(n, 8), n % CLASSES) for n in draw_sizes()], classify, join


class Bags(nn.Module):
    """The mean of the embeddings of a text's words."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.leave = nn.EmbeddingBag(50, 32), nn.Linear(32, CLASSES)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        scores: Tensor = self.leave(self.bag(ids, offsets))
        return scores


def bags() -> Subject:
    def join(elements: list[tuple[Tensor, int]]) -> Any:
        lengths = torch.tensor([len(ids) for ids, _ in elements])
        ids = torch.cat([ids for ids, _ in elements])
        labels = torch.tensor([label for _, label in elements])
        return ids, lengths.cumsum(0) - lengths, labels

    return Bags(), [(torch.randint(50, (n,)), n % CLASSES) for n in draw_sizes()], classify, join


def classify(model: nn.Module, batch: Any) -> Tensor:
    *inputs, labels = batch
    return F.cross_entropy(model(*inputs), labels, reduction="none")


def experts() -> Subject:
    """A small Mixtral. Its auxiliary loss over the batch stays off: output_router_logits=False."""
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )

    def pad(elements: list[Tensor]) -> Any:
        lengths = torch.tensor([len(ids) for ids in elements])
        ids = pad_sequence(elements, batch_first=True)
        return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()

    def losses(model: nn.Module, batch: Any) -> Tensor:
        ids, mask = batch
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        by_token = F.cross_entropy(logits.mT, ids[:, 1:], reduction="none")
        mask = mask[:, 1:]
        return (by_token * mask).sum(1) / mask.sum(1)  # padded places must not count

    model = transformers.AutoModelForCausalLM.from_config(config)
    return model, [torch.randint(1, 50, (n,)) for n in draw_sizes()], losses, pad


def train(subject: Callable[[], Subject], steps: int = 5) -> None:
    torch.manual_seed(0)
    model, elements, losses, join = subject()
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-3)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        elements,
        batch_size=32,
        epochs=5,
        epsilon=8.0,
        delta=1e-3,
        collate_fn=join,
    )
    while engine.steps_taken < steps:
        for batch in engine.batches():
            for content in batch:
                engine.backward(losses(model, content))
            engine.step()
    print(f"{subject.__name__}: {engine.steps_taken} steps, epsilon {engine.epsilon():.2f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ("graphs", "sequences", "bags", "experts"):
        train({"graphs": graphs, "sequences": sequences, "bags": bags, "experts": experts}[name])
