"""What ranks with sharded weights do while they verify micro-batches; each returns plain data."""

import warnings
from unittest.mock import patch

import torch
import torch.nn.functional as F
from tests.verification.test_rounding import AtAKink
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.capture import independence
from quietgrad.distributed.gathering import Gathering
from quietgrad.distributed.shards import ShardedSums, Shards

from .jobs import rank, without_noise
from .sharded_jobs import shard, weights

warnings.simplefilter("ignore")
BLOCKS, WIDTH, CLASSES = 6, 8, 3


class Deep(nn.Module):
    """Blocks of one size, between two layers."""

    def __init__(self, rate=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Dropout(rate))
            for _ in range(BLOCKS)
        )
        self.double()

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


class OfOneSize(Deep):
    """Made for one number of samples, which shows when some blocks have run."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x):
        x = self.first(x)
        for place, block in enumerate(self.blocks):
            x = x + block(x)
            if place == 2:
                x = x.reshape(self.count, WIDTH)
        return self.last(x)


def rows(samples, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 4, generator=generator, dtype=dtype)
    return TensorDataset(x, torch.arange(samples) % 2)


def train(model, dataset, steps=2, losses=None, **options):
    """All samples in each step; the weights, or the error."""
    blocks = [*getattr(model, "blocks", [])]
    model = shard(model, blocks)
    size = len(dataset)
    given = {"batch_size": size, "noise_multiplier": 1.0, "delta": 1e-5, "seed": 1} | options
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    engine = qg.PrivacyEngine(model, optimizer, dataset, sampling="full-batch", **given)
    try:
        with without_noise():
            while engine.steps_taken < steps:
                for batch in engine.batches():
                    for x, y in batch:
                        found = F.cross_entropy(model(x), y, reduction="none")
                        engine.backward(found if losses is None else losses(model, found))
                    engine.step()
    except qg.QuietgradError as error:
        return {"error": type(error).__name__, "message": str(error), "steps": engine.ledger.steps}
    return {"weights": weights(model)}


def sizes(samples, **options):
    """Ranks have another number of samples, and need another number of passes."""
    return train(Deep(), rows(samples), verification="every", **options)


def one_size(samples, each):
    return train(OfOneSize(each), rows(samples), verification="every")


def dropout():
    """Each rank draws for itself; that nothing is refused is all that can be said."""
    torch.manual_seed(rank())
    found = train(Deep(rate=0.5), rows(24), verification="every", steps=3, seed=None)
    return found if "error" in found else {"trained": True}


def kink(on=1):
    """A hidden value of one rank is nothing but rounding: to tell, it may move its weights."""
    batch = 18
    torch.manual_seed(1)
    model = AtAKink(batch, 5)
    torch.manual_seed(1)
    x = torch.randn(batch, 4)
    places = torch.arange(2 * batch)
    own = torch.where((places % 2 == on).unsqueeze(1), x[places // 2], x[places // 2] + 10)
    with patch.object(independence, "_TREMBLES", 60):
        found = train(model, TensorDataset(own, places % 2), steps=1)
    return {"error": found.get("message")}


def moved():
    """What rank 1 computes while its weights are moved, and rank 0 meanwhile; then both."""
    model, x = Deep(), rows(5).tensors[0]
    expected = [model(x)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
        expected.append(model(x))
        for parameter in model.parameters():
            parameter.sub_(0.5)
    world = Shards(shard(model, list(model.blocks)))
    world._sums = ShardedSums({}, [], [], world)
    with world.verifying(is_wanted=True):
        if rank() == 1:
            with world.moved_weights(model, lambda name, values: values + 0.5):
                first = model(x)
        else:
            first = model(x)
        second = model(x)
    apart = [float((first - expected[rank()]).abs().max())]
    return [*apart, float((second - expected[0]).abs().max())]


def room(grouping):
    """Most entries of weights that were whole at a time, and those of a block and of all."""
    most, gather = [], Gathering._gather

    def look(self, number, *, is_wanted):
        gather(self, number, is_wanted=is_wanted)
        held = (g for g in self._groups if g.is_unsharded)
        most.append(sum(each._unsharded_param.numel() for g in held for each in g.fsdp_params))

    model = Deep()
    total = sum(p.numel() for p in model.parameters())
    block = sum(p.numel() for p in model.blocks[0].parameters())
    root = total - BLOCKS * block
    with patch.object(Gathering, "_gather", look):
        found = train(model, rows(24), verification="every", grouping=grouping)
    return {"most": max(most), "block": block, "root": root, "total": total, **found}


def escape():
    """Rank 1 uses a weight in the loss, where nobody sees it."""

    def losses(model, found):
        if rank() == 1:
            return found + 0.0 * model.blocks[0][0].weight.to_local().sum()
        return found

    return train(Deep(), rows(24), losses=losses)


def mixing(where):
    """Rank 1 mixes samples in its second block, in a forward or in a backward pass."""

    class Mixed(Deep):
        def forward(self, x):
            x = self.first(x)
            for place, block in enumerate(self.blocks):
                x = x + block(x)
                if place == 1 and rank() == 1:
                    if where == "forward":
                        x = x + x.detach().mean(0)
                    elif x.requires_grad:
                        x.register_hook(lambda grad: grad / grad.norm())
            return self.last(x)

    return train(Mixed(), rows(24))
