"""What lowers sampling noise: python benchmarks/clipping_bias.py networks|noise|cosines|costs

Diagnostics read raw gradients: what is printed here is NOT private.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from figures.panels import Curve, Panel, Picture, panels_figure
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.bench.workloads import Workload
from quietgrad.data import ImageData

DELTA = 1e-5
PHYSICAL = 64
EVERY, PROBES = 40, 128
NETWORKS = ["plain", "enhanced"]


def networks(
    names: list[str], epochs: int, batch: int, rate: float, seed: int
) -> dict[str, dict[str, object]]:
    """Plain and enhanced ResNet20 on CIFAR-10 at epsilon 8: sampling noise, and test accuracy."""
    images = qg.data.load("cifar10")
    x, y, test_x, test_y = _normalized(images)
    found: dict[str, dict[str, object]] = {}
    for name in names:
        torch.manual_seed(seed)
        model = qg.nn.resnet20(enhanced=name == "enhanced")
        recorder = qg.diagnostics.StepRecorder(every=20)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        engine = qg.PrivacyEngine(
            model,
            optimizer,
            TensorDataset(x, y),
            batch_size=batch,
            epochs=epochs,
            epsilon=8.0,
            delta=DELTA,
            physical_batch_size=PHYSICAL,
            momentum=qg.InnerOuter(length=0, outer=0.9, outer_means="carried"),
            diagnostics=recorder,
        )
        started = time.perf_counter()
        for _ in range(epochs):
            for logical in engine.batches():
                for a, b in logical:
                    engine.backward(F.cross_entropy(model(a), b, reduction="none"))
                engine.step()
            print(name, engine.steps_taken, _accuracy(model, test_x, test_y), flush=True)
        records = [record.measurement for record in recorder.history]
        found[name] = {
            "accuracy": _accuracy(model, test_x, test_y),
            "noise": [round(r.sampling_noise**0.5, 1) for r in records],
            "sampling_noise": statistics.fmean(r.sampling_noise**0.5 for r in records),
            "relative_noise": statistics.fmean(r.relative_noise or 0.0 for r in records),
            "clipped_cosine": statistics.fmean(r.clipped_cosine or 0.0 for r in records),
            "epsilon": engine.epsilon(),
            "seconds": time.perf_counter() - started,
        }
        print(json.dumps({name: found[name]}), flush=True)
    return found


def noise(steps: int, batch: int, rate: float, seed: int) -> dict[str, list[dict[str, float]]]:
    """Sampling noise of plain and enhanced ResNet20 along clipped SGD (c = 1, all but no noise).

    As in Figure 6 of "... via Clipping Bias Reduction", on 128 fixed training samples of CIFAR-10.
    """
    x, y, test_x, test_y = _normalized(qg.data.load("cifar10"))
    found: dict[str, list[dict[str, float]]] = {"plain": [], "enhanced": []}
    for name, curve in found.items():
        torch.manual_seed(seed)
        model = qg.nn.resnet20(enhanced=name == "enhanced")
        engine = qg.PrivacyEngine(
            model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9), TensorDataset(x, y),
            batch_size=batch, physical_batch_size=PHYSICAL, noise_multiplier=1e-3, delta=DELTA,
            clipping="abadi", radius=1.0, noise="fast",
        )  # fmt: skip
        while engine.steps_taken <= steps:
            for logical in engine.batches():
                if engine.steps_taken % EVERY == 0:
                    twin = qg.nn.resnet20(enhanced=name == "enhanced")
                    twin.load_state_dict(model.state_dict())
                    at = _measured(twin, x[:PROBES], y[:PROBES], "abadi", 1.0)
                    curve.append({
                        "step": engine.steps_taken,
                        "noise": at.sampling_noise**0.5,
                        "relative": at.relative_noise or 0.0,
                        "accuracy": _accuracy(model, test_x[:1000], test_y[:1000]),
                    })  # fmt: skip
                    print(name, json.dumps(curve[-1]), flush=True)
                for a, b in logical:
                    engine.backward(F.cross_entropy(model(a), b, reduction="none"))
                engine.step()
                if engine.steps_taken > steps:
                    break
    return found


def draw(curves: dict[str, list[dict[str, float]]], file: str) -> None:
    """What `noise` found, as two panels."""
    panels = [
        Panel(title, "step", unit, tuple(_curves(curves, key, scale)))
        for title, unit, key, scale in (
            ("sampling noise, root of E|g_i - g|^2", "norm", "noise", 1),
            ("test accuracy", "%", "accuracy", 100),
        )
    ]
    title = "ResNet20 on CIFAR-10 along clipped SGD, c = 1 (NOT PRIVATE)"
    panels_figure(Picture(title, "", panels=tuple(panels))).savefig(file)


def _curves(curves: dict[str, list[dict[str, float]]], key: str, scale: float) -> Iterator[Curve]:
    for (name, points), color in zip(curves.items(), ("vermillion", "blue"), strict=True):
        steps = tuple(point["step"] for point in points)
        yield Curve(name, steps, tuple(scale * point[key] for point in points), color=color)


def cosines(epochs: int, batch: int, rate: float, seed: int) -> dict[str, dict[str, float]]:
    """Cosine of the clipped sum to the true one, for each clipping, along one private training.

    All are measured at the same weights, of a run with auto-s on Fashion-MNIST at epsilon 3.
    """
    x, y, test_x, test_y = _normalized(qg.data.load("fashion-mnist"))
    torch.manual_seed(seed)
    model = qg.nn.tanh_cnn_28()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    engine = qg.PrivacyEngine(
        model, optimizer, TensorDataset(x, y), batch_size=batch, epochs=epochs, epsilon=3.0,
        delta=DELTA, physical_batch_size=512,
    )  # fmt: skip
    radii = {"auto-s": 1.0, "psac": 1.0, "abadi": 0.1, "auto-v": 1.0}
    seen: dict[str, list[float]] = {name: [] for name in radii}
    for _ in range(epochs):
        for logical in engine.batches():
            for a, b in logical:
                engine.backward(F.cross_entropy(model(a), b, reduction="none"))
            engine.step()
            if engine.steps_taken % 10 == 1:
                chosen = torch.randint(len(x), (512,))
                for name, radius in radii.items():
                    found = _measured(model, x[chosen], y[chosen], name, radius)
                    seen[name].append(found.clipped_cosine or 0.0)
    print("accuracy", _accuracy(model, test_x, test_y), "epsilon", engine.epsilon())
    return {
        name: {"mean": statistics.fmean(values), "least": min(values), "steps": len(values)}
        for name, values in seen.items()
    }


def costs(rounds: int) -> dict[str, float]:
    """A step with inner momentum, and one with views, over a plain private step."""
    torch.manual_seed(0)
    x, y = torch.rand(256, 1, 28, 28), torch.randint(10, (256,))
    plain = _stepper(x, y, momentum=None, views=1)
    others = {
        "inner momentum, K0=2": _stepper(x, y, momentum=qg.InnerOuter(length=2), views=1),
        "4 views": _stepper(x, y, momentum=None, views=4),
        "8 views": _stepper(x, y, momentum=None, views=8),
    }
    for step in (plain, *others.values()):
        for _ in range(16):
            step()
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(rounds):
        base = _seconds(plain)
        for name, step in others.items():
            ratios[name].append(_seconds(step) / base)
    return {name: statistics.median(values) for name, values in ratios.items()}


def _stepper(
    x: Tensor, y: Tensor, *, momentum: qg.InnerOuter | None, views: int
) -> Callable[[], None]:
    torch.manual_seed(0)
    workload = Workload(qg.nn.tanh_cnn_28(), (x,), y)
    model = workload.model
    engine = qg.PrivacyEngine(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), TensorDataset(x, y),
        batch_size=len(x), sampling="full-batch", noise_multiplier=1.0, delta=1e-3,
        momentum=momentum, noise="fast",
    )  # fmt: skip
    several = qg.SelfAugmentation(lambda rows: rows, views=views)

    def step() -> None:
        for logical in engine.batches():
            for a, b in logical:
                engine.backward(lambda a=a, b=b: several.losses(model, a, b, F.cross_entropy))
            engine.step()

    return step


def _seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _measured(
    model: nn.Module, x: Tensor, y: Tensor, clipping: str, radius: float
) -> qg.diagnostics.Measurement:
    twin = copy.deepcopy(model)
    return qg.diagnostics.measure(
        twin,
        lambda: F.cross_entropy(twin(x), y, reduction="none"),
        clipping=clipping,
        radius=radius,
        verify=False,
    )


def _normalized(data: ImageData) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """To about mean zero and variance one, by constants that everybody knows."""
    x, test = (t.float().div(255).sub(0.5).div(0.25) for t in (data.train_images, data.test_images))
    return x, data.train_labels, test, data.test_labels


@torch.no_grad()
def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    parts = zip(x.split(500), y.split(500), strict=True)
    right = sum(int((model(a).argmax(1) == b).sum()) for a, b in parts)
    model.train()
    return right / len(y)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["networks", "noise", "cosines", "costs"])
    parser.add_argument("--only", choices=NETWORKS, help="`networks`: one of the two")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=280)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", help="picture of what `noise` finds")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    if given.what == "costs":
        found: object = costs(given.rounds)
    elif given.what == "noise":
        found = noise(given.steps, given.batch, given.rate, given.seed)
        if given.plot:
            draw(found, given.plot)
    elif given.what == "networks":
        names = [given.only] if given.only else NETWORKS
        found = networks(names, given.epochs, given.batch, given.rate, given.seed)
    else:
        found = cosines(given.epochs, given.batch, given.rate, given.seed)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
