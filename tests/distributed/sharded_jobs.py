"""What ranks with sharded weights do in tests; each returns plain data.

Each job runs in one process, too, where the model stays whole: that is what it is compared with.
"""

import os
import signal
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.distributed import shards
from quietgrad.distributed.shards import Shards
from quietgrad.engine import update

from . import jobs
from .jobs import CLASSES, FEATURES, rank, without_noise


def mesh(copies=1):
    from torch.distributed.device_mesh import init_device_mesh

    size = dist.get_world_size()
    if copies == 1:
        return init_device_mesh("cpu", (size,))
    return init_device_mesh("cpu", (copies, size // copies), mesh_dim_names=("copy", "shard"))


def shard(model, blocks=(), copies=1, reshard=None, half=False):
    """On several ranks; in one process nothing is done."""
    if not dist.is_initialized():
        return model
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {"mesh": mesh(copies), "reshard_after_forward": reshard}
    if half:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def build(dtype=torch.float64):
    """Rows that cannot be cut into equal parts, some of which no rank but the first has."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 7), nn.LayerNorm(7), nn.Linear(7, 8))
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), block, nn.Linear(8, CLASSES))
    return model.to(dtype)


def sharded(copies=1, reshard=None, dtype=torch.float64):
    model = build(dtype)
    return shard(model, [model[2]], copies, reshard)


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def weights(model):
    return torch.cat([whole(p).detach().flatten() for p in model.parameters()]).tolist()


def weights_by_name(model):
    return {name: whole(p).detach().flatten().tolist() for name, p in model.named_parameters()}


def sharded_as_one(
    steps=5, broken=False, adaptive=False, copies=1, reshard=None, evaluate=False, **options
):
    """Trains without noise; a seed fixes the draws."""
    if adaptive:
        options |= {"radius": qg.AdaptiveRadius(), "clipping": "abadi"}

    def look(model, step):
        if evaluate:  # which leaves the outermost weights gathered
            with torch.no_grad():
                model.eval()(torch.zeros(1, FEATURES, dtype=torch.float64))
            model.train()

    with without_noise():
        model, engine = jobs.attach(
            sharded(copies, reshard), jobs.data(broken=broken), momentum_of=0.0, **options
        )
        seen = jobs.train(model, engine, steps, look)
    return {
        "weights": weights(model),
        "seen": seen,
        "radii": [group.radius for group in engine.groups],
        "epsilon": engine.epsilon(),
        "steps": engine.ledger.steps,
        "nonfinite": engine.nonfinite_samples,
    }


def sharded_noise(noise="secure", seeded=False, steps=2, size=600, copies=1):
    """What a step of samples that move nothing releases: noise, gathered from its owners."""

    class Still(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(10, size))
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            moved = F.linear(x, self.weight).sum(1) + self.bias.sum()
            return (0 * moved).unsqueeze(1).expand(-1, 2)

    model = shard(Still(), copies=copies)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rows = TensorDataset(torch.ones(8, size), torch.zeros(8, dtype=torch.int64))
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        rows,
        batch_size=8,
        noise_multiplier=1.0,
        delta=1e-3,
        noise=noise,
        sampling="full-batch",
        seed=7 if seeded else None,
    )
    found, before = [], torch.tensor(weights(model))
    for _ in range(steps):
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(F.cross_entropy(model(x), y, reduction="none"))
            engine.step()
        after = torch.tensor(weights(model))
        found.append(((before - after) * 8).tolist())
        before = after
    local = [p.to_local() if dist.is_initialized() else p for p in model.parameters()]
    return {"noise": found, "local": torch.cat([p.detach().flatten() for p in local]).tolist()}


def methods(method, kind, steps=3):
    """Whether a method gives what it gives in one process; or why it is refused."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8) if method == "BatchClipping" else nn.LayerNorm(8)
    model = nn.Sequential(nn.Linear(FEATURES, 8), norm, nn.Linear(8, CLASSES)).double()
    model = shard(model) if kind == "sharded" else model
    views = qg.SelfAugmentation(lambda rows: rows.flip(1), 2, keep_original=True)
    # All public features stand beside each sample, so that it does not matter which are drawn.
    publicly = qg.BatchClipping(torch.randn(4, FEATURES, dtype=torch.float64), 4)
    options = {
        "InnerOuter": {"momentum": qg.InnerOuter()},
        "AdaptiveRadius": {"radius": qg.AdaptiveRadius(), "clipping": "abadi"},
        "diagnostics": {"diagnostics": qg.diagnostics.StepRecorder()},
    }.get(method, {})

    def losses(x, y):
        if method == "SelfAugmentation":
            return views.losses(model, x, y, F.cross_entropy)
        if method == "BatchClipping":
            return publicly.losses(model, x, y, F.cross_entropy)
        return F.cross_entropy(model(x), y, reduction="none")

    with without_noise():
        model, engine = jobs.attach(model, momentum_of=0.0, **options)
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(partial(losses, x, y))
            engine.step()
            if engine.steps_taken == steps:
                break
        engine.discard_batch()
    return weights(model)


def sharded_room(grouping):
    """Most entries of sums that were whole at a time, in micro-batches that are not verified."""
    most = []
    model, engine = jobs.attach(sharded(), grouping=grouping, verification="once", batch_size=32)
    scatter = Shards.scatter

    def look(self, parameters, wholes):
        held = sum(whole.numel() for whole in engine._batch.sums._wholes.values())
        most.append(held + sum(whole.numel() for whole in wholes))
        return scatter(self, parameters, wholes)

    jobs.train(model, engine, 1)
    with patch.object(Shards, "scatter", look), patch.object(shards, "_TOGETHER", 1):
        jobs.train(model, engine, 2)
    sizes = [parameter.numel() for parameter in model.parameters()]
    block = [parameter.numel() for parameter in model[2].parameters()]
    return {"most": max(most), "largest": max(sizes), "block": sum(block), "all": sum(sizes)}


def sharded_refusal(where):
    """Rank 1 does something in its second step that it may not; what each rank is told."""

    class Mixing(nn.Module):
        is_mixing = False

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(FEATURES, CLASSES).double()

        def forward(self, x):
            return self.layer(x - x.mean(0) if self.is_mixing else x)

    model = shard(Mixing())
    model, engine = jobs.attach(model, physical_batch_size=8, verification="every")

    def spoil(model, step):
        is_spoilt = rank() == 1 and step >= 1
        model.is_mixing = is_spoilt and where == "samples"
        if is_spoilt and where == "trainable set":
            model.layer.bias.requires_grad_(False)
        if is_spoilt and where == "losses":
            raise_later = engine._capture.begin_backward

            def begin():
                raise_later()
                raise qg.errors.LossError("no losses")

            engine._capture.begin_backward = begin

    try:
        jobs.train(model, engine, 4, spoil)
    except qg.QuietgradError as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "steps": engine.ledger.steps,
        }


def sharded_sensitivity(grouping, clipping, copies=1):
    """The largest change of the sum over all ranks when one sample is left out."""
    sums = []
    for left_out in (None, 0, 5):
        x, y = jobs.data(12).tensors
        kept = [i for i in range(12) if i != left_out]
        model, engine = jobs.attach(
            sharded(copies),
            TensorDataset(x[kept] * 10, y[kept]),
            sampling="full-batch",
            batch_size=len(kept),
            grouping=grouping,
            clipping=clipping,
        )
        found = []
        engine._optimizer.register_step_pre_hook(
            lambda *_, m=model, found=found: found.append(
                torch.cat([whole(p.grad).flatten() for p in m.parameters()])
            )
        )
        with without_noise():
            jobs.train(model, engine, 1)
        sums.append(found[0] * len(kept))
        sensitivity = engine.sensitivity
        engine.detach()
    return max(float((each - sums[0]).norm()) for each in sums[1:]) / sensitivity


def sharded_differ(what):
    """What is refused at the start."""
    other = rank() == 1
    if what == "parts":
        model = build()
        block = model[2]
        return jobs.attach(shard(block, ()) and model)
    if what == "copies":
        model = sharded(copies=dist.get_world_size())
        with torch.no_grad():
            model[0].bias.to_local().add_(int(other))
        return jobs.attach(model)
    if what == "inner":
        return jobs.attach(sharded(), momentum=qg.InnerOuter())
    if what == "diagnostics":
        return jobs.attach(sharded(), diagnostics=qg.diagnostics.StepRecorder())
    return jobs.attach(sharded(), clipping="psac" if other else "auto-s")


def sharded_states(folder, first, then, source=None, target=None, copies=1):
    """Goes on with a state of another number of ranks, in a folder or in a file."""
    model = sharded(copies)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        jobs.data(),
        batch_size=16,
        noise_multiplier=1.0,
        delta=1e-5,
        seed=1,
        physical_batch_size=3,
    )
    folder = Path(folder)
    if first:
        engine.load(folder / source)
    jobs.train(model, engine, then)
    engine.save(folder / target)
    state = engine.state_dict()  # gathered
    again = torch.cat([state["model"][n].flatten() for n, _ in model.named_parameters()])
    return {
        "weights": weights(model),
        "gathered": again.tolist(),
        "steps": engine.steps_taken,
        "ledger": engine.ledger.steps,
    }


