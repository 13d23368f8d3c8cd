"""Time and memory of a private training step over the same step without privacy."""

from quietgrad.benchmark.bench import Bench
from quietgrad.benchmark.contender import Failure
from quietgrad.benchmark.implementations import Implementation, NonPrivate, Quietgrad
from quietgrad.benchmark.machine import machine, versions
from quietgrad.benchmark.opacus_steps import Opacus
from quietgrad.benchmark.race import Watch
from quietgrad.benchmark.rows import Memory, Row, Time
from quietgrad.benchmark.workload import Workload
from quietgrad.benchmark.workloads import Kind

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
