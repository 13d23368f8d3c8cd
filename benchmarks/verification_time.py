"""What it costs to verify that samples are independent, in CPU time on one thread.

Usage: python benchmarks/verification_time.py [--rounds 5] [--only first,minilm,mlp] [--json FILE]

``first`` trains a text model of MiniLM's size on micro-batches of 16 texts of 5 to 48 tokens, with
verification and without it, in turns from one micro-batch to the next, on the same data with the
same draws. It shows the time of the first 100 micro-batches over that without verification.

The other names are models. Of each, verified and unverified micro-batches run in turns once the
first ones are over; what a verification adds is shown in units of an unverified micro-batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import quietgrad as qg
from quietgrad.capture import verification
from quietgrad.engine.batch import BatchIterator

BATCH = 16
SHORTEST, LONGEST = 5, 48
VOCABULARY = 30522
WARM_UP = 4  # verified micro-batches before any is timed

Losses = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Workload:
    """A model, its samples in order, and its losses."""

    model: nn.Module
    samples: list[Any]
    losses: Losses
    collate: Callable[[list[Any]], Any] | None = None


# -- verification on and off ---------------------------------------------------------------------


def settle_only(self: Any, tape: Any, losses: Tensor) -> None:
    """What gradients need, and no more: which rows belong to which sample."""
    if tape.batch > 1:
        verification._settle_layouts(tape, losses)


@contextmanager
def switched_off() -> Iterator[None]:
    verify, is_due = verification.Verifier.verify, BatchIterator._is_verification_due
    verification.Verifier.verify = settle_only  # type: ignore[method-assign]
    BatchIterator._is_verification_due = lambda self, samples: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        verification.Verifier.verify = verify  # type: ignore[method-assign]
        BatchIterator._is_verification_due = is_due  # type: ignore[method-assign]


@contextmanager
def always_due() -> Iterator[None]:
    is_due = BatchIterator._is_verification_due
    BatchIterator._is_verification_due = lambda self, samples: True  # type: ignore[method-assign]
    try:
        yield
    finally:
        BatchIterator._is_verification_due = is_due  # type: ignore[method-assign]


@contextmanager
def as_usual() -> Iterator[None]:
    yield


# -- training ------------------------------------------------------------------------------------


class Training:
    """Micro-batches of one logical batch, one at a time, with random draws of its own."""

    def __init__(self, build: Callable[[], Workload]) -> None:
        torch.manual_seed(0)
        work = build()
        self._work, self._draws = work, torch.get_rng_state()
        count = len(work.samples)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is seeded
            engine = qg.PrivacyEngine(
                work.model.train(),
                torch.optim.SGD(work.model.parameters(), lr=0.01),
                work.samples,  # type: ignore[arg-type]
                batch_size=count,
                physical_batch_size=BATCH,
                sampling="full-batch",
                noise_multiplier=1.0,
                delta=1e-6,
                collate_fn=work.collate,
                seed=0,
            )
        self._engine, self._batch = engine, next(engine.batches())

    def seconds(self) -> float:
        """CPU time of the next micro-batch."""
        torch.set_rng_state(self._draws)
        started = time.process_time()
        content = next(self._batch)
        self._engine.backward(self._work.losses(self._work.model, content))
        taken = time.process_time() - started
        self._draws = torch.get_rng_state()
        return taken


def time_first(micro_batches: int) -> dict[str, float]:
    """Total times of the first micro-batches, with verification and without."""

    def build() -> Workload:
        return minilm(random_lengths(micro_batches))

    runs = [(Training(build), as_usual), (Training(build), switched_off)]
    totals = [0.0, 0.0]
    for turn in range(micro_batches):
        for place in (0, 1) if turn % 2 else (1, 0):
            training, mode = runs[place]
            with mode():
                totals[place] += training.seconds()
    return {"verified": totals[0], "unverified": totals[1], "ratio": totals[0] / totals[1]}


def time_single(build: Callable[[int], Workload], rounds: int) -> dict[str, float]:
    """What one verification adds to a micro-batch."""
    training = Training(lambda: build(2 * rounds + 2 * WARM_UP))
    pairs = []
    for turn in range(rounds + WARM_UP):
        with switched_off():
            plain = training.seconds()
        with always_due():
            verified = training.seconds()
        if turn >= WARM_UP:
            pairs.append((plain, verified))
    plain = statistics.median(pair[0] for pair in pairs)
    added = statistics.median(pair[1] - pair[0] for pair in pairs)
    return {"unverified": plain, "added": added, "ratio": added / plain}


# -- workloads -----------------------------------------------------------------------------------


def random_lengths(micro_batches: int) -> list[list[int]]:
    """Of each text, by micro-batch: whose longest is of any length, so that shapes differ."""
    generator = torch.Generator().manual_seed(1)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    longest = [draw(SHORTEST, LONGEST) for _ in range(micro_batches)]
    return [[most, *(draw(SHORTEST, most) for _ in range(BATCH - 1))] for most in longest]


def pad(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    ids = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row, _ in rows])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return ids, mask, torch.tensor([label for _, label in rows])


def classify_texts(model: nn.Module, batch: Any) -> Tensor:
    ids, mask, labels = batch
    logits = model(input_ids=ids, attention_mask=mask).logits
    return F.cross_entropy(logits, labels, reduction="none")


def classify(model: nn.Module, batch: Any) -> Tensor:
    x, labels = batch
    return F.cross_entropy(model(x), labels, reduction="none")


def minilm(lengths: list[list[int]]) -> Workload:
    """Six layers of 384, as MiniLM has them, with random weights."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        num_labels=2,
    )
    samples = [
        (torch.randint(1, VOCABULARY, (length,)), place % 2)
        for row in lengths
        for place, length in enumerate(row)
    ]
    return Workload(BertForSequenceClassification(config), samples, classify_texts, pad)


