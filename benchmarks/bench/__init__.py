"""Time and memory of a private training step over the same step without privacy."""

from benchmarks.bench.measure import Bench, Memory, Row, Time, Watch
from benchmarks.bench.steps import Failure, Implementation, NonPrivate, Opacus, Quietgrad
from benchmarks.bench.workloads import Kind, Workload, machine, versions

__all__ = [
    "Bench",
    "Failure",
    "Implementation",
    "Kind",
    "Memory",
    "NonPrivate",
    "Opacus",
    "Quietgrad",
    "Row",
    "Time",
    "Watch",
    "Workload",
    "machine",
    "versions",
]
