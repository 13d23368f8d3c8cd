"""What ranks do that goes wrong on one of them; each returns what its rank was told."""

from pathlib import Path

import torch
import torch.nn.functional as F

import quietgrad as qg

from . import jobs, sharded_jobs
from .jobs import rank


def told(action, engine):
    """The error, and what was recorded."""
    try:
        action()
        found = {"error": None, "message": ""}
    except (qg.QuietgradError, OSError) as error:
        found = {"error": type(error).__name__, "message": str(error)}
    return found | {"steps": engine.ledger.steps}


def go_through(model, engine, batch):
    for x, y in batch:
        engine.backward(F.cross_entropy(model(x), y, reduction="none"))
    engine.step()


def differ_at_start(what, kind="copies"):
    """Rank 1 is not like rank 0 in what decides who computes which samples."""
    other = rank() == 1
    model = sharded_jobs.sharded() if kind == "sharded" else jobs.build()
    if what == "lengths":
        jobs.attach(model, lengths=[*range(64)][:: -1 if other else 1])
    jobs.attach(model, physical_batch_size=2 if other else 3)


def stray(what, folder):
    """Rank 1 does in its third step what the others do not."""
    other, folder = rank() == 1, Path(folder)
    folder.mkdir(exist_ok=True)
    options = {"radius": qg.AdaptiveRadius(), "clipping": "abadi"} if what == "radii" else {}
    model, engine = jobs.attach(seed=None, **options)

    def load(own, others):
        engine.load(folder / (own if other else others))
        return engine.batches()

    changes = {
        "discarded": lambda batches: next(batches) and engine.discard_batch(),
        "pass begun again": lambda _: engine.batches(),
        "saved": lambda _: engine.save(folder / "own"),
        "loaded alone": lambda _: load("early", ""),
        "learning rate": lambda _: engine._optimizer.param_groups[0].update(lr=0.25),
        "radii": lambda _: engine._radii.load([0.5]),
    }

    def train():
        batches = engine.batches()
        go_through(model, engine, next(batches))
        engine.save(folder / "early")
        go_through(model, engine, next(batches))
        engine.save(folder / "late")
        if what == "other state":
            batches = load("early", "late")
        elif what == "no file":
            batches = load("missing", "late")
        elif what == "sharded later":
            from torch.distributed.fsdp import fully_shard

            fully_shard(model)
            batches = engine.batches()
        elif other:
            batches = changes[what](batches) or batches
        go_through(model, engine, next(batches))

    return told(train, engine)


def end_by_an_error():
    """Rank 1 ends in the middle of a batch, by an error that the engine does not see."""
    model, engine = jobs.attach()

    def look(model, step):
        if rank() == 1:
            raise KeyboardInterrupt("in the loop of rank 1")

    return told(lambda: jobs.train(model, engine, 1, look), engine)


def step_of_nothing_with_a_closure():
    """Gradients that are made after the engine looked at them; whether the optimizer keeps them."""
    model, engine = jobs.attach(momentum_of=0.9)
    optimizer, (x, y) = engine._optimizer, jobs.data().tensors
    optimizer.param_groups[0]["lr"] = 0.0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    found = told(
        lambda: optimizer.step(lambda: F.cross_entropy(model.eval()(x), y).backward()), engine
    )
    return found | {"kept": len(optimizer.state)}
