"""Where a steady private step spends host time, by stage; and one tree of sources beside another.

    python benchmarks/host_time.py stages digits mlp      # calls, operations, ms by stage
    python benchmarks/host_time.py calls digits --stage step --top 40
    python benchmarks/host_time.py compare OTHER/src --only digits,mlp

Python calls and torch operations are counted, and are the same in every run. Times are CPU time of
one thread; on a machine that others use, only ratios of what took turns tell something. ``compare``
starts one process for each tree and lets them take turns.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg
from quietgrad.engine.batch import BatchIterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import device_counts

STAGES = ("draw", "begin", "forward", "backward", "step")
_WARM_UP = 12


class Kind:
    """A model, its data, and how it is trained.

    Args:
        build: the model and its samples.
        batch_size: the expected one.
        is_drawn: whether batches are drawn and loaded, as in a training, or are always all samples.
        options: for the engine.
        momentum: of SGD.
        has_file: whether the ledger is on disk.
    """

    def __init__(
        self,
        build: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]],
        batch_size: int,
        *,
        is_drawn: bool = False,
        options: dict[str, Any] | None = None,
        momentum: float = 0.0,
        has_file: bool = False,
    ) -> None:
        self.build, self.batch_size, self.is_drawn = build, batch_size, is_drawn
        self.has_file = has_file
        self.options, self.momentum = options or {}, momentum


def _digits() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    return model, (torch.rand(1437, 1, 8, 8),)


def _mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    return nn.Sequential(*layers), (torch.randn(1024, 784),)


def _cnn() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return qg.nn.tanh_cnn_28(), (torch.randn(1024, 1, 28, 28),)


KINDS = {
    "digits": Kind(
        _digits, 256, is_drawn=True, options={"noise": "secure"}, momentum=0.9, has_file=True
    ),
    "digits-fixed": Kind(lambda: (_digits()[0], (torch.rand(256, 1, 8, 8),)), 256),
    "mlp": Kind(_mlp, 256, is_drawn=True),
    "cnn": Kind(_cnn, 256, is_drawn=True),
    "mlp-4": Kind(device_counts.mlp, 4),
    "vit": Kind(device_counts.vit, 2),
    "gpt2": Kind(device_counts.gpt2, 2),
}


class Training:
    """Steady steps of one kind, private or not."""

    def __init__(self, kind: Kind, *, is_private: bool) -> None:
        torch.manual_seed(0)
        self._model, self._samples = kind.build()
        self._model.train()
        count = len(self._samples[0])
        targets = torch.arange(count) % 10
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4, momentum=kind.momentum)
        self._fixed = None if kind.is_drawn else (*self._samples, targets)
        dataset = TensorDataset(*self._samples, targets)
        self._engine = None
        if is_private:
            self._engine = qg.PrivacyEngine(
                self._model,
                self._optimizer,
                dataset,
                batch_size=kind.batch_size,
                noise_multiplier=1.0,
                delta=1e-5,
                ledger=Path(tempfile.mkdtemp()) / "ledger" if kind.has_file else None,
                sampling="poisson" if kind.is_drawn else "full-batch",
                **{"noise": "fast", **kind.options},
            )
        self._loader = DataLoader(dataset, kind.batch_size, shuffle=True)
        self._batches: Iterator[Any] = iter(())

    def step(self, enter: Callable[[str], None] = lambda stage: None) -> None:
        """One step; ``enter`` is told of each stage, and of "" at the end."""
        enter("draw")
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(
                self._engine.batches() if self._engine else self._loader if not self._fixed else [0]
            )
            batch = next(self._batches)
        if self._engine is None:
            *inputs, targets = self._fixed or batch
            enter("forward")
            losses = device_counts.losses_of(self._model, tuple(inputs), targets)
            enter("backward")
            losses.sum().backward()
            enter("step")
            self._optimizer.step()
            self._optimizer.zero_grad()
            enter("")
            return
        enter("begin")
        for columns in batch:
            *inputs, targets = self._fixed or columns
            enter("forward")
            losses = device_counts.losses_of(self._model, tuple(inputs), targets)
            enter("backward")
            self._engine.backward(losses)
            enter("begin")
        enter("step")
        self._engine.step()
        enter("")


def prepare(name: str, *, is_private: bool) -> Training:
    """A training that is steady."""
    training = Training(KINDS[name], is_private=is_private)
    for _ in range(_WARM_UP):
        training.step()
    return training


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def count_calls(training: Training, steps: int) -> dict[str, tuple[float, float]]:
    """By stage, calls of Python functions and of C functions."""
    found: dict[str, list[int]] = {stage: [0, 0] for stage in STAGES}
    now: list[list[int]] = [[0, 0]]

    def trace(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            now[0][0] += 1
        elif event == "c_call":
            now[0][1] += 1

    def enter(stage: str) -> None:
        now[0] = found.get(stage, [0, 0])

    sys.setprofile(trace)
    for _ in range(steps):
        training.step(enter)
    sys.setprofile(None)
    return {stage: (p / steps, c / steps) for stage, (p, c) in found.items()}


def count_operations(training: Training, steps: int) -> dict[str, Counter[str]]:
    """By stage, the torch operations of some steps."""
    found = {stage: Counter[str]() for stage in (*STAGES, "")}
    with _Operations() as mode:
        for _ in range(steps):
            training.step(lambda stage: setattr(mode, "counts", found[stage]))
    return found


def time_stages(training: Training) -> dict[str, float]:
    """By stage, microseconds of CPU time."""
    spent = dict.fromkeys(STAGES, 0.0)
    last: list[Any] = ["", 0.0]

    def enter(stage: str) -> None:
        now = time.thread_time()
        if last[0]:
            spent[last[0]] += 1e6 * (now - last[1])
        last[:] = stage, time.thread_time()

    training.step(enter)
    return spent


def show_stages(name: str, rounds: int) -> None:
    """Print a table for one kind."""
    trainings = [prepare(name, is_private=private) for private in (False, True)]
    times: list[list[dict[str, float]]] = [[], []]
    for _ in range(rounds):
        for training, runs in zip(trainings, times, strict=True):
            runs.append(time_stages(training))
    calls = [count_calls(training, 20) for training in trainings]
    operations = [count_operations(training, 20) for training in trainings]
    print(f"\n{name}: plain | private: Python calls, C calls, torch operations, microseconds")
    totals = [[0.0] * 4, [0.0] * 4]
    for stage in STAGES:
        line = f"{stage:9}"
        for i in range(2):
            us = statistics.median(run[stage] for run in times[i])
            row = [*calls[i][stage], operations[i][stage].total() / 20, us]
            totals[i] = [a + b for a, b in zip(totals[i], row, strict=True)]
            line += " | " + " ".join(f"{value:7.0f}" for value in row)
        print(line)
    print("in all    | " + " | ".join(" ".join(f"{v:7.0f}" for v in row) for row in totals))
    print(f"ratio {totals[1][3] / totals[0][3]:.2f}")


def show_calls(name: str, stage: str | None, top: int, order: str) -> None:
    """Print what a stage of a private step calls, and its torch operations."""
    training = prepare(name, is_private=True)
    profile, steps = cProfile.Profile(), 100

    def enter(now: str) -> None:
        profile.disable()
        if now and stage in (None, now):
            profile.enable()

    for _ in range(steps):
        training.step(enter)
    profile.disable()
    pstats.Stats(profile).sort_stats(order).print_stats(top)
    for key, counts in count_operations(training, 10).items():
        if stage in (None, key):
            listed = ", ".join(f"{n / 10:g} {op}" for op, n in counts.most_common())
            print(f"{key}: {counts.total() / 10:g}: {listed}")


def serve() -> None:
    """Answer each line of standard input, "NAME private|plain STEPS", by microseconds of a step."""
    trainings: dict[tuple[str, str], Training] = {}
    for line in sys.stdin:
        name, how, steps = line.split()
        if (name, how) not in trainings:
            trainings[name, how] = prepare(name, is_private=how == "private")
        started = time.thread_time()
        for _ in range(int(steps)):
            trainings[name, how].step()
        print(1e6 * (time.thread_time() - started) / int(steps), flush=True)


def compare(other: str, names: list[str], rounds: int, steps: int) -> dict[str, Any]:
    """Ratios to plain training of two trees that take turns: the other one, and this."""
    here = str(Path(qg.__file__).parents[1])
    servers = []
    for source in (other, here):
        command = [sys.executable, __file__, "serve"]
        surroundings = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        servers.append(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=surroundings)
        )

    def ask(server: Any, request: str) -> float:
        server.stdin.write(request + "\n")
        server.stdin.flush()
        return float(server.stdout.readline())

    found = {}
    for name in names:
        runs: list[list[float]] = []
        for turn in range(rounds + 1):
            row = [ask(servers[0], f"{name} plain {steps}")]
            row += [ask(server, f"{name} private {steps}") for server in servers]
            runs += [row] if turn else []
        # Lower quartiles: others use the machine, which can only add to a time.
        plain, before, now = (statistics.quantiles(run[i] for run in runs)[0] for i in range(3))
        found[name] = {
            "plain_us": plain,
            "before": before / plain,
            "now": now / plain,
            "now over before": now / before,
        }
        shown = ", ".join(f"{key} {value:.3f}" for key, value in found[name].items())
        print(f"{name}: {shown}", flush=True)
    for server in servers:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    stages = commands.add_parser("stages")
    stages.add_argument("names", nargs="+", choices=KINDS)
    calls = commands.add_parser("calls")
    calls.add_argument("name", choices=KINDS)
    calls.add_argument("--stage", choices=STAGES)
    calls.add_argument("--top", type=int, default=40)
    calls.add_argument("--order", default="tottime")
    comparison = commands.add_parser("compare")
    comparison.add_argument("other", help="another tree's src")
    comparison.add_argument("--only", default=",".join(KINDS))
    comparison.add_argument("--steps", type=int, default=20)
    comparison.add_argument("--json", type=Path)
    for each in (stages, comparison):
        each.add_argument("--rounds", type=int, default=30)
    commands.add_parser("serve")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Only steady steps: a verified one may come at random.
    BatchIterator._is_verification_due = (  # type: ignore[method-assign]
        lambda self, samples: not self._capture._verifier.has_verified
    )
    if given.command == "stages":
        for name in given.names:
            show_stages(name, given.rounds)
    elif given.command == "calls":
        show_calls(given.name, given.stage, given.top, given.order)
    elif given.command == "compare":
        found = compare(given.other, given.only.split(","), given.rounds, given.steps)
        if given.json is not None:
            given.json.write_text(json.dumps(found, indent=2) + "\n")
    else:
        serve()


if __name__ == "__main__":
    main()
