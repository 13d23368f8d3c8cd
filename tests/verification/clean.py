"""What the clean programs share: each keeps its samples apart, and must train unhindered.

A program is clean if one sample more or less changes nothing for the others, given the same random
draws for them, and if nothing of the data is kept.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from quietgrad import PrivacyEngine

COUNT, FEATURES, CLASSES, VOCABULARY, LONGEST = 24, 6, 3, 11, 7
SAMPLING_SEED = 49  # three steps, of 6 and 5, of 4, and of 6 and 1 samples


def classify(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def train(engine, program, optimizer):
    """The ordinary loop."""
    for batch in engine.batches():
        for micro_batch in batch:
            engine.backward(program.losses(program.model, micro_batch))
        engine.step()


@dataclass(frozen=True)
class Program:
    """A model and how it is trained; ``train`` is the whole loop."""

    model: nn.Module
    data: Any
    losses: Callable[..., torch.Tensor] = classify
    options: dict[str, Any] = field(default_factory=dict)
    train: Callable[..., None] = train


@dataclass(frozen=True)
class Clean:
    """A name, and what makes a new program."""

    name: str
    build: Callable[[], Program]

    def run(self, seed=0, **options):
        """Train three steps or more; the engine, which is detached, and the parameters."""
        seed_everything(seed)
        program = self.build()
        given = {"batch_size": 8, "physical_batch_size": 6, "delta": 1e-3, "noise": "fast"}
        given |= {"noise_multiplier": 0.1, "seed": SAMPLING_SEED + seed} | program.options | options
        trained = [p for p in program.model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.05)
        before = [p.detach().clone() for p in trained]
        engine = PrivacyEngine(program.model, optimizer, program.data, **given)
        try:
            while engine.steps_taken < 3:
                program.train(engine, program, optimizer)
        finally:
            engine.detach()
        assert engine.nonfinite_samples == 0
        assert any(not torch.equal(p, was) for p, was in zip(trained, before, strict=True))
        return [p.detach().clone() for p in trained]


PROGRAMS: dict[str, Clean] = {}


def clean(name):
    """Add what the decorated function builds to the list."""

    def add(build):
        assert name not in PROGRAMS
        PROGRAMS[name] = Clean(name, build)
        return build

    return add


def seed_everything(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


class Net(nn.Module):
    """Layers by name, and a function that uses them."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = forward

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


# -- data ----------------------------------------------------------------------------------------


def labels():
    return torch.arange(COUNT) % CLASSES


def vectors():
    """Rows of features with a class."""
    return TensorDataset(torch.randn(COUNT, FEATURES), labels())


def images(*shape):
    return TensorDataset(torch.randn(COUNT, *shape), labels())


def texts():
    """Ids, all of one length, with a class."""
    return TensorDataset(torch.randint(1, VOCABULARY, (COUNT, LONGEST)), labels())


def sentences():
    """Ids of unequal length, with a class."""
    sizes = [2 + 5 * place % 6 for place in range(COUNT)]
    return [
        (torch.randint(1, VOCABULARY, (size,)), place % CLASSES) for place, size in enumerate(sizes)
    ]


def pad(rows):
    """Ids padded to the longest, a mask of what is none, and classes."""
    ids = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row, _ in rows])
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    return ids, mask, torch.tensor([label for _, label in rows])


PADDED = {"collate_fn": pad}


def classify_masked(model, batch):
    ids, mask, y = batch
    return F.cross_entropy(model(ids, mask), y, reduction="none")


# -- layers --------------------------------------------------------------------------------------


def mlp(*between):
    """Two layers with something between them."""
    return nn.Sequential(nn.Linear(FEATURES, 8), *between, nn.Linear(8, CLASSES))


def table(width=8):
    return nn.Embedding(VOCABULARY, width)


def head(width=8):
    return nn.Linear(width, CLASSES)
