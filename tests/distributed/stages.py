"""What ranks with stages of one model do in tests; each returns plain data."""

import os
import signal
import warnings
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.engine import checkpoint, update
from quietgrad.grouping import LayerWise, Listed

from .jobs import CLASSES, FEATURES, data, without_noise

warnings.simplefilter("ignore")
CPU = torch.device("cpu")


def build(stages):
    """The parts of one model."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 8), nn.Tanh()]
    for _ in range(stages - 1):
        layers += [nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(8, CLASSES)).double()
    cuts = [0, *range(2, 3 * stages - 3, 3), len(model)]
    return [model[start:end] for start, end in pairwise(cuts)]


def per_sample(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none")


class Part:
    """What a rank has of a pipeline over all ranks, or over those of a row of the mesh."""

    def __init__(
        self,
        schedule="ScheduleGPipe",
        micro=4,
        samples=2,
        replicas=1,
        parts=None,
        loss=per_sample,
        timeout=60,
        stages_here=1,
        **options,
    ):
        size = dist.get_world_size() // replicas
        count = size * stages_here
        if replicas > 1:
            group = init_device_mesh("cpu", (replicas, size), mesh_dim_names=("dp", "pp"))["pp"]
            group = group.get_group()
        else:
            # What a refused run leaves in the connections is not to be met by the next job.
            group = dist.new_group(timeout=timedelta(seconds=timeout))
        self.place = dist.get_rank(group)
        parts = build(count) if parts is None else parts
        own = range(self.place, count, size)
        stages = [pipelining.PipelineStage(parts[i], i, count, CPU, group=group) for i in own]
        one = stages_here == 1
        self.model = parts[self.place] if one else nn.ModuleList([parts[i] for i in own])
        make = getattr(pipelining, schedule)
        self.schedule = make(stages[0] if one else stages, n_microbatches=micro, loss_fn=loss)
        given = {
            "dataset": data(),
            "batch_size": 16,
            "noise_multiplier": 1.0,
            "delta": 1e-5,
            "seed": 1,
            "physical_batch_size": samples,
            "grouping": "per-device",
            "pipeline": self.schedule,
        }
        dataset = (given := given | options).pop("dataset")
        model = given.pop("model", self.model)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.optimizer = optimizer
        self.engine = qg.PrivacyEngine(model, optimizer, dataset, **given)

    def train(self, steps, on_batch=lambda step: None):
        taken = 0
        while taken < steps:
            for batch in self.engine.batches():
                on_batch(taken)
                for x, y in batch:
                    self.engine.run(x, target=y)
                self.engine.step()
                taken += 1
                if taken == steps:
                    break

    def weights(self):
        return {name: p.flatten().tolist() for name, p in self.model.named_parameters()}


def groupings(kind):
    return {"grouping": LayerWise(radius=0.5)} if kind == "layer-wise" else {}


def same_as_one(steps=5, broken=False, within="", **options):
    """Trains without noise; a seed fixes the draws."""
    with without_noise():
        part = Part(dataset=data(broken=broken), **groupings(within), **options)
        part.train(steps)
    engine = part.engine
    return {
        "weights": part.weights(),
        "epsilon": engine.epsilon(),
        "steps": engine.ledger.steps,
        "sensitivity": engine.sensitivity,
        "broken": engine.nonfinite_samples,
        "stages": [stage.stage_index for stage in vars(part.schedule).get("_stages", [])]
        or [part.place],
        "groups": [group["name"] for group in engine.settings()["groups"]],
    }


def one_process(
    stages, steps=5, broken=False, within="", micro=4, samples=2, schedule="", replicas=1, **options
):
    """The same by a process alone, with a group for each stage; weights by stage."""
    options.pop("stages_here", None)
    parts = build(stages)
    model = nn.ModuleList(parts)
    model.forward = lambda x: nn.Sequential(*parts)(x)
    if within:
        # Each stage has this radius, whatever its number of layers.
        names = [[n for n, _ in part.named_parameters()] for part in parts]
        lists = {
            f"{i}.{layer}": [f"{i}.{n}" for n in each if n.startswith(f"{layer}.")]
            for i, each in enumerate(names)
            for layer in dict.fromkeys(n.partition(".")[0] for n in each)
        }
        counts = [len({n.partition(".")[0] for n in each}) for each in names]
        radii = [0.5 / counts[int(name.partition(".")[0])] ** 0.5 for name in lists]
        grouping = Listed(lists, radii=radii)
    else:
        lists = {
            str(i): [f"{i}.{n}" for n, _ in part.named_parameters()] for i, part in enumerate(parts)
        }
        grouping = Listed(lists, radius=options.pop("radius", 1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    given = {"batch_size": 16, "noise_multiplier": 1.0, "delta": 1e-5, "seed": 1} | options
    engine = qg.PrivacyEngine(model, optimizer, data(broken=broken), grouping=grouping, **given)
    taken = 0
    with without_noise():
        while taken < steps:
            for batch in engine.batches():
                for x, y in batch:
                    engine.backward(per_sample(model(x), y))
                engine.step()
                taken += 1
                if taken == steps:
                    break
    return {
        "weights": [
            {name: p.flatten().tolist() for name, p in part.named_parameters()} for part in parts
        ],
        "epsilon": engine.epsilon(),
        "steps": engine.ledger.steps,
        "sensitivity": engine.sensitivity,
        "broken": engine.nonfinite_samples,
    }


def noise(seeded=False, steps=2, replicas=1, noise="secure"):
    """What sums of nothing are released as."""
    size = dist.get_world_size() // replicas
    torch.manual_seed(0)
    parts = [nn.Linear(100, 300) for _ in range(size)]
    part = Part(parts=parts, replicas=replicas, seed=7 if seeded else None, noise=noise)
    engine, found = part.engine, []
    for step in range(steps):
        engine._noise.begin_step(step)
        totals = [torch.zeros(300, 100), torch.zeros(300)]
        noisy = engine._world.noisy(totals, lambda parts: engine._noise.add(parts, 1.0))
        found.append(torch.cat([each.flatten() for each in noisy]).tolist())
    return found


def sensitivity(clipping, schedule="Schedule1F1B"):
    """How far the sum of this rank's stages moves when one sample is left out, squared."""
    sums, bound = [], 0.0
    for left_out in (None, 0, 5, 7):
        x, y = data(12).tensors
        kept = [i for i in range(12) if i != left_out]
        part = Part(
            schedule=schedule,
            dataset=TensorDataset(x[kept] * 10, y[kept]),
            sampling="full-batch",
            batch_size=len(kept),
            clipping=clipping,
        )
        found = []
        part.optimizer.register_step_pre_hook(
            lambda *_, p=part, found=found: found.append(
                torch.cat([each.grad.flatten() for each in p.model.parameters()])
            )
        )
        with without_noise():
            part.train(1)
        sums.append(found[0] * len(kept))
        bound = part.engine.sensitivity
        part.engine.detach()
    return [float((each - sums[0]).square().sum()) / bound**2 for each in sums[1:]]


