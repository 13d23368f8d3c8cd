"""Programs that might train wrongly in parts or in stages; each returns what its rank was told."""

import warnings
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import quietgrad as qg

from . import stages, tensor_jobs
from .jobs import rank, without_noise
from .tensor_jobs import FEATURES, WIDTH, WORDS, Net, find_grid, shard, train, weights

warnings.simplefilter("ignore")


def spread(model, plan, sharded=False):
    """By the names of layers: "columns" or "rows"; nothing in a process alone."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return model
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    kinds = {
        "columns": ColwiseParallel(),
        "rows": RowwiseParallel(),
        "whole columns": ColwiseParallel(output_layouts=Replicate()),
        "table": RowwiseParallel(input_layouts=Replicate()),
    }
    mesh = find_grid(2 if sharded else 1)
    parallelize_module(model, mesh["tp"], {name: kinds[kind] for name, kind in plan.items()})
    return shard(model, getattr(model, "blocks", []), mesh["dp"]) if sharded else model


def one_half_of_the_words(samples=40):
    """Of all words those that the first rank has."""
    x, ids = tensor_jobs.data(samples).tensors
    return TensorDataset(x, ids % (WORDS // 2))


class Dead(Net):
    """The first rank's part of a layer gives nothing, and gets no gradient."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.blocks[0].up.bias[: len(self.blocks[0].up.bias) // 2] = -1e3

    def forward(self, x, ids):
        h = self.words(ids) + self.more(ids) + self.numbers(x).unsqueeze(1)
        for block in self.blocks:
            h = h + block.down(F.relu(block.up(block.norm(h))))
        return self.head(h)


def silent(what, sharded=False, **options):
    """A rank's part of a layer gets no gradient, and another's does."""
    model = Dead() if what == "dead" else Net()
    dataset = one_half_of_the_words() if what == "words" else tensor_jobs.data()
    replicas = 2 if sharded else 1
    model, engine = tensor_jobs.attach(
        model, replicas=replicas, sharded=sharded, dataset=dataset, **options
    )
    with without_noise():
        train(model, engine, 4)
    return {"weights": weights(model), "radii": [group.radius for group in engine.groups]}


class Odd(nn.Module):
    """Sizes that cannot be cut into equal parts; one layer is used twice."""

    def __init__(self, inner=7, outer=5):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS + 1, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH, bias=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outer)
        self.double()

    def forward(self, x, ids):
        h = self.words(ids).mean(1)
        for _ in range(2):
            h = h + self.down(torch.tanh(self.up(self.norm(h))))
        return self.head(h)


def odd(frozen=(), inner=7, outer=5, clipped="auto-s", sharded=False, **options):
    """What is trained of a model whose parts differ in size."""
    plan = {"words": "table", "up": "columns", "down": "rows", "head": "whole columns"}
    model = Odd(inner, outer)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    model = spread(model, plan, sharded)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    given = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-5, "seed": 1} | options
    engine = qg.PrivacyEngine(model, optimizer, tensor_jobs.data(), clipping=clipped, **given)
    with without_noise():
        while engine.steps_taken < 3:
            for batch in engine.batches():
                for x, ids in batch:
                    labels = ids[:, 0] % outer
                    engine.backward(F.cross_entropy(model(x, ids), labels, reduction="none"))
                engine.step()
                if engine.steps_taken == 3:
                    break
    return {"weights": weights(model)}


class Noisy(Dataset):
    """Another sample each time that it is read."""

    def __init__(self):
        self.held = tensor_jobs.data()

    def __len__(self):
        return len(self.held)

    def __getitem__(self, place):
        x, ids = self.held[place]
        return x + torch.randn(FEATURES, dtype=x.dtype), ids


