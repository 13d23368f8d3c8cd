"""What privacy costs on several ranks: seconds, bytes on the wire and memory beside plain training.

Run by torchrun: torchrun --nproc-per-node=2 -m benchmarks.ranks MODE SETTING [--memory]
With ``--model bert --opacus`` Opacus takes its steps in the same rounds: with gradients of every
sample (``hooks``, copies only) and with norms first (``ghost``, in two passes).

What goes over the loopback interface is counted, too. It is what this program sends if the
interface is its own: unshare --net sh -c 'ip link set lo up && torchrun ...'
"""

import argparse
import json
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg

LENGTH, VOCABULARY = 64, 1000


def build(options: argparse.Namespace) -> nn.Module:
    """A GPT-2 that predicts tokens, or a BERT that tells two classes apart; without dropout."""
    import transformers

    torch.manual_seed(0)
    if options.model == "bert":
        sizes = transformers.BertConfig(
            num_hidden_layers=options.layers,
            hidden_size=options.width,
            intermediate_size=4 * options.width,
            num_attention_heads=8,
            vocab_size=VOCABULARY,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return transformers.BertForSequenceClassification(sizes).train()
    sizes = transformers.GPT2Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=8,
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(sizes).train()


def losses(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """One for each sample."""
    if is_classifier(model):
        return F.cross_entropy(predict_classes(model, ids), classes(ids), reduction="none")
    logits = model(ids).logits
    entries = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return entries.mean(1)


def is_classifier(model: nn.Module) -> bool:
    """Whether it is the BERT, wrapped or not."""
    return any(hasattr(each, "classifier") for each in (model, getattr(model, "module", None)))


def predict_classes(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """With the positions said, one row for each sample: Opacus needs that."""
    places = torch.arange(ids.shape[1]).repeat(len(ids), 1)
    return model(ids, position_ids=places, token_type_ids=0 * ids).logits


def classes(ids: torch.Tensor) -> torch.Tensor:
    """Of two, by the first token."""
    return ids[:, 0] % 2


def shard(model: nn.Module) -> nn.Module:
    """Block by block."""
    from torch.distributed.fsdp import fully_shard

    blocks: Iterable[Any] = (
        model.bert.encoder.layer if is_classifier(model) else model.transformer.h
    )
    for block in blocks:
        fully_shard(block)
    return fully_shard(model)


class Wire:
    """Counts what a rank sends in collectives, as a ring sends it."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def reduce_bucket(self, state: None, bucket: dist.GradBucket):
        """What DistributedDataParallel does with gradients, out of sight of Python otherwise."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        size = dist.get_world_size()
        self.sent["gradients"] += 2 * (size - 1) * bucket.buffer().nbytes // size
        return allreduce_hook(None, bucket)

    def counted(self, name: str, share: float):
        function = getattr(dist, name)

        def run(*args, **kwargs):
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            self.sent[name] += int(share * max(t.nbytes for t in tensors))
            return function(*args, **kwargs)

        return patch.object(dist, name, run)


def loopback() -> int:
    """Bytes that went over the loopback interface so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


def peak(*, reset: bool = False) -> float:
    """Of the memory of this process, in MiB."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def make_plain(wire, options, ids):
    """A step of ordinary training."""
    model = build(options)
    if options.mode == "sharded":
        model = inner = shard(model)
    else:
        inner = nn.parallel.DistributedDataParallel(model)
        inner.register_comm_hook(None, wire.reduce_bucket)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad()
        losses(inner, ids[: options.batch]).mean().backward()
        optimizer.step()

    return step


def make_private(options, ids):
    """The same with privacy."""
    model = build(options)
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


def make_opacus(kind: str, options, ids):
    """The same by Opacus, as in its documentation."""
    from opacus import PrivacyEngine
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
    from opacus.utils.fsdp_utils import FSDP2Wrapper

    is_sharded, model = options.mode == "sharded", build(options)
    wrap = FSDP2Wrapper if is_sharded else DifferentiallyPrivateDistributedDataParallel
    model = wrap(model)
    own = ids[: options.batch]
    with warnings.catch_warnings(action="ignore"):
        model, optimizer, *criteria = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(own), batch_size=options.batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=f"{kind}_fsdp" if is_sharded else kind,
        )
    criterion = criteria[0] if kind == "ghost" else nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        criterion(predict_classes(model, own), classes(own)).backward()
        optimizer.step()

    return step


def list_makers(options: argparse.Namespace, wire: Wire) -> dict[str, Callable]:
    """What takes steps, by name."""
    found = {"plain": partial(make_plain, wire), "private": make_private}
    if options.memory:
        name = "plain" if options.setting == "plain" else "private"
        return {name: found[name]}
    if options.opacus:
        kinds = ["ghost"] if options.mode == "sharded" else ["hooks", "ghost"]
        found |= {f"opacus {kind}": partial(make_opacus, kind) for kind in kinds}
    return found


def main() -> None:
    """Prints one JSON object, by rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["sharded", "copies"])
    parser.add_argument("setting", help="plain, or a grouping")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--model", choices=["gpt2", "bert"], default="gpt2")
    parser.add_argument("--opacus", action="store_true", help="beside it; for bert")
    parser.add_argument("--memory", action="store_true", help="one of the two only, alone")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    ids = torch.randint(1, VOCABULARY, (64, LENGTH), generator=torch.Generator().manual_seed(1))
    size, wire = dist.get_world_size(), Wire()
    found = {"mode": options.mode, "setting": options.setting, "model": options.model}
    makers = list_makers(options, wire)
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
        dist.barrier()
        before = loopback()
        step()
        dist.barrier()
        found[f"loopback bytes of {name}, a rank"] = (loopback() - before) // size
        for each in patches:
            each.stop()
        found[f"bytes of {name}"] = sum(wire.sent.values())
        found[f"seconds of {name}"] = round(statistics.median(seconds[name]), 3)
    found["peak of later steps (MiB)"] = round(peak())
    for name in steps.keys() - {"plain"} if "plain" in steps else ():
        pairs = zip(seconds[name], seconds["plain"], strict=True)
        found[f"ratio of {name}"] = round(statistics.median(a / b for a, b in pairs), 3)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
