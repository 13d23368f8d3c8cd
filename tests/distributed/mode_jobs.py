"""One model trained in every mode, on parts of batches that may go wrong."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.grouping import Listed

from . import stages
from .jobs import in_parts, without_noise
from .sharded_jobs import mesh, weights_by_name
from .tensor_jobs import find_grid

FEATURES, WIDTH, CLASSES, STEPS = 5, 8, 3, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def cut(self):
        """Two stages."""
        one, other = self.blocks
        return [nn.Sequential(self.first, one), nn.Sequential(other, self.last)]


def data(samples, broken, dtype):
    x = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(5)).to(dtype)
    if broken:
        x[3] = float("nan")
    return TensorDataset(x, torch.arange(samples) % CLASSES)


def copied(model):
    return model


def sharded(model, copies=1):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh(copies))
    return fully_shard(model, mesh=mesh(copies))


def copied_shards(model):
    return sharded(model, 2)


def parts(model, replicas=1):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {f"blocks.{i}.up": ColwiseParallel() for i in (0, 1)}
    plan |= {f"blocks.{i}.down": RowwiseParallel() for i in (0, 1)}
    return parallelize_module(model, find_grid(replicas)["tp"], plan)


def copied_parts(model):
    return parts(model, 2)


def sharded_parts(model):
    from torch.distributed.fsdp import fully_shard

    rows = find_grid(2)["dp"]
    model = parts(model, 2)
    for block in model.blocks:
        fully_shard(block, mesh=rows)
    return fully_shard(model, mesh=rows)


SPREAD = {
    "data parallel": copied,
    "FSDP2": sharded,
    "tensor parallel": parts,
    "HSDP": copied_shards,
    "tensor parallel, copies": copied_parts,
    "FSDP2 x tensor parallel": sharded_parts,
}
PIPELINES = {"pipeline": 1, "pipelines": 2}


def same_as_one(mode, dtype="float64", samples=24, broken=False, **options):
    """Trains without noise in a mode, or in a process alone; a seed fixes the draws."""
    dtype = getattr(torch, dtype)
    model, dataset = Net().to(dtype), data(samples, broken, dtype)
    given = {"noise_multiplier": 1.0, "delta": 1e-5, "seed": 1, "batch_size": 6} | options
    with without_noise(), in_parts():
        if mode in PIPELINES:
            return _in_stages(model, dataset, PIPELINES[mode], given)
        model = SPREAD[mode](model) if dist.is_initialized() else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        given = {"physical_batch_size": 3} | given
        engine = qg.PrivacyEngine(model, optimizer, dataset, **given)

        def take(x, y):
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))

        counts = _train(engine, take)
    return _found(weights_by_name(model), engine, counts)


def _in_stages(model, dataset, replicas, given):
    given = {"physical_batch_size": 2, "schedule": "Schedule1F1B"} | given
    given["samples"] = given.pop("physical_batch_size")
    if dist.is_initialized():
        part = stages.Part(parts=model.cut(), replicas=replicas, dataset=dataset, **given)
        counts = _train(part.engine, lambda x, y: part.engine.run(x, target=y))
        own = {f"{part.place}.{n}": p for n, p in weights_by_name(part.model).items()}
        return _found(own, part.engine, counts)
    model = nn.Sequential(*model.cut())
    for name in ("samples", "schedule"):
        del given[name]
    lists = {p: [n for n, _ in model.named_parameters() if n.startswith(p)] for p in ("0.", "1.")}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    given["grouping"] = Listed(lists, radius=1.0)
    engine = qg.PrivacyEngine(model, optimizer, dataset, physical_batch_size=3, **given)

    def take(x, y):
        engine.backward(F.cross_entropy(model(x), y, reduction="none"))

    counts = _train(engine, take)
    return _found(weights_by_name(model), engine, counts)


def _train(engine, take):
    """The number of micro-batches in each batch."""
    counts = []
    while len(counts) < STEPS:
        for batch in engine.batches():
            counts.append(0)
            for x, y in batch:
                counts[-1] += 1
                take(x, y)
            engine.step()
            if len(counts) == STEPS:
                break
    return counts


def _found(weights, engine, counts):
    return {
        "weights": weights,
        "counts": counts,
        "epsilon": engine.epsilon(),
        "steps": engine.ledger.steps,
        "broken": engine.nonfinite_samples,
    }


def refuse(mode, what, **units):
    """Trains with something that the mode may not have."""
    given = {
        "AdaptiveRadius": {"radius": qg.AdaptiveRadius(), "clipping": "abadi"},
        "InnerOuter": {"momentum": qg.InnerOuter()},
        "diagnostics": {"diagnostics": qg.diagnostics.StepRecorder()},
        "compile": {"compile": True},
        "units": units,
    }[what]
    grouping = "per-device" if mode in PIPELINES else "all-layer"
    return same_as_one(mode, grouping=grouping, **given)