class Mixing(nn.Module):
    """Takes the mean over the micro-batch away."""

    def __init__(self, part, detached=False):
        super().__init__()
        self.part, self.detached = part, detached

    def forward(self, x):
        return self.part(x - (x.detach() if self.detached else x).mean(0))


class Failing(nn.Module):
    """Fails in its fourth call."""

    def __init__(self, part):
        super().__init__()
        self.part, self.calls = part, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 4:
            raise ZeroDivisionError("a fault of the user's own")
        return self.part(x)


class Shared(nn.Module):
    """Returns something that all samples share."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        x = self.part(x)
        return x, x.detach().mean(0)


class Joining(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x, mean):
        return self.part(x + mean)


def refuse(what, victim=1):
    """A run that is refused: by which error, and how many steps were recorded."""
    parts, options = build(dist.get_world_size()), {}
    if what == "a stage mixes":
        parts[victim] = Mixing(parts[victim])
    elif what == "something is shared":
        parts[0], parts[1] = Shared(parts[0]), Joining(parts[1])
    elif what == "a mean loss":
        options["loss"] = F.cross_entropy
    elif what == "a loss mixes":
        options["loss"] = lambda o, t: per_sample(o - o.mean(0), t)
    elif what == "an error":
        parts[victim] = Failing(parts[victim])
    part = Part(parts=parts, timeout=4, **options)
    try:
        part.train(2)
    except Exception as error:
        found = {"error": type(error).__name__, "message": str(error)}
        return found | {"steps": part.engine.ledger.steps}


def misuse(what):
    """Arguments that are refused."""
    count = dist.get_world_size()
    options = {
        "zero bubble": {"schedule": "ScheduleInterleavedZeroBubble", "stages_here": 2},
        "all-layer": {"grouping": "all-layer"},
        "adaptive": {"radius": qg.AdaptiveRadius(), "clipping": "abadi"},
        "momentum": {"momentum": qg.InnerOuter()},
        "compile": {"compile": True},
        "diagnostics": {"diagnostics": qg.diagnostics.StepRecorder()},
        "no size": {"physical_batch_size": None},
        "no loss": {"loss": None},
        "another model": {"model": build(count)[0]},
        "no schedule": {"pipeline": "1F1B"},
        "weights": {"parts": None},
        "micro-batches": {"micro": 2 + dist.get_rank()},
    }[what]
    return Part(**options)


def reorder(targets=True):
    """Without ``targets`` all labels are equal: nothing is to be seen of them."""
    part = Part(samples=8)
    with without_noise():
        for batch in part.engine.batches():
            for x, y in batch:
                order = y.argsort()  # repeated ones come beside each other
                part.engine.run(x[order], target=y[order] if targets else torch.zeros_like(y))
            part.engine.step()


def one_sample_first(seed=1):
    """The first batch is of one sample, with which micro-batches are filled up; a stage mixes."""
    parts = build(dist.get_world_size())
    parts[-1] = Mixing(parts[-1], detached=True)
    x, y = data(5).tensors
    options = {"batch_size": 1, "verification": "once", "seed": seed}
    part = Part(parts=parts, dataset=TensorDataset(x, y), **options)
    seen, error = [], None
    try:
        with without_noise():
            while len(seen) < 40:
                for batch in part.engine.batches():
                    for x, y in batch:
                        seen.append(sum(part.engine._runner._real))
                        part.engine.run(x, target=y)
                    part.engine.step()
    except qg.QuietgradError as caught:
        error = type(caught).__name__
    return {"error": error, "seen": seen}


def use_backward():
    part = Part()
    with without_noise():
        for batch in part.engine.batches():
            for x, _ in batch:
                part.engine.backward(x.sum(1))


def resume(folder, loads=True):
    """Six steps, after the second of which all goes on in new engines."""
    path = Path(folder) / "state.pt"
    part = Part()
    part.train(2)
    if loads:
        for steps in (2, 3):
            if steps == 3:
                part.train(1)
            part.engine.save(path)
        part.engine.detach()
        part = Part()
        part.engine.load(path)
    part.train(6 - part.engine.steps_taken)
    files = sorted(each.name for each in path.parent.iterdir()) if loads else []
    return {"weights": part.weights(), "steps": part.engine.ledger.steps, "files": files}


def die(folder, where, victim=1, steps=6, restart=False):
    """A rank is killed in its fourth step; weights and ledger are on disk before and after."""
    folder = Path(folder)
    part = Part(seed=None, ledger=folder / "ledger.jsonl", timeout=5)
    engine = part.engine
    if restart:
        engine.load(folder / "state.pt")
        part.train(steps - engine.steps_taken)
        return {"steps": engine.steps_taken, "recorded": engine.ledger.steps}
    part.train(2)
    engine.save(folder / "state.pt")

    if dist.get_rank() == victim:
        _arm(engine, where)
    if where == "in a save":
        part.train(1)
        engine.save(folder / "state.pt")
    part.train(steps - engine.steps_taken)
    return {"steps": engine.steps_taken, "recorded": engine.ledger.steps}


def _arm(engine, where):
    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    holder, name = {
        "in the schedule": (engine._runner, "_backward"),
        "before the ledger": (engine._budget, "record"),
        "before the noise": (engine._world, "noisy"),
        "after the noise": (update.NoisyUpdate, "update"),
        "in a save": (checkpoint, "replace_file"),
    }[where]
    setattr(holder, name, kill)
