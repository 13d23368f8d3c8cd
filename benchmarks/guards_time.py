"""What the guards that run in every step cost: python benchmarks/guards_time.py"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.bench import workloads
from quietgrad.capture.parameters import BufferWatch
from quietgrad.engine import engine as engine_module

SPENT: Counter[str] = Counter()


class Block(nn.Module):
    """A residual block with frozen batch normalization."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
        self.skip = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """As usual."""
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(hidden)) + self.skip(x))


def resnet() -> nn.Module:
    """Nine blocks of 16, 32 and 64 channels."""
    sizes = (
        [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
    )
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *(Block(*each) for each in sizes), *head)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its time added up."""

    def run(*args: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args)
        finally:
            SPENT[name] += time.perf_counter() - started

    return run


def train(engine: qg.PrivacyEngine, model: nn.Module, steps: int) -> None:
    """So many steps."""
    end = engine.steps_taken + steps
    while True:
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(F.cross_entropy(model(x), y, reduction="none"))
            engine.step()
            if engine.steps_taken == end:
                return


def measure(name: str, model: nn.Module, shape: tuple[int, ...], batch_size: int) -> None:
    """Print the share of the guards in a step."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    count = 4 * batch_size
    data = TensorDataset(torch.randn(count, *shape), torch.randint(10, (count,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = qg.PrivacyEngine(
        model, optimizer, data, batch_size=batch_size, noise_multiplier=1.0, delta=1e-5
    )
    train(engine, model, 8)  # the first steps verify the model
    SPENT.clear()
    started = time.perf_counter()
    train(engine, model, 7)
    whole = time.perf_counter() - started
    shares = ", ".join(f"{part} {spent / whole:.2%}" for part, spent in SPENT.items())
    print(f"{name}, batch {batch_size}: {whole / 7 * 1e3:.0f} ms a step, of which {shares}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    BufferWatch.begin = timed("buffers", BufferWatch.begin)  # type: ignore[method-assign]
    BufferWatch.changed = timed("buffers", BufferWatch.changed)  # type: ignore[method-assign]
    engine_module.require_bounded = timed("sums", engine_module.require_bounded)
    measure("mlp 784-1024-1024-10", workloads.resolve("mlp").build().model, (784,), 256)
    measure("resnet, 54 buffers", resnet(), (3, 32, 32), 64)
