"""Time of noise for ten million float32 values over torch's own normal_ on one thread.

Usage: python benchmarks/noise_time.py [--values 10000000] [--rounds 15]

All sources run one after the other in each round; the median of the rounds' ratios is shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from quietgrad import noise

THREADS = (1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    values = torch.zeros(options.values)
    ways: dict[str, Callable[[], object]] = {"normal_, 1 thread": on_threads(1, values.normal_)}
    for name in noise.names():
        for threads in THREADS:
            ways[f"{name}, {threads} threads"] = on_threads(threads, adding(name, values))
    show(ways, options.rounds)


def adding(name: str, values: torch.Tensor) -> Callable[[], object]:
    source = noise.resolve(name)
    return lambda: source.add([values], 1.0)


def on_threads(count: int, way: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        torch.set_num_threads(count)
        way()

    return run


def show(ways: dict[str, Callable[[], object]], rounds: int) -> None:
    for way in ways.values():
        way()
    times = [[seconds(way) for way in ways.values()] for _ in range(rounds)]
    table = Table("source", "ms", "over normal_", title="Gaussian noise (medians)")
    for i, name in enumerate(ways):
        median = statistics.median(row[i] for row in times)
        ratio = statistics.median(row[i] / row[0] for row in times)
        table.add_row(name, f"{median * 1e3:.1f}", f"{ratio:.2f}")
    Console().print(table)


def seconds(way: Callable[[], object]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
