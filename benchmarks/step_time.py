"""Time of a private step over the same non-private step, in interleaved rounds.

Usage: python benchmarks/step_time.py [--workloads mlp,cnn,vit] [--rounds 15]

A step is the whole thing: forward, backward, clipping, noise, optimizer. Both kinds of step run
in one process, one after the other in each round, and the median of the rounds' ratios is shown:
absolute times on a shared machine mean little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import TensorDataset
from workloads import WORKLOADS, Workload

import quietgrad as qg

GROUPINGS = ("all-layer", "layer-wise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="mlp,cnn,vit")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    table = Table(title="step time over non-private (median of paired ratios)")
    for column in ("workload", "non-private ms", *GROUPINGS):
        table.add_column(column)
    for name in options.workloads.split(","):
        table.add_row(name, *_measure(name, options.rounds))
    Console().print(table)


def _measure(name: str, rounds: int) -> list[str]:
    torch.manual_seed(0)
    steps = [_plain_step(WORKLOADS[name]())]
    steps += [_private_step(WORKLOADS[name](), grouping) for grouping in GROUPINGS]
    for step in steps * 4:
        step()
    times = [[_timed(step) for step in steps] for _ in range(rounds)]
    plain = statistics.median(row[0] for row in times)
    ratios = [statistics.median(row[i] / row[0] for row in times) for i in range(1, len(steps))]
    return [f"{plain * 1e3:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]


def _plain_step(workload: Workload) -> Callable[[], None]:
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        workload.losses(*workload.inputs).mean().backward()
        optimizer.step()

    return step


def _private_step(workload: Workload, grouping: str) -> Callable[[], None]:
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=1e-3)
    size = len(workload.inputs[0])
    # Sampling rate 1 keeps every batch at the workload's size.
    engine = qg.PrivacyEngine(
        workload.model,
        optimizer,
        TensorDataset(*workload.inputs),
        batch_size=size,
        noise_multiplier=1.0,
        delta=0.5 / size,
        grouping=grouping,
        collate_fn=lambda _: workload.inputs,
    )

    def step() -> None:
        for batch in engine.batches():
            for inputs in batch:
                engine.backward(workload.losses(*inputs))
            engine.step()

    return step


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
