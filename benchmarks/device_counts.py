"""Host synchronizations, kernel launches and host time of a step, without an accelerator at hand.

Usage: python benchmarks/device_counts.py [--only mlp,gpt2] [--no-time] [--json FILE]

Models run on the pretend device of the tests, which counts what would make the host wait and what
would be a kernel: in a steady step, and in one whose micro-batch is verified. Host time is CPU time
on one thread of a steady step of a tiny batch on the CPU itself, private over plain, so that there
is little to compute and all the rest shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import quietgrad as qg
from quietgrad.engine.batch import BatchIterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.devices import pretend

STEPS, ROUNDS, TRIES = 3, 15, 8
VARIANTS = [("all-layer", "fast"), ("all-layer", "secure"), ("layer-wise", "fast")]

Build = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


def mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), (torch.randn(4, 64),)


def resnet20() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return qg.nn.resnet20(), (torch.randn(2, 3, 16, 16),)


def vit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config), (torch.randn(2, 3, 16, 16),)


def gpt2(dropout: float = 0.0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=32,
        n_layer=12,
        n_head=4,
        vocab_size=100,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
    )
    return GPT2LMHeadModel(config), (torch.randint(1, 100, (2, 8)),)


MODELS: dict[str, Build] = {
    "mlp": mlp,
    "resnet20": resnet20,
    "vit": vit,
    "gpt2": gpt2,
    "gpt2-dropout": partial(gpt2, 0.1),
}


def losses_of(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    outputs = model(*inputs)
    logits = getattr(outputs, "logits", outputs)
    if logits.ndim == 3:  # the next token at each position
        logits, targets = logits[:, :-1].mT, inputs[0][:, 1:]
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses if losses.ndim == 1 else losses.mean(1)


@contextmanager
def _verifying(is_due: Callable[[BatchIterator], bool]) -> Iterator[None]:
    """In here micro-batches are verified as this tells."""
    original = BatchIterator._is_verification_due
    BatchIterator._is_verification_due = (  # type: ignore[method-assign]
        lambda self, samples: is_due(self)
    )
    try:
        yield
    finally:
        BatchIterator._is_verification_due = original  # type: ignore[method-assign]


def only_new_is_verified() -> AbstractContextManager[None]:
    """In here steps are steady: none of what is known is verified again, at random."""
    return _verifying(lambda iterator: not iterator._capture._verifier.has_verified)


class Step:
    """A plain or a private step on a device, on the same batch each time."""

    def __init__(self, build: Build, device: str, private: dict[str, str] | None) -> None:
        torch.manual_seed(0)
        model, inputs = build()
        self._model = model.to(device).train()
        targets = torch.arange(len(inputs[0])) % 10
        self._inputs = tuple(t.to(device) for t in inputs)
        self._targets = targets.to(device)
        self._is_warm = False
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, foreach=True)
        self._engine = None
        if private is not None:
            self._engine = qg.PrivacyEngine(
                self._model,
                self._optimizer,
                torch.utils.data.TensorDataset(*inputs, targets),
                batch_size=len(targets),
                sampling="full-batch",
                noise_multiplier=1.0,
                delta=1e-5,
                **private,  # type: ignore[arg-type]
            )

    def __call__(self) -> None:
        if self._engine is None:
            losses_of(self._model, self._inputs, self._targets).sum().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            return
        for batch in self._engine.batches():
            for _ in batch:
                self._engine.backward(losses_of(self._model, self._inputs, self._targets))
            self._engine.step()

    def count(self, *, verified: bool = False, first: bool = False) -> pretend.Counts:
        """Of a steady step, of one that is verified, or of the very first one."""
        for _ in range(0 if first or self._is_warm else STEPS):
            self()
        self._is_warm = True
        everything = _verifying(lambda iterator: True)
        with everything if verified else nullcontext(), pretend.counting() as counts:
            self()
        return counts

    def seconds(self) -> float:
        started = time.process_time()
        self()
        return time.process_time() - started


def measure(build: Build, *, timed: bool = True) -> dict[str, Any]:
    """Counts and host times of all variants."""
    plain = Step(build, pretend.NAME, None).count()
    found: dict[str, Any] = {"plain": {"syncs": plain.sync_count, "launches": plain.launch_count}}
    steps = {"plain": Step(build, "cpu", None)}
    for grouping, noise in VARIANTS:
        options = {"grouping": grouping, "noise": noise}
        name = f"{grouping}, {noise}"
        on_device = Step(build, pretend.NAME, options)
        first = on_device.count(first=True)
        steady = on_device.count()
        # Which way a repeat of what is known goes is drawn.
        verified = max((on_device.count(verified=True) for _ in range(TRIES)), key=_waits)
        found[name] = {
            "syncs": steady.sync_count,
            "launches": steady.launch_count,
            "lines": steady.by_line(steady.syncs),
            "launch lines": steady.by_line(steady.launches),
            "verified syncs": verified.sync_count,
            "first syncs": first.sync_count,
            "verified launches": verified.launch_count,
            "verified lines": verified.by_line(verified.syncs),
        }
        steps[name] = Step(build, "cpu", options)
    for name, seconds in _time(steps).items() if timed else ():
        found[name]["host_ms"] = 1e3 * seconds
    return found


def _waits(counts: pretend.Counts) -> int:
    return counts.sync_count


def _time(steps: dict[str, Step]) -> dict[str, float]:
    """The median of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS + STEPS):
        for name, step in steps.items():
            seconds = step.seconds()
            if turn >= STEPS:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


COLUMNS = "model,step,waits,verified,first,launches,over plain,verified,host ms,over plain".split(
    ","
)


def show(figures: dict[str, dict[str, Any]]) -> Table:
    table = Table(*COLUMNS)
    for model, rows in figures.items():
        plain = rows["plain"]
        for name, row in rows.items():
            times = ("", "")
            if "host_ms" in row:
                times = f"{row['host_ms']:.2f}", f"{row['host_ms'] / plain['host_ms']:.2f}"
            table.add_row(
                model,
                name,
                str(row["syncs"]),
                str(row.get("verified syncs", "")),
                str(row.get("first syncs", "")),
                str(row["launches"]),
                f"{row['launches'] / plain['launches']:.2f}",
                str(row.get("verified launches", "")),
                *times,
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--lines", action="store_true", help="show which lines ask for them")
    parser.add_argument("--no-time", action="store_true", help="count only")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := sorted(set(chosen) - set(MODELS)):
        parser.error(f"--only {','.join(unknown)}: expected some of {', '.join(MODELS)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pretend.register()
    with only_new_is_verified():
        figures = {name: measure(MODELS[name], timed=not options.no_time) for name in chosen}
    console = Console(width=120)
    console.print(show(figures))
    if options.lines:
        for model, rows in figures.items():
            for name, row in rows.items():
                if "lines" in row:
                    print(f"{model}, {name}\n{row['lines']}\n{row['launch lines']}")
                    print(f"{model}, {name}, verified\n{row['verified lines']}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