class Dropping(Net):
    def forward(self, x, ids):
        h = self.words(ids) + self.more(ids) + self.numbers(F.dropout(x, 0.5)).unsqueeze(1)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def apart(what, alike=False, sharded=False):
    """Ranks with parts of the same layers run the same samples, but not alike; what each is told.

    If ``alike``, they do.
    """
    torch.manual_seed(7 if alike else rank())
    model = Dropping() if what == "dropout" else Net()
    dataset = Noisy() if what == "data" else tensor_jobs.data()
    torch.manual_seed(7 if alike else rank())
    options = {"replicas": 2, "sharded": True} if sharded else {}
    model, engine = tensor_jobs.attach(model, dataset=dataset, **options)
    found = {"error": None, "message": ""}
    try:
        train(model, engine, 1)
        if what == "weights" and rank() == 1 and not alike:
            with torch.no_grad():
                held = model.blocks[0].norm.weight
                getattr(held, "_local_tensor", held).mul_(2.0)
        train(model, engine, 1)
    except qg.QuietgradError as error:
        found = {"error": type(error).__name__, "message": str(error)}
    return found | {"steps": engine.ledger.steps}


class HalfOfTheWords(Net):
    """The loss is taken of the logits that a rank has."""


def half_of_the_outputs():
    model = spread(Net(), {"head": "columns"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, ids = tensor_jobs.data().tensors
    dataset = TensorDataset(x, ids % (WORDS // 2))
    options = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-5, "seed": 1}
    engine = qg.PrivacyEngine(model, optimizer, dataset, **options)
    try:
        train(model, engine, 1)
    except qg.QuietgradError as error:
        return {"error": type(error).__name__, "message": str(error), "steps": engine.ledger.steps}
    return {"error": None}


# -- pipelines -----------------------------------------------------------------------------------


class Hooked(nn.Module):
    """Changes gradients on their way to the stage before."""

    def __init__(self, part, change):
        super().__init__()
        self.part, self.change = part, change

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(self.change)
        return self.part(x)


class Kept(nn.Module):
    """Normalizes by what it has seen in earlier micro-batches."""

    def __init__(self, part):
        super().__init__()
        self.part, self.seen = part, None

    def forward(self, x):
        seen = 0 if self.seen is None else self.seen
        self.seen = x.detach().mean(0)
        return self.part(x - seen)


CHANGES = {
    "a mean": lambda grad: grad - grad.mean(0),
    "a norm": lambda grad: grad / (1e-9 + grad.norm()),
    "the next one": lambda grad: grad.roll(1, 0),
    "the largest": lambda grad: grad / (1e-9 + grad.abs().max()),
}


def staged(what):
    """A program of stages that must be refused; the error of this rank, and the steps recorded."""
    parts, options = stages.build(2), {"timeout": 4}
    if what in CHANGES:
        parts[1] = Hooked(parts[1], CHANGES[what])
    elif what == "what it keeps":
        parts[1] = Kept(parts[1])
    elif what == "batch statistics":
        parts[1] = nn.Sequential(nn.BatchNorm1d(8).double(), parts[1])
    elif what == "module hook":
        parts[1].register_full_backward_hook(
            lambda module, inputs, outputs: tuple(each - each.mean(0) for each in inputs)
        )
    part = stages.Part(parts=parts, **options)
    engine = part.engine
    try:
        with without_noise():
            _spoil_and_train(part, what)
    except Exception as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "steps": engine.ledger.steps,
        }
    return {"error": None, "steps": engine.ledger.steps}


def _spoil_and_train(part, what):
    engine, x = part.engine, stages.data().tensors[0][:8]
    for batch in engine.batches():
        if what == "another module":
            stage = part.schedule._stage
            stage.submod = stages.build(2)[part.place]
        for x, y in batch:
            if what == "a step of the schedule":
                with suppress(StopIteration):
                    part.schedule.step(x) if part.place == 0 else part.schedule.step(target=y)
            if what == "fewer samples":
                x, y = x[:6], y[:6]
            if what == "no labels":
                y = None
            part.engine.run(x, target=y)
        engine.step()
        return
