"""Processor time and new pages of a step, private and not: they tell where a clock is disturbed.

Steps alternate in one process. ``MALLOC_TRIM_THRESHOLD_=1073741824`` and
``MALLOC_MMAP_THRESHOLD_=1073741824`` make glibc keep the memory that it has.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.bench import workloads
from benchmarks.bench.steps import NonPrivate, Quietgrad

_WARM_UP = 16


def measure(step: Callable[[], None]) -> tuple[float, int]:
    """Milliseconds of all threads, and pages that came from the system."""
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    started = time.process_time()
    step()
    spent = 1e3 * (time.process_time() - started)
    return spent, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages


def main() -> None:
    """Print a line for each implementation and layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=workloads.names())
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    kind = workloads.resolve(given.workload)
    kinds = NonPrivate(), Quietgrad(), Quietgrad(grouping="layer-wise")
    steps = {
        (each.label, layout): each.prepare(kind.build().in_layout(layout), 1)
        for layout in kind.build().layouts
        for each in kinds
    }
    for step in steps.values():
        for _ in range(_WARM_UP):
            step()
    found = {key: [] for key in steps}
    for _ in range(given.rounds):
        for key, step in steps.items():
            found[key].append(measure(step))
    quickest = {key: statistics.quantiles(ms for ms, _ in runs)[0] for key, runs in found.items()}
    base = min(ms for (label, _), ms in quickest.items() if label == kinds[0].label)
    for key, runs in found.items():
        pages = statistics.median(count for _, count in runs)
        ms, name = quickest[key], ", ".join(key)
        print(f"{name}: {ms:.1f} ms ({ms / base:.2f}), {pages:.0f} new pages")


if __name__ == "__main__":
    main()
