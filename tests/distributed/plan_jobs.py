"""Models that are planned, and what a rank really holds and sends of them; plain data."""

import gc
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg

from .counted import HeldBytes, SentBytes
from .sharded_jobs import shard
from .tensor_jobs import find_mesh

warnings.simplefilter("ignore")
SIZES = {
    "small": {"width": 128, "blocks": 4, "words": 500, "positions": 64},
    "wide": {"width": 256, "blocks": 2, "words": 1000, "positions": 32},
    "deep": {"width": 192, "blocks": 6, "words": 300, "positions": 48},
}
# Large beside what an interpreter takes and gives back.
LARGER = {
    "10 million": {"width": 384, "blocks": 5, "words": 3000, "positions": 96},
    "20 million": {"width": 512, "blocks": 6, "words": 2000, "positions": 64},
    "30 million": {"width": 768, "blocks": 4, "words": 2000, "positions": 48},
}
HEADS = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.each = width // HEADS

    def forward(self, x):
        h = self.first(x)
        split = [
            layer(h).unflatten(2, (-1, self.each)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.second(x))))


class Net(nn.Module):
    def __init__(self, width, blocks, words, positions):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, x):
        if self.words is not None:
            x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


TENSOR_PLAN = {
    "words": "rowwise",
    "head": "colwise_rep",
    **{f"blocks.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
    **{f"blocks.*.{name}": "rowwise" for name in ("out", "down")},
}


def data(size, samples):
    shape = samples, (SIZES | LARGER)[size]["positions"]
    ids = torch.randint(
        0, (SIZES | LARGER)[size]["words"], shape, generator=torch.Generator().manual_seed(1)
    )
    return TensorDataset(ids)


def per_sample(outputs, ids):
    return F.cross_entropy(outputs[:, :-1].mT, ids[:, 1:], reduction="none").mean(1)


def losses(model, ids):
    return per_sample(model(ids), ids)


def whole(size):
    return Net(**(SIZES | LARGER)[size])


def part_of(size, mode):
    """The model as a rank has it."""
    model = whole(size)
    if mode in ("fsdp2", "hsdp:2x2"):
        return shard(model, model.blocks, 2 if mode.startswith("hsdp") else 1)
    if mode == "tensor-parallel:2":
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        plan = {
            "words": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Replicate()),
            "blocks.*.query": ColwiseParallel(),
            "blocks.*.key": ColwiseParallel(),
            "blocks.*.value": ColwiseParallel(),
            "blocks.*.up": ColwiseParallel(),
            "blocks.*.out": RowwiseParallel(),
            "blocks.*.down": RowwiseParallel(),
        }
        return parallelize_module(model, find_mesh(), plan)
    return model


def attach(size, mode, grouping, samples, micro_batches, verification):
    """An engine whose ranks have so many micro-batches of so many samples in a step."""
    sets = dist.get_world_size() if mode in ("data-parallel", "fsdp2", "hsdp:2x2") else 1
    everyone = samples * micro_batches * sets
    model, options = part_of(size, mode), {}
    if mode.startswith("pipeline"):
        model, options["pipeline"] = make_stage(model, mode, micro_batches)
        grouping = "per-device"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        data(size, everyone),
        batch_size=everyone,
        physical_batch_size=samples,
        sampling="full-batch",
        noise_multiplier=1.0,
        delta=1e-5,
        grouping=grouping,
        verification=verification,
        **options,
    )
    engine._timings = None  # formulas choose the kernels, also in the first steps
    return model, engine


def make_stage(model, mode, micro_batches):
    from torch.distributed import pipelining

    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = len(model.blocks) // ranks
    model.blocks = model.blocks[rank * each : (rank + 1) * each]
    if rank > 0:
        model.words = None
    if rank < ranks - 1:
        model.norm = model.head = None
    stage = pipelining.PipelineStage(model, rank, ranks, torch.device("cpu"))
    kind = pipelining.ScheduleGPipe if mode.endswith("gpipe") else pipelining.Schedule1F1B
    return model, kind(stage, n_microbatches=micro_batches, loss_fn=per_sample)


def spend(size, mode, grouping="all-layer", samples=8, micro_batches=1, steps=3):
    """Bytes that a rank sends in a step, and holds at most at its moments."""
    found = {}
    for verification, moment in (("once", "micro-batch"), ("every", "verified")):
        gc.collect()
        before = HeldBytes().now  # of jobs before this one
        model, engine = attach(size, mode, grouping, samples, micro_batches, verification)
        source = iter(batch for _ in iter(int, 1) for batch in engine.batches())
        for _ in range(steps - 1):
            take_step(model, engine, source, mode)
        sent, held = SentBytes(2), HeldBytes()
        with sent, held:
            running, releasing = take_step(model, engine, source, mode, held)
        found[moment] = running - before
        if verification == "once":
            found |= {"release": releasing - before, "sent": dict(sent.sent)}
        engine.detach()
        del model, engine, source
    return found


def take_step(model, engine, source, mode, held=None):
    """The peaks of its micro-batches, and of its end."""
    if held is not None:
        held.begin()
    for (ids,) in next(source):
        if mode.startswith("pipeline"):
            engine.run(ids, target=ids)
        else:
            engine.backward(losses(model, ids))
    running = 0 if held is None else held.peak
    if held is not None:
        held.begin()
    engine.step()
    return running, 0 if held is None else held.peak


def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def resident(size, mode, grouping, samples=8):
    """Bytes this process holds at most beyond those that it did before: later, and verified."""
    spend("small", mode, grouping, samples)  # what is loaded when it is first used
    gc.collect()
    before, found = status("VmRSS"), {}
    for verification, moment in (("once", "steady"), ("every", "verified")):
        model, engine = attach(size, mode, grouping, samples, 1, verification)
        source = iter(batch for _ in iter(int, 1) for batch in engine.batches())
        for _ in range(2):
            take_step(model, engine, source, mode)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        take_step(model, engine, source, mode)
        found[moment] = status("VmHWM") - before
        engine.detach()
        del model, engine, source
        gc.collect()
    return found
