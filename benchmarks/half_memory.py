"""Peak memory of a private step of a ViT over that of a plain one, in half precision.

Usage: python benchmarks/half_memory.py [--types float32 bfloat16] [--batch 64] [--autocast]

Six layers, 192 wide, images of 64 pixels in patches of 8. Each way runs in a process of its own.
Two peaks are shown, both of steady steps: of what torch has allocated since the step began; and of
resident memory over what is resident between steps, which also has the buffers of kernels. Weights
and what an optimizer keeps are in neither.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench.measure import give_back, resident, watched

WAYS = ("plain", "all-layer", "layer-wise")
SETTLING = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--autocast", action="store_true", help="weights stay in float32")
    parser.add_argument("--one", nargs=2, metavar=("TYPE", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.batch, autocast=options.autocast)))
        return
    table = Table("type", "way", "allocated, MB", "over plain", "resident, MB", "over plain")
    for dtype in options.types:
        plain: tuple[float, float] | None = None
        for way in WAYS:
            command = [sys.executable, __file__, "--one", dtype, way, "--batch", options.batch]
            command += ["--autocast"] if options.autocast else []
            fresh = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
            told = subprocess.run(
                [str(part) for part in command], env=fresh, check=True, capture_output=True
            )
            peaks = json.loads(told.stdout.splitlines()[-1])
            plain = plain or peaks
            pairs = zip(peaks, plain, strict=True)
            cells = [(f"{peak / 1e6:.1f}", f"{peak / over:.2f}") for peak, over in pairs]
            table.add_row(dtype, way, *cells[0], *cells[1])
    Console().print(table)


def measure(name: str, way: str, batch: int, *, autocast: bool) -> tuple[int, int]:
    """Bytes allocated, and bytes resident."""
    torch.manual_seed(0)
    dtype: torch.dtype = getattr(torch, name)
    model, images, labels = vit(), torch.randn(batch, 3, 64, 64), torch.randint(0, 10, (batch,))
    is_mixed = autocast and dtype is not torch.float32
    if not is_mixed:
        model, images = model.to(dtype), images.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype) if is_mixed else nullcontext():
            logits = model(x).logits
        return F.cross_entropy(logits.float(), y, reduction="none")

    def plain() -> None:
        optimizer.zero_grad()
        losses(images, labels).mean().backward()
        optimizer.step()

    step = plain if way == "plain" else private(model, optimizer, images, labels, way, losses)
    for _ in range(SETTLING):
        step()
    give_back()
    before = resident()
    with watched() as peak:
        step()
        taken = peak.bytes() - before
    return allocated(step), taken


def allocated(step: Callable[[], None]) -> int:
    """The most bytes that torch has allocated at a time while a step runs."""
    with torch.autograd.profiler.profile(profile_memory=True, use_kineto=True) as profile:
        step()
    changes = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in changes))


def vit() -> nn.Module:
    import transformers as hf

    config = hf.ViTConfig(
        image_size=64,
        patch_size=8,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=10,
        hidden_dropout_prob=0.0,
    )
    model: nn.Module = hf.ViTForImageClassification(config)
    return model.train()


def private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    grouping: str,
    losses: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[], None]:
    warnings.simplefilter("ignore")
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        TensorDataset(images, labels),
        batch_size=len(images),
        delta=1e-3,
        noise_multiplier=1.0,
        sampling="full-batch",
        grouping=grouping,
        noise="fast",
        verification="once",
    )

    def step() -> None:
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(losses(x, y))
            engine.step()

    return step


if __name__ == "__main__":
    main()
