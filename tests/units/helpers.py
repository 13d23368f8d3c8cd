"""What tests of units share: data of people with one to five records, and the loop over people.

The loop knows nothing of the engine: it takes each unit's records, the mean of their losses, its
gradient by plain autograd, clips it and adds it up.
"""

import math
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad import clipping as clippings
from quietgrad import noise as noises

FEATURES, CLASSES = 5, 3
COUNTS = (1, 3, 2, 5, 1, 4, 2, 3, 5, 1, 2, 4)
"""Records of each person."""


def ids(counts=COUNTS):
    return [f"person {unit}" for unit, count in enumerate(counts) for _ in range(count)]


def data(counts=COUNTS, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(counts), FEATURES, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.arange(sum(counts)) % CLASSES)


def build():
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, CLASSES)
    return nn.Sequential(*layers).double()


def attach(model=None, dataset=None, *, counts=COUNTS, rate=0.5, **options):
    model = build() if model is None else model
    given = {
        "batch_size": max(1, len(counts) // 2),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "seed": 0,
        "units": ids(counts),
        "records_per_unit": 3,
    }
    dataset = data(counts) if dataset is None else dataset
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return model, qg.PrivacyEngine(model, optimizer, dataset, **given | options)


def losses_of(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def train(model, engine, steps, losses=losses_of):
    """So many steps; the indices of each micro-batch of each of them."""
    seen = []
    while len(seen) < steps:
        for batch in engine.batches():
            seen.append([[*each] for each in engine._batch._batch.indices])
            for x, y in batch:
                engine.backward(lambda x=x, y=y: losses(model, x, y))
            engine.step()
            if len(seen) == steps:
                break
    return seen


def without_noise():
    return patch.object(
        noises.SecureNoise,
        "add",
        lambda self, totals, std, divisor=1.0: [total / divisor for total in totals],
    )


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def units_of(records, counts=COUNTS):
    """Records by the unit that they belong to."""
    owners = ids(counts)
    found = {}
    for record in records:
        found.setdefault(owners[record], []).append(record)
    return found


def gradient(model, x, y, losses=losses_of):
    """Of the mean loss of these records, by parameter."""
    grads = torch.autograd.grad(losses(model, x, y).mean(), [*model.parameters()])
    return dict(zip((name for name, _ in model.named_parameters()), grads, strict=True))


def clipped_loop(model, dataset, records, groups, clipping, *, counts=COUNTS, losses=losses_of):
    """The sum over units of clipped gradients, by parameter."""
    weigh, total = clippings.resolve(clipping).weights, {}
    for own in units_of(records, counts).values():
        x, y = (tensor[own] for tensor in dataset.tensors)
        grads = gradient(model, x, y, losses)
        for group in groups:
            norm = math.sqrt(sum(float(grads[n].square().sum()) for n in group.parameters))
            weight = float(weigh(torch.tensor([norm], dtype=torch.float64), group.radius))
            for name in group.parameters:
                total[name] = total.get(name, 0) + weight * grads[name]
    return total
