"""What ranks do in tests; each returns plain data."""

import os
import signal
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad import noise as noises
from quietgrad.distributed import facts
from quietgrad.distributed import world as worlds
from quietgrad.engine import update

warnings.simplefilter("ignore")
SAMPLES, FEATURES, CLASSES = 64, 6, 3
VERSIONS = {"quietgrad": (facts, "9"), "torch": (torch, "2.99")}


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def data(samples=SAMPLES, broken=False):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    if broken:
        x[3] = float("nan")
    return TensorDataset(x, torch.arange(samples) % CLASSES)


def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def attach(model=None, dataset=None, momentum_of=0.9, **options):
    model = build() if model is None else model
    given = {
        "batch_size": 16,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "seed": 1,
        "physical_batch_size": 3,
    }
    dataset = data() if dataset is None else dataset
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum_of)
    return model, qg.PrivacyEngine(model, optimizer, dataset, **(given | options))


def train(model, engine, steps, on_batch=None, momentum=False):
    taken, seen = 0, []
    while taken < steps:
        for batch in engine.batches():
            for x, y in batch:
                seen.append(x[:, 0].tolist())
                if on_batch is not None:
                    on_batch(model, taken)
                losses = lambda x=x, y=y: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
                engine.backward(losses if momentum else losses())
            engine.step()
            taken += 1
            if taken == steps:
                break
    return seen


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def without_noise():
    """Sums over all ranks, and no noise."""

    def add(self, totals, std, divisor=1.0):
        return [total / divisor for total in totals]

    return patch.object(noises.SecureNoise, "add", add)


def in_parts():
    """Each rank adds noise to its own part, as it does without a seed."""
    begin = worlds.Replicas.__init__
    return patch.object(worlds.Replicas, "__init__", lambda self, *, is_seeded=False: begin(self))


def people():
    """Whose record each is: 12 people with three to six records."""
    return [f"person {record * record % 23}" for record in range(SAMPLES)]


def same_as_one(
    steps=5, broken=False, adaptive=False, inner=False, parts=False, by_person=False, **options
):
    """Trains without noise; a seed fixes the draws."""
    if by_person:
        options |= {"units": people(), "records_per_unit": 3}
    if adaptive:
        options |= {"radius": qg.AdaptiveRadius(), "clipping": "abadi"}
    if inner:
        options |= {"momentum": qg.InnerOuter()}
    with without_noise(), in_parts() if parts else nullcontext():
        model, engine = attach(dataset=data(broken=broken), momentum_of=0.0, **options)
        seen = train(model, engine, steps, momentum=inner)
    return {
        "weights": weights(model),
        "seen": seen,
        "radii": [group.radius for group in engine.groups],
        "epsilon": engine.epsilon(),
        "steps": engine.ledger.steps,
    }


def noise(noise="secure", seeded=False, steps=2, size=3000):
    """What sums of nothing are released as."""
    torch.manual_seed(0)
    _, engine = attach(nn.Linear(size, 10), noise=noise, seed=7 if seeded else None)
    found = []
    for step in range(steps):
        noisy = engine._update.noisy({}, step=step, std=1.0, divisor=1)
        found.append(torch.cat([each.flatten() for each in noisy]).tolist())
    return found


def draws(steps=20):
    _, engine = attach(seed=None, batch_size=8)
    taken = []
    for _ in range(steps // engine.steps_per_epoch + 1):
        for batch in engine._loader:
            taken.append([index for micro in batch.indices for index in micro])
            batch.discard()
    return taken


def differ(what):
    """Rank 1 is not like rank 0."""
    other = rank() == 1
    if what == "weights":
        return attach(build(seed=int(other)))
    if what == "data":
        dataset = data()
        dataset.tensors[0][0] += int(other)
        return attach(dataset=dataset)
    if what == "size":
        return attach(dataset=data(60 if other else 64))
    if what == "units":
        ids = people()
        ids[0], ids[1] = ids[int(other)], ids[1 - int(other)]
        return attach(units=ids, records_per_unit=3, batch_size=8)
    if what == "settings":
        return attach(clipping="psac" if other else "auto-s")
    if what in VERSIONS:
        module, version = VERSIONS[what]
        with patch.object(module, "__version__", f"{version}.{int(other)}"):
            return attach()
    if what == "parameters":
        model = build()
        model[0].requires_grad_(not other)
        return attach(model)
    if what == "wrapped":
        return attach(nn.parallel.DistributedDataParallel(build()))
    if what == "diagnostics":
        return attach(diagnostics=qg.diagnostics.StepRecorder())
    return attach(what)


def refuse_on_one():
    """Rank 1 mixes samples from its second step on; the error, and the steps that were recorded."""

    class Mixing(nn.Module):
        is_mixing = False

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(FEATURES, CLASSES).double()

        def forward(self, x):
            return self.layer(x - x.mean(0) if self.is_mixing else x)

    def spoil(model, step):
        model.is_mixing = rank() == 1 and step >= 1

    model, engine = attach(Mixing(), physical_batch_size=8, verification="every")
    try:
        train(model, engine, 4, spoil)
    except qg.QuietgradError as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "steps": engine.ledger.steps,
        }


def die(folder, where, victim=1, steps=6, restart=False):
    """A rank is killed in its fourth step; weights and ledger are on disk before and after."""
    folder = Path(folder)
    model, engine = attach(seed=None, ledger=folder / "ledger.jsonl")
    if restart:
        engine.load(folder / "state.pt")
        train(model, engine, steps - engine.steps_taken)
        return {"steps": engine.steps_taken, "recorded": engine.ledger.steps}
    train(model, engine, 2)
    engine.save(folder / "state.pt")
    own = rank() == victim

    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if own and where == "before the vote":
        engine._capture.check_trainable_set = kill
    if own and where == "before the ledger":
        engine._budget.record = kill
    if own and where == "before the noise":
        engine._world.noisy = kill
    if own and where == "after the noise":
        update.NoisyUpdate.update = kill
    if own and where == "before the optimizer":
        engine._optimizer.register_step_pre_hook(kill)
    train(model, engine, steps - 2)
    return {"steps": engine.steps_taken, "recorded": engine.ledger.steps}


def save_and_load(folder, first, then):
    """Goes on with a state of another number of ranks."""
    path = Path(folder) / "state.pt"
    model, engine = attach()
    if first:
        engine.load(path)
    train(model, engine, then)
    engine.save(path)
    return {"weights": weights(model), "steps": engine.steps_taken, "ledger": engine.ledger.steps}


def sensitivity(grouping, clipping):
    """The largest change of the sum over all ranks when one sample is left out."""
    sums = []
    for left_out in (None, 0, 5, 7):
        x, y = data(12).tensors
        kept = [i for i in range(12) if i != left_out]
        model, engine = attach(
            dataset=TensorDataset(x[kept] * 10, y[kept]),
            sampling="full-batch",
            batch_size=len(kept),
            grouping=grouping,
            clipping=clipping,
        )
        found = []
        engine._optimizer.register_step_pre_hook(
            lambda *_, m=model, found=found: found.append(
                torch.cat([p.grad.flatten() for p in m.parameters()])
            )
        )
        with without_noise():
            train(model, engine, 1)
        sums.append(found[0] * len(kept))
        sensitivity = engine.sensitivity
        engine.detach()
    return max(float((each - sums[0]).norm()) for each in sums[1:]) / sensitivity
