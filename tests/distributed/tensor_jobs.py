"""What ranks with parts of the layers' weights do in tests; each returns plain data."""

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg

from .jobs import without_noise

warnings.simplefilter("ignore")
WIDTH, WORDS, FEATURES = 8, 12, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Numbers and words in, words out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.numbers, self.words = nn.Linear(FEATURES, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.more = nn.Embedding(WORDS, WIDTH, padding_idx=3)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(self, x, ids):
        h = self.words(ids) + self.more(ids) + self.numbers(x).unsqueeze(1)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class ScaledBlock(Block):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x)) * self.scale))


class Scaled(Net):
    """A weight that is whole meets activations of which each rank has a part."""

    def __init__(self):
        super().__init__()
        self.blocks[0] = ScaledBlock().double()


def data(samples=40, broken=False, half=False):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    if broken:
        x[3] = float("nan")
    x = x.float() if half else x
    return TensorDataset(x, torch.randint(0, WORDS, (samples, 4), generator=generator))


def losses(model, x, ids):
    return F.cross_entropy(model(x, ids).transpose(1, 2), ids, reduction="none").mean(1)


def find_grid(replicas=1):
    from torch.distributed.device_mesh import init_device_mesh

    size = dist.get_world_size() // replicas
    return init_device_mesh("cpu", (replicas, size), mesh_dim_names=("dp", "tp"))


def find_mesh(replicas=1):
    return find_grid(replicas)["tp"]


def spread(model, replicas=1, sharded=False):
    """As tensor parallel models are made; nothing in a process alone.

    Beside each other there are copies, or they are sharded.
    """
    if not dist.is_initialized():
        return model
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "more": ColwiseParallel(output_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
        **{f"blocks.{i}.up": ColwiseParallel() for i in (0, 1)},
        **{f"blocks.{i}.down": RowwiseParallel() for i in (0, 1)},
    }
    mesh = find_grid(replicas)
    parallelize_module(model, mesh["tp"], plan)
    return shard(model, model.blocks, mesh["dp"]) if sharded else model


def shard(model, blocks, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def attach(model=None, replicas=1, momentum_of=0.0, sharded=False, half=False, **options):
    model = Net() if model is None else model
    model = spread(model.float() if half else model, replicas, sharded)
    given = {
        "dataset": data(half=half),
        "batch_size": 8,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "seed": 1,
        "physical_batch_size": 5,
    } | options
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum_of)
    return model, qg.PrivacyEngine(model, optimizer, given.pop("dataset"), **given)


def train(model, engine, steps):
    taken = 0
    while taken < steps:
        for batch in engine.batches():
            for x, ids in batch:
                engine.backward(losses(model, x, ids))
            engine.step()
            taken += 1
            if taken == steps:
                break


def weights(model):
    """Whole ones."""
    found = {}
    for name, parameter in model.named_parameters():
        held = parameter.detach()
        held = held.full_tensor() if hasattr(held, "full_tensor") else held
        found[name] = held.flatten().tolist()
    return found


def same_as_one(steps=5, broken=False, adaptive=False, **options):
    """Trains without noise; a seed fixes the draws."""
    if adaptive:
        options |= {"radius": qg.AdaptiveRadius(), "clipping": "abadi"}
    with without_noise():
        dataset = data(broken=broken, half=options.get("half", False))
        model, engine = attach(dataset=dataset, **options)
        train(model, engine, steps)
    return {
        "weights": weights(model),
        "epsilon": engine.epsilon(),
        "sensitivity": engine.sensitivity,
        "broken": engine.nonfinite_samples,
        "radii": [group.radius for group in engine.groups],
    }


