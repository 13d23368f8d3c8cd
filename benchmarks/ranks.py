"""What privacy costs on several ranks: seconds, bytes on the wire and memory beside plain training.

Run by torchrun: torchrun --nproc-per-node=2 -m benchmarks.ranks MODE SETTING [--memory]
"""

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg

LENGTH, VOCABULARY = 64, 1000


def build(width: int, layers: int) -> nn.Module:
    """A GPT-2 without dropout."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=8,
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).train()


def losses(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """One for each sample."""
    logits = model(ids).logits
    entries = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return entries.mean(1)


def shard(model: nn.Module) -> nn.Module:
    """Block by block."""
    from torch.distributed.fsdp import fully_shard

    for block in model.transformer.h:
        fully_shard(block)
    return fully_shard(model)


class Wire:
    """Counts what a rank sends in collectives, as a ring sends it."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def counted(self, name: str, share: float):
        function = getattr(dist, name)

        def run(*args, **kwargs):
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            self.sent[name] += int(share * max(t.nbytes for t in tensors))
            return function(*args, **kwargs)

        return patch.object(dist, name, run)


def peak(*, reset: bool = False) -> float:
    """Of the memory of this process, in MiB."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def make_plain(options, ids):
    """A step of ordinary training."""
    model = build(options.width, options.layers)
    if options.mode == "sharded":
        model = inner = shard(model)
    else:
        inner = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad()
        losses(inner, ids[: options.batch]).mean().backward()
        optimizer.step()

    return step


def make_private(options, ids):
    """The same with privacy."""
    model = build(options.width, options.layers)
    model = shard(model) if options.mode == "sharded" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    size = options.batch * dist.get_world_size()
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        TensorDataset(ids[:size]),
        batch_size=size,
        noise_multiplier=1.0,
        delta=1e-3,
        sampling="full-batch",
        grouping=options.setting,
        noise="fast",
        verification="once",
    )
    source = iter(batch for _ in iter(int, 1) for batch in engine.batches())

    def step():
        for (own,) in next(source):
            engine.backward(losses(model, own))
        engine.step()

    return step


def main() -> None:
    """Prints one JSON object, by rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["sharded", "copies"])
    parser.add_argument("setting", help="plain, or a grouping")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="one of the two only, alone")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    ids = torch.randint(1, VOCABULARY, (64, LENGTH), generator=torch.Generator().manual_seed(1))
    size, wire = dist.get_world_size(), Wire()
    found = {"mode": options.mode, "setting": options.setting, "ranks": size}
    makers = {"plain": make_plain, "private": make_private}
    if options.memory:
        makers = {
            "plain" if options.setting == "plain" else "private": makers[
                "plain" if options.setting == "plain" else "private"
            ]
        }
    steps = {name: make(options, ids) for name, make in makers.items()}
    for step in steps.values():
        step()
        step()
    found["peak with verification (MiB)"] = round(peak())
    peak(reset=True)
    part = (size - 1) / size
    shares = {
        "all_gather_single": part,
        "all_gather_into_tensor": part,
        "reduce_scatter_single": part,
        "reduce_scatter_tensor": part,
        "all_reduce": 2 * part,
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.steps):
        for name, step in steps.items():
            dist.barrier()
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    for name, step in steps.items():
        wire.sent.clear()
        patches = [
            wire.counted(each, share) for each, share in shares.items() if hasattr(dist, each)
        ]
        for each in patches:
            each.start()
        step()
        for each in patches:
            each.stop()
        found[f"bytes of {name}"] = sum(wire.sent.values())
        found[f"seconds of {name}"] = round(statistics.median(seconds[name]), 3)
    found["peak of later steps (MiB)"] = round(peak())
    if len(steps) == 2:
        pairs = zip(seconds["private"], seconds["plain"], strict=True)
        found["ratio"] = round(statistics.median(a / b for a, b in pairs), 3)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
