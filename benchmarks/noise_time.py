"""Time of noise for ten million float32 values over torch's own normal_ on one thread.

Usage: python benchmarks/noise_time.py [--values 10000000] [--rounds 15] [--cpu-time] [--parts]

All sources run one after the other in each round; the median of the rounds' ratios is shown. With
--cpu-time, the CPU time of one thread, for machines that others use too. With --parts, what a value
of secure noise costs on one thread, operation by operation, in CPU time.
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
from quietgrad.keystream import Words, fresh_key

THREADS = (1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    if options.parts:
        show_parts(options.rounds)
        return
    values = torch.zeros(options.values)
    ways: dict[str, Callable[[], object]] = {"normal_, 1 thread": on_threads(1, values.normal_)}
    for name in noise.names():
        for threads in (1,) if options.cpu_time else THREADS:
            ways[f"{name}, {threads} threads"] = on_threads(threads, adding(name, values))
    show(ways, options.rounds, time.process_time if options.cpu_time else time.perf_counter)


def adding(name: str, values: torch.Tensor) -> Callable[[], object]:
    source = noise.resolve(name)
    return lambda: source.add([values], 1.0)


def on_threads(count: int, way: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        torch.set_num_threads(count)
        way()

    return run


def show(ways: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> None:
    for way in ways.values():
        way()
    times = [[seconds(way, clock) for way in ways.values()] for _ in range(rounds)]
    table = Table("source", "ms", "over normal_", title="Gaussian noise (medians)")
    for i, name in enumerate(ways):
        median = statistics.median(row[i] for row in times)
        ratio = statistics.median(row[i] / row[0] for row in times)
        table.add_row(name, f"{median * 1e3:.1f}", f"{ratio:.2f}")
    Console().print(table)


def parts() -> dict[str, tuple[Callable[[], object], float]]:
    """What is done for a chunk of secure noise, and for how many entries of each value."""
    half = noise.CHUNK // 2
    words, room, totals = Words(noise.CHUNK), torch.empty(half, dtype=torch.int64), torch.ones(half)
    bits = torch.from_numpy(words.fill(fresh_key(), 0, noise.CHUNK).view("<i8"))[:half]
    uniform, angle, out = (torch.rand(half, dtype=torch.float64) for _ in range(3))
    angle.sub_(0.5).mul_(6.28)
    return {
        "normal_ of float32": (totals.clone().normal_, 1),
        "words of AES": (lambda: words.fill(fresh_key(), 0, noise.CHUNK), 0.5),
        "63 bits of a word": (lambda: torch.bitwise_and(bits, 2**63 - 1, out=room), 0.5),
        "radius and angle as doubles": (lambda: out.copy_(bits), 1),
        "the smallest word": (room.min, 0.5),
        "half of it added, scaled (four passes)": (lambda: out.mul_(0.5), 2),
        "log": (lambda: torch.log(uniform, out=out), 0.5),
        "sqrt": (lambda: torch.sqrt(uniform, out=out), 0.5),
        "cos": (lambda: torch.cos(angle, out=out), 0.5),
        "sin": (lambda: torch.sin(angle, out=out), 0.5),
        "times the radius": (lambda: torch.mul(angle, uniform, out=out), 1),
        "total added": (lambda: out.add_(totals, alpha=0.5), 1),
        "rounded": (lambda: torch.round(angle, out=out), 1),
        "divided": (lambda: torch.div(angle, 3.0, out=out), 1),
        "as float32": (lambda: totals.copy_(uniform), 1),
    }


def show_parts(rounds: int) -> None:
    torch.set_num_threads(1)
    ways, values = parts(), noise.CHUNK // 2
    times = [
        [seconds(way, time.process_time, repeats=20) for way, _ in ways.values()]
        for _ in range(rounds + 1)
    ][1:]
    table = Table("operation", "ns a value", title="Secure noise on one thread (medians)")
    for i, (name, (_, share)) in enumerate(ways.items()):
        cost = statistics.median(row[i] for row in times) / values * share
        table.add_row(name, f"{cost * 1e9:.2f}")
    Console().print(table)


def seconds(way: Callable[[], object], clock: Callable[[], float], repeats: int = 1) -> float:
    started = clock()
    for _ in range(repeats):
        way()
    return (clock() - started) / repeats


if __name__ == "__main__":
    main()
