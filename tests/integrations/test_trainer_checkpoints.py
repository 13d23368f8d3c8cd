"""Runs of `PrivateTrainer` go on from checkpoints; what was lost stays counted in the ledger."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import transformers as hf
from tests.integrations.trainers import bert, lora, texts, trainer, weights

from quietgrad.accounting import Ledger
from quietgrad.errors import EngineStateError, LedgerError

SAVED = {"save_strategy": "steps", "save_steps": 2}


class Stop(hf.TrainerCallback):
    """Ends training at a step, as the user would; or as a crash would."""

    def __init__(self, step, error=None):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


def crash(folder, step, **options):
    with pytest.raises(KeyboardInterrupt):
        trainer(folder, callbacks=[Stop(step, KeyboardInterrupt())], **SAVED, **options).train()


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_not_broken_off(tmp_path):
    whole = trainer(tmp_path / "whole", model=bert(dropout=0.1))
    whole.train()
    trainer(tmp_path / "cut", bert(dropout=0.1), callbacks=[Stop(4)], **SAVED).train()
    cut = trainer(tmp_path / "cut", bert(dropout=0.1), **SAVED)
    cut.train(resume_from_checkpoint=True)
    assert torch.equal(weights(cut.model), weights(whole.model))
    assert cut.state.global_step == cut.engine.steps_taken == cut.engine.ledger.steps == 6
    assert cut.engine.epsilon() == whole.engine.epsilon()
    assert [each["epoch"] for each in cut.state.log_history] == [
        each["epoch"] for each in whole.state.log_history
    ]


def test_steps_that_were_lost_are_counted(tmp_path):
    crash(tmp_path, 3)
    again = trainer(tmp_path, **SAVED)
    again.train(resume_from_checkpoint=True)
    assert again.engine.steps_taken == 6
    assert again.engine.ledger.steps == Ledger.open(tmp_path / "ledger.jsonl").steps == 7


@pytest.mark.slow
def test_a_target_is_kept_by_a_run_that_lost_steps(tmp_path):
    options = {"epsilon": 8.0, "engine_options": {"noise_multiplier": None}}
    crash(tmp_path, 5, **options)
    again = trainer(tmp_path, **SAVED, **options)
    with pytest.warns(UserWarning, match="the budget is spent"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.engine.ledger.steps == 6
    assert again.state.global_step == again.engine.steps_taken == 3
    assert again.engine.epsilon() <= 8


@pytest.mark.slow
def test_adapters_are_saved_alone_and_go_on(tmp_path):
    whole = trainer(tmp_path / "whole", lora(bert()))
    whole.train()
    trainer(tmp_path / "cut", lora(bert()), callbacks=[Stop(4)], **SAVED).train()
    cut = trainer(tmp_path / "cut", lora(bert()), **SAVED)
    cut.train(resume_from_checkpoint=True)
    assert torch.equal(weights(cut.model), weights(whole.model))
    state = torch.load(tmp_path / "cut/checkpoint-4/privacy_engine.pt", weights_only=True)
    assert state["model"] is state["optimizer"] is None


def test_the_same_trainer_may_go_on_but_not_begin_again(tmp_path):
    run = trainer(tmp_path, callbacks=[Stop(4)], **SAVED)
    run.train()
    with pytest.raises(EngineStateError, match=r"has trained 4 steps .*resume_from_checkpoint"):
        run.train()
    run.callback_handler.callbacks[-2].step = None
    run.train(resume_from_checkpoint=True)
    assert run.engine.steps_taken == run.engine.ledger.steps == 6


def test_the_best_model_is_loaded_in_the_end(tmp_path):
    metrics = iter([0.1, 0.9, 0.2])
    run = trainer(
        tmp_path,
        eval_dataset=texts(8, seed=1),
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        save_total_limit=1,
        compute_metrics=lambda prediction: {"accuracy": next(metrics)},
        callbacks=[hf.EarlyStoppingCallback(2)],
        **SAVED,
    )
    run.train()
    assert run.state.best_model_checkpoint.endswith("checkpoint-4")
    saved = hf.BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-4")
    assert torch.equal(weights(run.model), weights(saved))


@pytest.mark.slow
def test_what_cannot_be_gone_on_from_is_named(tmp_path):
    with pytest.raises(EngineStateError, match="has no checkpoint to go on from"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    run = trainer(tmp_path, **SAVED)
    run.train()
    (tmp_path / "checkpoint-6/trainer_state.json").unlink()
    (tmp_path / "checkpoint-4/privacy_engine.pt").unlink()
    with pytest.raises(EngineStateError, match=r"trainer_state.json.*Whole ones.*checkpoint-2\."):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(EngineStateError, match=r"privacy_engine.pt"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    with pytest.raises(LedgerError, match="holds 6 steps of an earlier run"):
        trainer(tmp_path).train()
    shutil.move(tmp_path / "checkpoint-2", tmp_path / "other/checkpoint-2")
    with pytest.raises(LedgerError, match="pass ledger="):
        trainer(tmp_path / "new").train(str(tmp_path / "other/checkpoint-2"))


@pytest.mark.slow
def test_a_ledger_that_is_named_counts_both_runs(tmp_path):
    trainer(tmp_path / "first", num_train_epochs=1).train()
    second = trainer(
        tmp_path / "second", num_train_epochs=1, ledger=tmp_path / "first/ledger.jsonl"
    )
    second.train()
    assert second.engine.ledger.steps == 6
    assert not (tmp_path / "second/ledger.jsonl").exists()


_KILLED = """
import os, signal, sys
from tests.integrations.trainers import hf, trainer

folder, place = sys.argv[1:]

class Kill(hf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if place == "step" and state.global_step == 4:
            os.kill(os.getpid(), signal.SIGKILL)

run = trainer(folder, callbacks=[Kill()], save_strategy="steps", save_steps=2)
save = run._save_rng_state

def save_rng_state(output_dir):
    if place == "save" and output_dir.endswith("-4"):
        os.kill(os.getpid(), signal.SIGKILL)
    save(output_dir)

run._save_rng_state = save_rng_state
run.train()
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["step", "save"])
def test_a_killed_run_is_covered_by_the_ledger(tmp_path, place):
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), place],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=300,
    )
    assert ended.returncode == -signal.SIGKILL
    assert Ledger.open(tmp_path / "ledger.jsonl").steps == 4
    run = trainer(tmp_path, **SAVED)
    if place == "save":
        with pytest.raises(EngineStateError, match=r"checkpoint-4 .*Whole ones .*checkpoint-2\."):
            run.train(resume_from_checkpoint=True)
    last = "checkpoint-4" if place == "step" else "checkpoint-2"
    run.train(resume_from_checkpoint=str(tmp_path / last))
    assert run.engine.steps_taken == 6
    assert run.engine.ledger.steps == (6 if place == "step" else 8)
    assert run.engine.epsilon() == run.engine.ledger.epsilon(1e-3)
