"""Host synchronizations, kernel launches and host time of a step, without an accelerator at hand.

Usage: python benchmarks/device_counts.py [--only mlp,gpt2] [--json FILE]

Models run on the pretend device of the tests, which counts what would make the host wait and what
would be a kernel. Host time is CPU time on one thread of a steady step of a tiny batch on the CPU
itself, private over plain, so that there is little to compute and all the rest shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
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

STEPS, ROUNDS = 3, 15
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


def gpt2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=32,
        n_layer=12,
        n_head=4,
        vocab_size=100,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config), (torch.randint(1, 100, (2, 8)),)


MODELS: dict[str, Build] = {"mlp": mlp, "resnet20": resnet20, "vit": vit, "gpt2": gpt2}


def losses_of(model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    outputs = model(*inputs)
    logits = getattr(outputs, "logits", outputs)
    if logits.ndim == 3:  # the next token at each position
        logits, targets = logits[:, :-1].mT, inputs[0][:, 1:]
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses if losses.ndim == 1 else losses.mean(1)


class Step:
    """A plain or a private step on a device, on the same batch each time."""

    def __init__(self, build: Build, device: str, private: dict[str, str] | None) -> None:
        torch.manual_seed(0)
        model, inputs = build()
        self._model = model.to(device).train()
        targets = torch.arange(len(inputs[0])) % 10
        self._inputs = tuple(t.to(device) for t in inputs)
        self._targets = targets.to(device)
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

    def count(self) -> dict[str, int]:
        """Of a steady step."""
        for _ in range(STEPS):
            self()
        with pretend.counting() as counts:
            self()
        self.counts = counts
        return {"syncs": counts.sync_count, "launches": counts.launch_count}

    def seconds(self) -> float:
        started = time.process_time()
        self()
        return time.process_time() - started


def measure(build: Build) -> dict[str, Any]:
    """Counts and host times of all variants."""
    found: dict[str, Any] = {"plain": Step(build, pretend.NAME, None).count()}
    plain, steps = Step(build, "cpu", None), {}
    for grouping, noise in VARIANTS:
        options = {"grouping": grouping, "noise": noise}
        name = f"{grouping}, {noise}"
        on_device = Step(build, pretend.NAME, options)
        found[name] = on_device.count()
        found[name]["lines"] = on_device.counts.by_line(on_device.counts.syncs)
        found[name]["launch lines"] = on_device.counts.by_line(on_device.counts.launches)
        steps[name] = Step(build, "cpu", options)
    times: dict[str, list[float]] = {name: [] for name in ("plain", *steps)}
    for turn in range(ROUNDS + STEPS):
        for name, step in (("plain", plain), *steps.items()):
            seconds = step.seconds()
            if turn >= STEPS:
                times[name].append(seconds)
    for name, values in times.items():
        found[name]["host_ms"] = 1e3 * statistics.median(values)
    return found


def show(figures: dict[str, dict[str, Any]]) -> Table:
    table = Table("model", "step", "syncs", "launches", "over plain", "host ms", "over plain")
    for model, rows in figures.items():
        plain = rows["plain"]
        for name, row in rows.items():
            table.add_row(
                model,
                name,
                str(row["syncs"]),
                str(row["launches"]),
                f"{row['launches'] / plain['launches']:.2f}",
                f"{row['host_ms']:.2f}",
                f"{row['host_ms'] / plain['host_ms']:.2f}",
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--lines", action="store_true", help="show which lines ask for them")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := sorted(set(chosen) - set(MODELS)):
        parser.error(f"--only {','.join(unknown)}: expected some of {', '.join(MODELS)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pretend.register()
    # Only steady steps: a verified one may come at random.
    BatchIterator._is_verification_due = (  # type: ignore[method-assign]
        lambda self, samples: not self._capture._verifier.has_verified
    )
    figures = {name: measure(MODELS[name]) for name in chosen}
    console = Console(width=120)
    console.print(show(figures))
    if options.lines:
        for model, rows in figures.items():
            for name, row in rows.items():
                if "lines" in row:
                    print(f"{model}, {name}\n{row['lines']}\n{row['launch lines']}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
