"""Times of steps in rounds, and the largest memory of a process or a device since a moment."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bench.steps import Contender, Failure, Implementation, NonPrivate, failure, prepared
from benchmarks.bench.workloads import Kind, Layout
from quietgrad._checks import require_count

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_SAMPLED_EVERY = 0.002  # seconds
# glibc gives blocks of this size back as soon as they are freed. Smaller ones, and by default those
# up to 32 MB, may stay resident between others: what is measured is then how it splits its heap.
_THRESHOLD, _GIVEN_BACK = "MALLOC_MMAP_THRESHOLD_", "65536"


def is_known(device: str = "cpu") -> bool:
    """Whether this system, or the device, tells."""
    if device != "cpu":
        return hasattr(torch.get_device_module(device), "max_memory_allocated")
    return _STATUS.exists()


def resident(device: str = "cpu") -> int:
    """Bytes in use now, by this process or on another device."""
    if device != "cpu":
        return int(torch.get_device_module(device).memory_allocated())
    return _field("VmRSS")


@dataclass(frozen=True)
class Peak:
    """A peak that may still grow.

    Attributes:
        bytes: tells how high it is.
        method: how it is found.
    """

    bytes: Callable[[], int]
    method: str


@contextmanager
def watched(device: str = "cpu") -> Iterator[Peak]:
    """Gives the peak from now on: of this process, or of what is allocated on another device."""
    if device != "cpu":
        module = torch.get_device_module(device)
        module.reset_peak_memory_stats()
        yield Peak(module.max_memory_allocated, f"max_memory_allocated of {device}")
    elif _reset():
        yield Peak(lambda: _field("VmHWM"), "VmHWM, reset by /proc/self/clear_refs")
    else:
        with _sampled() as peak:
            yield Peak(peak, f"VmRSS, sampled every {_SAMPLED_EVERY * 1e3:g} ms")


def give_back() -> None:
    """Return to the system what was freed, which glibc keeps: it would hide what comes next."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return  # another allocator, with habits of its own


# Of glibc's mallopt: the size of free memory at the end of the heap from which it is given back,
# and how many blocks may lie outside of the heap.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed() -> bool:
    """Keep what is freed for good; whether the allocator of this process does.

    By default it depends on which blocks happen to lie at the end of the heap whether a step's
    memory is given back when it ends. The next step then begins with thousands of page faults, of
    one implementation and not of the other.
    """
    try:
        set_option = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_TRIM_THRESHOLD, -1)) and bool(set_option(_MMAP_MAX, 0))


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no line {name}")


def _reset() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


@contextmanager
def _sampled() -> Iterator[Callable[[], int]]:
    peak, done = resident(), threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(_SAMPLED_EVERY):
            peak = max(peak, resident())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield lambda: max(peak, resident())
    finally:
        done.set()
        thread.join()


Tell = Callable[[str], None]


@dataclass
class Watch:
    """Who is told how far it has come.

    Attributes:
        note: what is worth a line.
        update: what is true for a moment.
    """

    note: Tell
    update: Tell


