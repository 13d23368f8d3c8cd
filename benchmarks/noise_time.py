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

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from quietgrad import noise
from quietgrad.keystream import Rest, Words, fresh_key, layers

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


def parts() -> dict[str, Callable[[], object]]:
    """What is done for a chunk of secure noise, as in `keystream.Gaussians`."""
    count, key = noise.CHUNK, fresh_key()
    words, total = Words(count), torch.ones(count).numpy()
    bits = words.fill(key, 0, count).view("<i8").copy()
    values, sums = torch.empty(2, count, dtype=torch.float64).numpy()
    chosen, is_outside = torch.empty(count, dtype=torch.int64).numpy(), np.empty(count, bool)
    rest, widths = Rest(key), layers().widths
    rest.begin(1 << 64, 10_000_000)
    float32, doubles = torch.empty(count), bits * 2.0**-63
    np.bitwise_and(bits, len(widths) - 1, out=chosen)
    np.less(chosen, 3, out=is_outside)
    return {
        "normal_ of float32": float32.normal_,
        "words of AES": lambda: words.fill(key, 0, count),
        "layer of a word": lambda: np.bitwise_and(bits, len(widths) - 1, out=chosen),
        "those outside of all rectangles": lambda: (
            np.flatnonzero(np.less(chosen, 3, out=is_outside)),
            rest.take(count * 3 // len(widths)),
        ),
        "width of a layer": lambda: widths.take(chosen, out=sums, mode="wrap"),
        "word as a double": lambda: np.copyto(values, bits, casting="unsafe"),
        "times the width": lambda: np.multiply(doubles, sums, out=values),
        "total as a double, added": lambda: (np.copyto(sums, total), np.add(sums, values, sums)),
        "as float32": lambda: np.copyto(total, sums, casting="same_kind"),
        "rounded to the grid, divided": lambda: (
            np.multiply(total, 0.5, out=total),
            np.rint(total, out=total),
            np.divide(total, 3.0, out=total),
        ),
    }


def show_parts(rounds: int) -> None:
    torch.set_num_threads(1)
    ways = parts()
    times = [
        [seconds(way, time.process_time, repeats=20) for way in ways.values()]
        for _ in range(rounds + 1)
    ][1:]
    table = Table("operation", "ns a value", title="Secure noise on one thread (medians)")
    for i, name in enumerate(ways):
        cost = statistics.median(row[i] for row in times) / noise.CHUNK
        table.add_row(name, f"{cost * 1e9:.2f}")
    Console().print(table)


def seconds(way: Callable[[], object], clock: Callable[[], float], repeats: int = 1) -> float:
    started = clock()
    for _ in range(repeats):
        way()
    return (clock() - started) / repeats


if __name__ == "__main__":
    main()