def noise(seeded=False, steps=2, replicas=1, sharded=False):
    """What sums of nothing are released as: of a weight that is spread, and of one that is not.

    What is spread is this rank's part; if it is sharded, too, it is gathered from its row.
    """
    model = nn.Sequential(nn.Linear(40, 200), nn.Linear(200, 40), nn.Linear(40, 100))
    if dist.is_initialized():
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        mesh = find_grid(replicas)
        model = parallelize_module(model, mesh["tp"], plan)
        if sharded:
            shard(model, [model[0]], mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    dataset = TensorDataset(torch.zeros(8, 40))
    options = {"batch_size": 4, "noise_multiplier": 1.0, "delta": 1e-5}
    engine = qg.PrivacyEngine(model, optimizer, dataset, seed=7 if seeded else None, **options)
    found = []
    for step in range(steps):
        noisy = engine._update.noisy({}, step=step, std=1.0, divisor=1)
        pairs = zip(model.named_parameters(), noisy, strict=True)
        by_name = {n: part_of_row(p, each).flatten().tolist() for (n, p), each in pairs}
        found.append(
            {
                "spread": by_name["0.weight"] + by_name["1.weight"],
                "whole": by_name["1.bias"] + by_name["2.weight"],
            }
        )
    return found


def part_of_row(parameter, held):
    """All that the ranks of a row have of a part, of which this rank has a shard."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None or mesh.mesh_dim_names[0] != "dp":
        return held
    parts = [None] * mesh.size(0)
    dist.all_gather_object(parts, held, group=mesh.get_group(0))
    return torch.cat(parts)


def sensitivity(grouping, clipping, **more):
    """How far the sum moves when one sample is left out."""
    sums = []
    for left_out in (None, 0, 5):
        x, ids = data(10).tensors
        kept = [i for i in range(10) if i != left_out]
        model, engine = attach(
            dataset=TensorDataset(x[kept] * 10, ids[kept]),
            sampling="full-batch",
            batch_size=len(kept),
            grouping=grouping,
            clipping=clipping,
            **more,
        )
        before = weights(model)
        with without_noise():
            train(model, engine, 1)
        after = weights(model)
        moved = [torch.tensor(after[n]) - torch.tensor(before[n]) for n in before]
        sums.append(torch.cat(moved) * len(kept) / 0.5)
        bound = engine.sensitivity
        engine.detach()
    return max(float((each - sums[0]).norm()) for each in sums[1:]) / bound


def resume(folder, loads=False, **more):
    model, engine = attach(momentum_of=0.9, **more)
    train(model, engine, 2)  # each call begins a pass
    if loads:
        train(model, engine, 1)
        engine.save(folder)
        engine.detach()
        model, engine = attach(momentum_of=0.9, **more)
        engine.load(folder)
    train(model, engine, 2 if loads else 3)
    return {"weights": weights(model), "steps": engine.ledger.steps}


def states(folder, first, then, source=None, target=None, **more):
    """Goes on with a state of another number of ranks, in a folder or in a file."""
    model, engine = attach(momentum_of=0.9, **more)
    folder = Path(folder)
    if first:
        engine.load(folder / source)
    with without_noise():
        train(model, engine, then)
    engine.save(folder / target)
    return {"weights": weights(model), "steps": engine.steps_taken, "ledger": engine.ledger.steps}


def misuse(what):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    options = {}
    if what == "sequence parallel":
        model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)).double()
        plan = {"0": SequenceParallel()}
        model = parallelize_module(model, find_mesh(), plan)
    elif what == "another layer":
        model = parallelize_module(
            nn.Sequential(Odd()), find_mesh(), {"0.layer": ColwiseParallel()}
        )
    elif what == "whole on parts":
        model, engine = attach(Scaled())
        train(model, engine, 1)
        return
    else:
        options = {"momentum": qg.InnerOuter()}
        model = parallelize_module(
            nn.Sequential(nn.Linear(4, 4)).double(), find_mesh(), {"0": ColwiseParallel()}
        )
    train_on_tokens(model, **options)


class Odd(nn.Module):
    """Uses the weight of a layer by itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4).double()

    def forward(self, x):
        return self.layer(x) * self.layer.weight.sum()


class Mixing(Net):
    def forward(self, x, ids):
        return super().forward(x - x.mean(0), ids)


def refuse(**more):
    """All ranks see it."""
    model, engine = attach(Mixing(), **more)
    try:
        train(model, engine, 1)
    except qg.QuietgradError as error:
        return {"error": type(error).__name__, "steps": engine.ledger.steps}


def llama(alone=False, replicas=1, sharded=False, steps=None, grouping="all-layer"):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=16,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    if not alone:
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        plan = {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
            "lm_head": ColwiseParallel(output_layouts=Replicate()),
        }
        for layer in range(2):
            place = f"model.layers.{layer}"
            columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            columns += ("mlp.gate_proj", "mlp.up_proj")
            plan |= {f"{place}.{name}": ColwiseParallel() for name in columns}
            plan |= {
                f"{place}.{n}": RowwiseParallel() for n in ("self_attn.o_proj", "mlp.down_proj")
            }
        mesh = find_grid(replicas)
        parallelize_module(model, mesh["tp"], plan)
        if sharded:
            shard(model, model.model.layers, mesh["dp"])
    ids = torch.randint(0, 64, (24, 8), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    options = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-5, "seed": 1}
    engine = qg.PrivacyEngine(model, optimizer, TensorDataset(ids), **options, grouping=grouping)
    taken = 0
    with without_noise():
        for batch in engine.batches():
            for (x,) in batch:
                logits = model(x).logits[:, :-1].transpose(1, 2)
                engine.backward(F.cross_entropy(logits, x[:, 1:], reduction="none").mean(1))
            engine.step()
            taken += 1
            if taken == steps:
                break
    return weights(model)


def refuse_grid(what):
    """What cannot be trained on rows that shard parts of layers; the error."""
    grid = {"replicas": 2, "sharded": True}
    options = {
        "momentum": {"momentum": qg.InnerOuter()},
        "compile": {"compile": True},
        "diagnostics": {"diagnostics": qg.diagnostics.StepRecorder()},
    }
    if what in options:
        attach(**options[what], **grid)
    elif what == "whole on parts":
        train(*attach(Scaled(), **grid), 1)
    else:
        train_on_tokens(refused_grid(what))


def refused_grid(what):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    sizes, names = {
        "a dimension that is left out": ((2, 2, 1), ("dp", "other", "tp")),
        "copies of shards": ((2, 1, 2), ("copy", "dp", "tp")),
    }.get(what, ((2, 2), ("dp", "tp")))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)).double()
    plan = {"0": SequenceParallel()} if what == "sequence parallel" else {"1": ColwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    part = model[1] if what == "a layer that is left out" else model
    fully_shard(part, mesh=mesh["copy", "dp"] if what == "copies of shards" else mesh["dp"])
    return model


def train_on_tokens(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    dataset = TensorDataset(torch.randn(8, 4, 4, dtype=torch.float64))
    given = {"batch_size": 4, "noise_multiplier": 1.0, "delta": 1e-5, "seed": 1} | options
    engine = qg.PrivacyEngine(model, optimizer, dataset, **given)
    for batch in engine.batches():
        for (x,) in batch:
            engine.backward(model(x).flatten(1).sum(1))
        engine.step()
