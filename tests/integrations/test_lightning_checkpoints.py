"""Checkpoints of Lightning carry the engine: a resumed run is covered by its ledger."""

import signal
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.docs.blocks import ROOT
from tests.integrations.lightning_jobs import (
    ENGINE,
    PACKAGES,
    STEPS,
    agree,
    build,
    fit,
    loader,
    make_trainer,
    package,
    plain,
    weights,
)

from quietgrad.accounting import Ledger
from quietgrad.errors import EngineStateError, IntegrationError

EPOCHS = 3


class StoppedError(Exception):
    """What ends a run in the middle."""


def saving(framework, folder, steps):
    return framework.callbacks.ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=steps, save_top_k=-1
    )


def stopping(framework, at):
    """A callback that ends the run after so many steps."""

    class Stop(framework.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == at:
                raise StoppedError

    return Stop()


def run_until(at, folder, name="lightning", every=1, **options):
    framework, _ = package(name)
    callbacks = [saving(framework, folder, every), stopping(framework, at)]
    with pytest.raises(StoppedError):
        fit(
            name,
            callbacks=callbacks,
            enable_checkpointing=True,
            max_epochs=EPOCHS,
            **options,
        )


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("at", [2, STEPS, STEPS + 3])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(name, at, tmp_path):
    run_until(at + 1, tmp_path, name, every=at)
    module, engine, trainer = fit(name, ckpt=tmp_path / f"step={at}.ckpt", max_epochs=EPOCHS)
    assert engine.steps_taken == trainer.global_step == EPOCHS * STEPS
    agree(weights(module), plain(EPOCHS))


def test_schedulers_and_momentum_are_resumed(tmp_path):
    framework, _ = package()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def each(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5).step

    def module():
        return build(framework, configure_optimizers=configure_optimizers)

    run_until(6, tmp_path, every=5, module=module())
    found, _, _ = fit(module=module(), ckpt=tmp_path / "step=5.ckpt", max_epochs=EPOCHS)
    agree(weights(found), plain(EPOCHS, each=each))


def test_steps_that_were_lost_count(tmp_path):
    options = {"noise_multiplier": None, "epsilon": 5.0, "ledger": tmp_path / "ledger.jsonl"}
    run_until(6, tmp_path, every=4, options=options)
    assert Ledger.open(options["ledger"]).steps == 6
    framework, strategy = package()
    chosen = strategy(**(ENGINE | options))
    trainer = make_trainer(framework, chosen, max_epochs=EPOCHS)
    with pytest.warns(UserWarning, match="the budget is spent"):
        trainer.fit(build(framework), loader(), ckpt_path=tmp_path / "step=4.ckpt")
    engine = chosen.engine
    assert engine.ledger.steps == EPOCHS * STEPS  # not more than planned, two of them lost
    assert engine.steps_taken == trainer.global_step == EPOCHS * STEPS - 2
    assert engine.epsilon() <= 5


def test_a_step_that_failed_is_dropped_and_taken_again(tmp_path):
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.trainer.global_step == 5 and self.fails:
            raise StoppedError
        return F.cross_entropy(self(x), y, reduction="none")

    def module(*, fails):
        found = build(framework, training_step=training_step)
        found.fails = fails
        return found

    save = framework.callbacks.OnExceptionCheckpoint(tmp_path)
    of = {"max_epochs": EPOCHS, "enable_checkpointing": True}
    with pytest.raises(StoppedError):
        fit(module=module(fails=True), callbacks=[save], **of)
    found, engine, _ = fit(module=module(fails=False), ckpt=save.ckpt_path, **of)
    assert engine.ledger.steps == engine.steps_taken == EPOCHS * STEPS
    agree(weights(found), plain(EPOCHS))


def test_a_checkpoint_that_is_written_after_training(tmp_path):
    _, _, trainer = fit(max_epochs=2, limit_train_batches=2)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    full, bare = (torch.load(tmp_path / f"{each}.ckpt") for each in ("end", "weights"))
    assert full["quietgrad"]["steps_taken"] == 4
    assert "model" not in full["quietgrad"]  # the weights are there once
    assert "quietgrad" not in bare
    _, engine, _ = fit(max_epochs=2, limit_train_batches=2, ckpt=tmp_path / "end.ckpt")
    assert engine.steps_taken == engine.ledger.steps == 4


def test_saving_in_the_middle_of_a_step_is_refused(tmp_path):
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.trainer.save_checkpoint(tmp_path / "x.ckpt")
        return F.cross_entropy(self(x), y, reduction="none")

    with pytest.raises(EngineStateError, match="a batch is under way"):
        fit(module=build(framework, training_step=training_step))
    assert not (tmp_path / "x.ckpt").exists()


def test_a_checkpoint_of_ordinary_training_is_refused(tmp_path):
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    trainer = make_trainer(framework, "auto", max_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(build(framework, training_step=training_step), loader())
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    with pytest.raises(IntegrationError, match=r"not written by PrivateStrategy.*public data"):
        fit(ckpt=tmp_path / "x.ckpt")


def test_another_trainer_cannot_go_on(tmp_path):
    run_until(3, tmp_path)
    with pytest.raises(EngineStateError, match=r"with steps=12, and this engine has 20") as caught:
        fit(ckpt=tmp_path / "step=2.ckpt", max_epochs=5)
    assert "steps follows from Trainer(max_epochs=" in "".join(caught.value.__notes__)
    with pytest.raises(EngineStateError, match=r"with steps=12, and this engine has 6"):
        fit(ckpt=tmp_path / "step=2.ckpt", max_epochs=EPOCHS, train=loader(batch_size=20))


KILLED = """
import os, signal
from pathlib import Path
from tests.integrations.lightning_jobs import *
from tests.integrations.test_lightning_checkpoints import EPOCHS, saving
framework, _ = package()
def training_step(self, batch, batch_idx):
    x, y = batch
    if self.trainer.global_step == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return F.cross_entropy(self(x), y, reduction="none")
folder = Path({folder!r})
fit(
    module=build(framework, training_step=training_step),
    callbacks=[saving(framework, folder, 2)],
    enable_checkpointing=True,
    max_epochs=EPOCHS,
    options={{"ledger": folder / "ledger.jsonl"}},
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 7])
def test_a_killed_run_is_resumed(at, tmp_path):
    script = KILLED.format(at=at, folder=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    ledger = tmp_path / "ledger.jsonl"
    assert Ledger.open(ledger).steps == at
    saved = max(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    assert saved.stem == f"step={at - at % 2}"
    module, engine, _ = fit(ckpt=saved, max_epochs=EPOCHS, options={"ledger": ledger})
    lost = at % 2  # recorded and not saved: they count, so the run ends that many steps earlier
    assert engine.steps_taken == EPOCHS * STEPS - lost
    assert Ledger.open(ledger).steps == EPOCHS * STEPS
    agree(weights(module), plain(EPOCHS, steps=EPOCHS * STEPS - lost))