def sharded_with_torch(folder):
    """What a user does with ``torch.distributed.checkpoint``, and a step that is refused."""
    from torch.distributed.checkpoint import state_dict as states

    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    engine = qg.PrivacyEngine(
        model, optimizer, jobs.data(), batch_size=16, noise_multiplier=1.0, delta=1e-5
    )
    before = weights(model)
    states.get_state_dict(model, optimizer)  # which takes a step of nothing
    unchanged = weights(model) == before
    jobs.train(model, engine, 1)
    found = {"unchanged": unchanged, "moved": weights(model) != before}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    try:
        optimizer.step()
    except qg.errors.StrayGradientError:
        found["refused"] = True
    return found


def sharded_die(folder, where, victim=1, steps=6, restart=False):
    """A rank is killed in its fourth step; weights and ledger are on disk before and after."""
    folder = Path(folder)
    model, engine = jobs.attach(sharded(), seed=None, ledger=folder / "ledger.jsonl")
    if restart:
        engine.load(folder / "state")
        jobs.train(model, engine, steps - engine.steps_taken)
        return {"steps": engine.steps_taken, "recorded": engine.ledger.steps}
    jobs.train(model, engine, 2)
    engine.save(folder / "state")
    own = rank() == victim

    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if own and where == "in the backward pass":
        engine._world.confirm = kill
    if own and where == "before the ledger":
        engine._budget.record = kill
    if own and where == "before the noise":
        engine._world.noisy = kill
    if own and where == "after the noise":
        update.NoisyUpdate.update = kill
    jobs.train(model, engine, steps - 2)
    return {"steps": engine.steps_taken, "recorded": engine.ledger.steps}