def with_labels(inputs: Tensor) -> list[tuple[Tensor, int]]:
    return [(x, place % 10) for place, x in enumerate(inputs)]


class ImageTransformer(nn.Module):
    """Patches of 4x4 pixels through a small encoder."""

    def __init__(self, width: int = 192, layers: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        layer = nn.TransformerEncoderLayer(
            width, 3, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.encoder(x).mean(1))


class TextRecurrence(nn.Module):
    """A two-layer LSTM over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5000, 64)
        self.lstm = nn.LSTM(64, 128, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.table(ids))[0][:, -1])


def minilm_32(count: int) -> Workload:
    return minilm([[32] * BATCH] * count)


def vit(count: int) -> Workload:
    return Workload(
        ImageTransformer(), with_labels(torch.randn(BATCH * count, 3, 32, 32)), classify
    )


def resnet20(count: int) -> Workload:
    images = torch.randn(BATCH * count, 3, 32, 32)
    return Workload(qg.nn.resnet20(), with_labels(images), classify)


def mlp(count: int) -> Workload:
    layers = nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    return Workload(nn.Sequential(*layers), with_labels(torch.randn(BATCH * count, 784)), classify)


def lstm(count: int) -> Workload:
    ids = torch.randint(5000, (BATCH * count, 32))
    return Workload(TextRecurrence(), with_labels(ids), classify)


MODELS: dict[str, Callable[[int], Workload]] = {
    "minilm": minilm_32,
    "vit": vit,
    "resnet20": resnet20,
    "mlp": mlp,
    "lstm": lstm,
}


# -- command -------------------------------------------------------------------------------------


def show_first(figures: dict[str, float], micro_batches: int) -> Table:
    title = f"First {micro_batches} micro-batches of {BATCH} texts, {SHORTEST} to {LONGEST} tokens"
    table = Table("verified, s", "unverified, s", "ratio", title=title)
    table.add_row(*(f"{figures[name]:.2f}" for name in ("verified", "unverified", "ratio")))
    return table


def show_single(figures: dict[str, dict[str, float]]) -> Table:
    title = f"One verification of {BATCH} samples (medians)"
    table = Table("model", "unverified, ms", "added, ms", "in micro-batches", title=title)
    for name, row in figures.items():
        milliseconds = (f"{row[key] * 1e3:.1f}" for key in ("unverified", "added"))
        table.add_row(name, *milliseconds, f"{row['ratio']:.2f}")
    return table


def median_of(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    names = ["first", *MODELS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of verified micro-batches")
    parser.add_argument("--first-rounds", type=int, default=1, help="of the first micro-batches")
    parser.add_argument("--micro-batches", type=int, default=100, help="how many are the first")
    parser.add_argument("--only", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"--only {','.join(unknown)}: expected some of {', '.join(names)}")
    torch.set_num_threads(1)
    console, figures = Console(), {}
    single = {
        name: time_single(build, options.rounds) for name, build in MODELS.items() if name in chosen
    }
    if single:
        console.print(show_single(single))
        figures["single"] = single
    if "first" in chosen:
        rows = [time_first(options.micro_batches) for _ in range(options.first_rounds)]
        figures["first"] = median_of(rows)
        console.print(show_first(figures["first"], options.micro_batches))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
