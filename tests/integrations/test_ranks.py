"""Frameworks in two processes: the weights of one process, or a refusal by name."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from tests.docs.blocks import ROOT
from tests.integrations.lightning_jobs import STEPS, agree, fit, package, plain, weights

pytestmark = pytest.mark.slow

# A process that hangs says where, and ends.
HEAD = """
import faulthandler, os, sys
faulthandler.dump_traceback_later(200, exit=True)
"""

LIGHTNING = """
import json, sys
from tests.integrations.lightning_jobs import *
framework, _ = package()
if __name__ == "__main__":
    torch.manual_seed(int(os.environ.get("LOCAL_RANK", 0)))  # rank 0's weights are taken
    module = build(framework)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(int(os.environ.get("LOCAL_RANK", 0)))
    save = framework.callbacks.ModelCheckpoint(
        sys.argv[1], filename="{step}", every_n_train_steps=5, save_top_k=-1
    )
    module, engine, trainer = fit(
        module=module,
        devices=2,
        options={"physical_batch_size": 3, "ledger": sys.argv[1] + "/ledger.jsonl"},
        callbacks=[save],
        enable_checkpointing=True,
        folder=sys.argv[1],
        logger=True,
        log_every_n_steps=1,
        val=loader(shuffle=False),
    )
    found = [engine.ranks, trainer.world_size, engine.steps_taken, weights(module).tolist()]
    open(f"{sys.argv[1]}/found-{trainer.global_rank}", "w").write(json.dumps(found))
"""

WITHOUT_STRATEGY = """
import json, sys
from tests.integrations.lightning_jobs import *
framework, _ = package()

def configure_optimizers(self):
    optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
    self.engine = qg.PrivacyEngine(self, optimizer, data(), batch_size=10, **ENGINE)
    return optimizer

def train_dataloader(self):
    return list(range(3))

def training_step(self, batch, batch_idx):
    for x, y in next(self.engine.batches()):
        self.engine.backward(F.cross_entropy(self(x), y, reduction="none"))
    self.engine.step()

if __name__ == "__main__":
    module = build(framework, **{f.__name__: f for f in (configure_optimizers, training_step)})
    module.automatic_optimization = False
    trainer = make_trainer(framework, "ddp", devices=2)
    trainer.fit(module, list(range(3)))
"""

ACCELERATE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from accelerate import Accelerator
from tests.integrations.test_accelerate import *
folder, kind, order = sys.argv[1:]
# A CPU is chosen for several processes where there is nothing else.
accelerator = PrivateAccelerator() if kind == "private" else Accelerator(cpu=True)
model, optimizer, scheduler, engine = prepared(accelerator, order)
train(engine, model, scheduler, STEPS)
accelerator.save_state(folder + "/state")
found = [engine.ranks, train(engine, model, scheduler).tolist(), optimizer.param_groups[0]["lr"]]
open(f"{folder}/found-{accelerator.process_index}", "w").write(json.dumps(found))
"""


def run(script, folder, *arguments, by_torchrun=True):
    """Two processes; what each wrote, and all that was printed."""
    path = folder / "script.py"
    path.write_text(f"{HEAD}sys.path.insert(0, {str(ROOT)!r})\n{script}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    command = [sys.executable, *(launcher if by_torchrun else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/src"}
    ended = subprocess.run(
        [*command, str(path), str(folder), *arguments],
        cwd=folder,
        env=environment | ({} if by_torchrun else {"MASTER_PORT": port}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = [json.loads(each.read_text()) for each in sorted(folder.glob("found-*"))]
    return found, ended.stdout + ended.stderr


@pytest.mark.parametrize("by_torchrun", [True, False], ids=["torchrun", "devices=2"])
def test_lightning(by_torchrun, tmp_path):
    package()
    found, output = run(LIGHTNING, tmp_path, by_torchrun=by_torchrun)
    assert len(found) == 2, output
    for ranks, world_size, steps, values in found:
        assert (ranks, world_size, steps) == (2, 2, 2 * STEPS)
        agree(torch.tensor(values, dtype=torch.float64), plain(physical=3))
    assert len(list(tmp_path.rglob("metrics.csv"))) == 1  # of rank 0
    # One process goes on where two were; with a ledger of its own, because the steps that the two
    # took afterwards would count.
    options = {"physical_batch_size": 3, "ledger": tmp_path / "other.jsonl"}
    module, engine, _ = fit(ckpt=tmp_path / "step=5.ckpt", options=options)
    assert engine.steps_taken == 2 * STEPS
    agree(weights(module), plain(physical=3))


def test_lightning_with_another_strategy_and_an_engine_of_ones_own(tmp_path):
    package()
    _, output = run(WITHOUT_STRATEGY, tmp_path)
    assert "DistributedTrainingError: the model is called by a DistributedDataParallel" in output
    assert "with Lightning PrivateStrategy" in output


@pytest.mark.parametrize("order", ["engine first", "engine last"])
def test_accelerate(order, tmp_path):
    from tests.integrations.test_accelerate import ordinary, prepared, reset, train

    from quietgrad.integrations.accelerate import PrivateAccelerator

    found, output = run(ACCELERATE, tmp_path, "private", order)
    assert len(found) == 2, output
    for ranks, values, rate in found:
        assert (ranks, rate) == (2, 0.125)  # the schedule takes one step for each of the engine's
        agree(torch.tensor(values, dtype=torch.float64), ordinary())
    reset()
    accelerator = PrivateAccelerator(cpu=True)
    model, _, scheduler, engine = prepared(accelerator, order)
    accelerator.load_state(tmp_path / "state")
    agree(train(engine, model, scheduler), ordinary())
    reset()


@pytest.mark.parametrize("order", ["engine first", "engine last"])
def test_an_ordinary_accelerator_is_refused(order, tmp_path):
    _, output = run(ACCELERATE, tmp_path, "plain", order)
    assert "DistributedTrainingError: the model is" in output
    assert "a DistributedDataParallel" in output
    assert "PrivateAccelerator" in output
