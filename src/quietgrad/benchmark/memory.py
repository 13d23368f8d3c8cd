"""Peak memory of an implementation, in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection

from quietgrad.benchmark import peak
from quietgrad.benchmark.contender import Contender, Failure, failure
from quietgrad.benchmark.implementations import Implementation
from quietgrad.benchmark.rows import Memory
from quietgrad.benchmark.workload import Layout
from quietgrad.benchmark.workloads import Kind

# The first step is verified, the next ones try ways to compute norms.
_SETTLING_STEPS, _STEADY_STEPS = 4, 3


@dataclass(frozen=True)
class _Task:
    """What the process does; all of it can be sent there."""

    kind: Kind
    implementation: Implementation
    physical_per_logical: int
    layout: Layout


def peak_memory(
    kind: Kind, implementation: Implementation, physical_per_logical: int, layout: Layout
) -> Memory | Failure:
    """How far a new process grows when it trains.

    Args:
        kind: the workload.
        implementation: the implementation.
        physical_per_logical: physical batches to a step.
        layout: of images and filters.
    """
    if not peak.is_known():
        return Failure("missing", "this system has no /proc/self/status")
    task = _Task(kind, implementation, physical_per_logical, layout)
    here, there = multiprocessing.Pipe(duplex=False)
    # A forked process would have the memory of this one, and torch's threads do not survive it.
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(task, there))
    process.start()
    there.close()
    try:
        found: Memory | Failure = here.recv()
    except EOFError:
        process.join()
        return Failure("fails", f"the process ended with exit code {process.exitcode}")
    finally:
        process.terminate()
        process.join()
    return found


def _run(task: _Task, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    with warnings.catch_warnings(action="ignore"):
        connection.send(_measured(task))


def _measured(task: _Task) -> Memory | Failure:
    try:
        workload = task.kind.build().in_layout(task.layout)
        step = task.implementation.prepare(workload, task.physical_per_logical)
    except Exception as error:
        return failure(error, at_once=True)
    contender = Contender(task.implementation, task.layout, step)
    peak.give_back()
    before = peak.resident()
    try:
        first, method = _peak_after(contender, _SETTLING_STEPS)
        peak.give_back()
        steady, _ = _peak_after(contender, _SETTLING_STEPS + _STEADY_STEPS)
    except Exception as error:
        return failure(error, at_once=False)
    return Memory(first - before, steady - before, method)


def _peak_after(contender: Contender, steps: int) -> tuple[int, str]:
    with peak.watched() as highest:
        contender.warm_up(steps)
        return highest.bytes(), highest.method
