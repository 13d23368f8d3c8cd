"""What a private step costs in a training framework, in CPU time on one thread.

Usage: OMP_NUM_THREADS=1 python -m benchmarks.integration_time [--rounds 5] [--only lightning,loop]

Of each framework, and of a loop without one, an ordinary script and a private one train the same
model from the same weights, in turns. Shown is the time of a private step over an ordinary one,
the median of the rounds, after the first steps, which are verified and choose kernels. ``digits``
is the network of the pages in docs/integrations, whose step is all host time; ``text`` is a
transformer. Private batches are Poisson samples of as many samples on average.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg


@dataclass(frozen=True)
class Workload:
    """A model, data and a batch size; steps that are not timed, and steps that are."""

    build: Callable[[], nn.Module]
    data: TensorDataset
    batch_size: int
    first: int
    timed: int

    @property
    def steps(self) -> int:
        return self.first + self.timed

    @property
    def epochs(self) -> int:
        return -(-self.steps * self.batch_size // len(self.data)) + 1


def digits() -> Workload:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    data = TensorDataset(torch.rand(1437, 64), torch.randint(10, (1437,)))
    return Workload(build, data, 128, first=110, timed=220)


class Text(nn.Module):
    """Classifies texts of 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5000, 192)
        layer = nn.TransformerEncoderLayer(192, 4, 768, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(192, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.tokens(tokens)).mean(1))
        return found


def text() -> Workload:
    data = TensorDataset(torch.randint(5000, (512, 64)), torch.randint(2, (512,)))
    return Workload(Text, data, 32, first=16, timed=16)


WORKLOADS = {"digits": digits, "text": text}
ENGINE = {"noise_multiplier": 1.0, "delta": 1e-4}


class Clock:
    """CPU time of the steps after the first ones, while it runs."""

    def __init__(self, work: Workload) -> None:
        self._work, self._steps, self._total = work, 0, 0.0
        self._begun = time.process_time()

    def pause(self) -> None:
        self._total += time.process_time() - self._begun

    def resume(self) -> None:
        self._begun = time.process_time()

    def on_step(self) -> bool:
        """A step has ended; whether it was the last one."""
        self._steps += 1
        if self._steps == self._work.first:
            self._total = 0.0
            self.resume()
        if self._steps == self._work.steps:
            self.pause()
        return self._steps >= self._work.steps

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self._total / self._work.timed


def parts_of(work: Workload) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = work.build()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def engine_of(work: Workload, model: nn.Module, optimizer: torch.optim.Optimizer):
    options = {"batch_size": work.batch_size, "epochs": work.epochs, **ENGINE}
    return qg.PrivacyEngine(model, optimizer, work.data, **options)


def time_private(work: Workload, model: nn.Module, engine: qg.PrivacyEngine) -> float:
    clock = Clock(work)
    while True:
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(F.cross_entropy(model(x), y, reduction="none"))
            engine.step()
            if clock.on_step():
                engine.detach()
                return clock.seconds


def time_loop(work: Workload, *, is_private: bool) -> float:
    model, optimizer = parts_of(work)
    if is_private:
        return time_private(work, model, engine_of(work, model, optimizer))
    clock = Clock(work)
    while True:
        for x, y in DataLoader(work.data, work.batch_size, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if clock.on_step():
                return clock.seconds


def time_accelerate(work: Workload, *, is_private: bool) -> float:
    from accelerate import Accelerator

    from quietgrad.integrations.accelerate import PrivateAccelerator

    model, optimizer = parts_of(work)
    if is_private:
        model, optimizer = PrivateAccelerator(cpu=True).prepare(model, optimizer)
        return time_private(work, model, engine_of(work, model, optimizer))
    accelerator, clock = Accelerator(cpu=True), Clock(work)
    loader = DataLoader(work.data, work.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            if clock.on_step():
                return clock.seconds


def time_lightning(work: Workload, *, is_private: bool) -> float:
    import lightning as L

    from quietgrad.integrations.lightning import PrivateStrategy

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    clock = Clock(work)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, _ = parts_of(work)

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(self.model(x), y, reduction="none" if is_private else "mean")

        def on_train_epoch_start(self) -> None:
            clock.resume()

        def on_train_batch_end(self, *args: object) -> None:
            # What comes between two epochs (epsilon is computed) is no part of a step.
            if not clock.on_step() and self.trainer.is_last_batch:
                clock.pause()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=work.steps,
        strategy=PrivateStrategy(**ENGINE) if is_private else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10**6,
    )
    trainer.fit(Module(), DataLoader(work.data, work.batch_size, shuffle=True))
    if is_private:
        trainer.strategy.engine.detach()
    return clock.seconds


FRAMEWORKS = {"loop": time_loop, "lightning": time_lightning, "accelerate": time_accelerate}


def measure(framework: str, work: Workload, rounds: int) -> dict[str, float]:
    """Medians over the rounds of both times, and of the ratio."""
    pairs = []
    for turn in range(rounds):
        order = (True, False) if turn % 2 else (False, True)
        found = {each: FRAMEWORKS[framework](work, is_private=each) for each in order}
        pairs.append((found[True], found[False]))
    median = statistics.median
    return {
        "private": median(private for private, _ in pairs),
        "ordinary": median(ordinary for _, ordinary in pairs),
        "ratio": median(private / ordinary for private, ordinary in pairs),
        "least": min(private / ordinary for private, ordinary in pairs),
        "most": max(private / ordinary for private, ordinary in pairs),
    }


def time_epsilon(work: Workload) -> float:
    """CPU time of one ``engine.epsilon()``, which Lightning logs at the end of an epoch."""
    model, optimizer = parts_of(work)
    engine = engine_of(work, model, optimizer)
    time_private(work, model, engine)
    begun = time.process_time()
    engine.epsilon()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(FRAMEWORKS))
    parser.add_argument("--work", default=",".join(WORKLOADS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = Table("work", "framework", "private", "ordinary", "ratio", "of the rounds")
    for name in options.work.split(","):
        torch.manual_seed(1)
        work = WORKLOADS[name]()
        for framework in options.only.split(","):
            found = measure(framework, work, options.rounds)
            table.add_row(
                name,
                framework,
                *(f"{found[each] * 1e3:.2f} ms" for each in ("private", "ordinary")),
                f"{found['ratio']:.2f}",
                f"{found['least']:.2f} to {found['most']:.2f}",
            )
    Console().print(table)
    Console().print(f"engine.epsilon(): {time_epsilon(digits()) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