@dataclass
class Race:
    """Rounds of one workload.

    Attributes:
        kind: the workload.
        implementations: who takes part; the first is the base of the ratios.
        physical_per_logical: physical batches to a step.
        rounds: how many.
        entered: those that are ready, or why they are not, in the order of `implementations`.
        times: seconds of each implementation in each complete round.
    """

    kind: Kind
    implementations: Sequence[Implementation]
    physical_per_logical: int
    rounds: int
    entered: list[Contender | Failure] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)

    def run(self, watch: Watch) -> None:
        """Prepare everybody, warm up, go."""
        count = len(self.implementations)
        watch.note(f"{self.kind.name}: warm-up of {count} implementations")
        started = time.perf_counter()
        for place, implementation in enumerate(self.implementations, 1):
            watch.update(f"{self.kind.name}: warm-up {place} of {count}, {implementation.label}")
            self.entered.append(self._warm(implementation))
            self.times.append([])
        self._say_how_long(watch, time.perf_counter() - started)
        for number in range(self.rounds):
            self._round(number, watch)

    def _warm(self, implementation: Implementation) -> Contender | Failure:
        contender = prepared(self.kind, implementation, self.physical_per_logical)
        if isinstance(contender, Contender):
            try:
                contender.warm_up(
                    implementation.settling_steps(self.rounds, self.physical_per_logical)
                )
            except Exception as error:
                return failure(error, at_once=False)
        return contender

    def _round(self, number: int, watch: Watch) -> None:
        """Somebody else begins each time: what a step leaves in the caches helps nobody more."""
        taken: dict[int, float] = {}
        count = len(self.entered)
        for place in range(number, number + count):
            contender = self.entered[place % count]
            if isinstance(contender, Contender):
                label = contender.implementation.label
                watch.update(f"{self.kind.name}: round {number + 1} of {self.rounds}, {label}")
                try:
                    taken[place % count] = contender.seconds()
                except Exception as error:
                    self.entered[place % count] = failure(error, at_once=False)
        for place, seconds in taken.items():
            self.times[place].append(seconds)

    def _say_how_long(self, watch: Watch, warming: float) -> None:
        """By everybody's fastest step so far."""
        steps = [each.fastest for each in self.entered if isinstance(each, Contender)]
        watch.note(
            f"{self.kind.name}: warm after {warming:.0f} s; {self.rounds} rounds of"
            f" {len(steps)} steps take about {self.rounds * sum(steps):.0f} s"
        )


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and how far they lie apart."""

    median: float
    lower_quartile: float
    upper_quartile: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        return cls(median, lower, upper)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"median": self.median, "quartiles": [self.lower_quartile, self.upper_quartile]}


@dataclass(frozen=True)
class Time:
    """Times of steps in interleaved rounds.

    Attributes:
        seconds: of each step.
        ratios: of each step over the base's step in the same round; empty if the base has none.
        steps_before: that were taken before the first of them.
    """

    seconds: tuple[float, ...]
    ratios: tuple[float, ...]
    steps_before: int

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return Spread.of(self.seconds).median

    @property
    def ratio(self) -> float | None:
        """The median of the ratios: what the tables show."""
        return Spread.of(self.ratios).median if self.ratios else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rounds": len(self.seconds),
            "warm_up_steps": self.steps_before,
            "seconds": Spread.of(self.seconds).as_dict(),
            "ratio": Spread.of(self.ratios).as_dict() if self.ratios else None,
            "seconds_of_rounds": list(self.seconds),
        }


@dataclass(frozen=True)
class Memory:
    """How far a process grew, over what it was before its first step, in bytes.

    Attributes:
        first_steps: peak of the first steps, in which an engine verifies the model.
        steady: peak of later ones.
        method: how it was measured.
    """

    first_steps: int
    steady: int
    method: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "first_steps_bytes": self.first_steps,
            "steady_bytes": self.steady,
            "method": self.method,
        }


@dataclass
class Row:
    """One implementation on one workload.

    Attributes:
        kind: the workload.
        implementation: the implementation.
        physical_per_logical: physical batches to a step.
        layout: of images and filters, the faster one; None if no step was taken.
        failure: why there are no times.
        time: None if it failed, or before the first round.
        memory: None if it was not asked for, or the reason why there is none.
    """

    kind: Kind
    implementation: Implementation
    physical_per_logical: int
    layout: Layout | None = None
    failure: Failure | None = None
    time: Time | None = None
    memory: Memory | Failure | None = None

    @property
    def samples(self) -> int:
        """Number of samples in a step."""
        return self.kind.batch_size * self.physical_per_logical

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": self.kind.name,
            "batch_size": self.kind.batch_size,
            "physical_per_logical": self.physical_per_logical,
            "label": self.implementation.label,
            **self.implementation.described(),
            "status": self.failure.status if self.failure else "measured",
            "reason": self.failure.reason if self.failure else None,
            "layout": self.layout,
            "time": self.time.as_dict() if self.time else None,
            "seconds_per_sample": self._seconds_per_sample(),
            "memory": self._memory_as_dict(),
        }

    def _seconds_per_sample(self) -> float | None:
        return self.time.median / self.samples if self.time else None

    def _memory_as_dict(self) -> dict[str, Any] | None:
        if isinstance(self.memory, Failure):
            return {"status": self.memory.status, "reason": self.memory.reason}
        return self.memory.as_dict() if self.memory else None


def rows_of(race: Race) -> Iterator[Row]:
    """One row for everybody who failed or has finished a round."""
    for place, entered in enumerate(race.entered):
        row = Row(race.kind, race.implementations[place], race.physical_per_logical)
        if isinstance(entered, Failure):
            row.failure = entered
            yield row
        elif race.times[place]:
            row.layout, row.time = entered.layout, _time(race, place, entered)
            yield row


def _time(race: Race, place: int, contender: Contender) -> Time:
    seconds = race.times[place]
    ratios: tuple[float, ...] = ()
    if isinstance(race.entered[0], Contender):
        pairs = zip(seconds, race.times[0], strict=True)
        ratios = tuple(own / base for own, base in pairs)
    return Time(tuple(seconds), ratios, contender.steps_taken - len(seconds))


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
    if not is_known(kind.device):
        where = "this system has no /proc/self/status"
        on_device = f"{kind.device} does not tell what is allocated"
        return Failure("missing", where if kind.device == "cpu" else on_device)
    task = _Task(kind, implementation, physical_per_logical, layout)
    here, there = multiprocessing.Pipe(duplex=False)
    # A forked process would have the memory of this one, and torch's threads do not survive it.
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(task, there))
    with _given_back():
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


@contextmanager
def _given_back() -> Iterator[None]:
    """Processes that are started in here give freed blocks back, unless it is set otherwise."""
    is_set = _THRESHOLD in os.environ
    os.environ.setdefault(_THRESHOLD, _GIVEN_BACK)
    try:
        yield
    finally:
        if not is_set:
            del os.environ[_THRESHOLD]


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
    device = task.kind.device
    contender = Contender(task.implementation, task.layout, step, device)
    give_back()
    before = resident(device)
    try:
        first, method = _peak_after(contender, _SETTLING_STEPS)
        give_back()
        steady, _ = _peak_after(contender, _SETTLING_STEPS + _STEADY_STEPS)
    except Exception as error:
        return failure(error, at_once=False)
    if device == "cpu":
        method += f", {_THRESHOLD}={os.environ[_THRESHOLD]}"
    return Memory(first - before, steady - before, method)


def _peak_after(contender: Contender, steps: int) -> tuple[int, str]:
    with watched(contender.device) as highest:
        contender.warm_up(steps)
        return highest.bytes(), highest.method


@dataclass
class Bench:
    """What to measure, and what was.

    Attributes:
        kinds: the workloads.
        implementations: what is compared with the non-private step.
        physical_per_logical: numbers of physical batches to a step.
        rounds: how often each step is timed.
        with_memory: whether to measure that too.
        rows: what was measured so far; complete when `run` returns, and as far as it came when
            it is interrupted.
    """

    kinds: Sequence[Kind]
    implementations: Sequence[Implementation]
    physical_per_logical: Sequence[int] = (1,)
    rounds: int = 15
    with_memory: bool = True
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds, at_least=1)
        for count in self.physical_per_logical:
            require_count("physical_per_logical", count, at_least=1)

    def run(self, watch: Watch) -> None:
        """Measure everything."""
        started = time.perf_counter()
        tasks = list(product(self.physical_per_logical, self.kinds))
        for done, (count, kind) in enumerate(tasks, 1):
            self._measure(kind, count, watch)
            left = (time.perf_counter() - started) / done * (len(tasks) - done)
            rest = f"; at this pace {left:.0f} s more" if left else ""
            watch.note(f"{kind.name}: done, {done} of {len(tasks)}{rest}")

    def _measure(self, kind: Kind, count: int, watch: Watch) -> None:
        rows = self._timed(kind, count, watch)
        gc.collect()
        if self.with_memory:
            self._weigh([row for row in rows if row.layout is not None], watch)

    def _weigh(self, rows: Sequence[Row], watch: Watch) -> None:
        """Measure the memory of those that took steps."""
        if rows:
            watch.note(f"{rows[0].kind.name}: memory of {len(rows)}, each in a process of its own")
        for place, row in enumerate(rows, 1):
            who = row.implementation.label
            watch.update(f"{row.kind.name}: memory {place} of {len(rows)}, {who}")
            count = row.physical_per_logical
            assert row.layout is not None
            row.memory = peak_memory(row.kind, row.implementation, count, row.layout)

    def _timed(self, kind: Kind, count: int, watch: Watch) -> list[Row]:
        race = Race(kind, (NonPrivate(), *self.implementations), count, self.rounds)
        try:
            race.run(watch)
        finally:
            rows = list(rows_of(race))
            self.rows += rows
        return rows
