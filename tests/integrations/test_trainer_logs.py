"""Nothing that was read from training samples is logged or saved, unless asked for by name."""

import json

import pytest
import torch
import transformers as hf
from tests.integrations.trainers import bert, texts, trainer

from quietgrad.errors import IntegrationError

_OF_A_CLOCK = ("runtime", "per_second")


def public(logs):
    return [
        {name: value for name, value in log.items() if not name.endswith(_OF_A_CLOCK)}
        for log in logs
    ]


def train(folder, data, **options):
    options = {"logging_steps": 1, "logging_first_step": True, "save_strategy": "epoch"} | options
    run = trainer(folder, model=bert(), data=data, **options)
    return run, run.train()


def other_texts():
    """Longer, and with other labels."""
    return [{**row, "labels": (row["labels"] + 1) % 3} for row in texts(24, seed=5, longest=20)]


def test_logs_and_saved_states_are_the_same_for_other_data(tmp_path):
    """With the same draws: what differed would have been read from samples."""
    one, result = train(tmp_path / "one", texts(24))
    two, other_result = train(tmp_path / "two", other_texts())
    assert not torch.equal(one.model.classifier.weight, two.model.classifier.weight)
    assert public(one.state.log_history) == public(two.state.log_history)
    assert public([result.metrics]) == public([other_result.metrics])
    names = {name for log in one.state.log_history for name in log}
    assert {"epsilon", "learning_rate"} < names
    assert not {name for name in names if "loss" in name or "grad" in name or "flos" in name}
    states = [
        json.loads((tmp_path / each / "checkpoint-6/trainer_state.json").read_text())
        for each in ("one", "two")
    ]
    for state in states:
        state["log_history"] = public(state["log_history"])
    assert states[0] == states[1]
    assert result.training_loss != result.training_loss  # not a number


def test_epsilon_is_logged_as_it_grows(tmp_path):
    run, result = train(tmp_path, texts(24))
    spent = [log["epsilon"] for log in run.state.log_history]
    assert spent == sorted(spent)
    assert spent[-1] == result.metrics["epsilon"] == run.engine.epsilon()


def test_tensorboard_gets_epsilon_and_no_loss(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    train(tmp_path, texts(24), report_to="tensorboard", num_train_epochs=1, save_strategy="no")
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert "train/epsilon" in tags
    assert not {tag for tag in tags if "loss" in tag or "grad" in tag or "flos" in tag}


def test_losses_that_are_asked_for_are_labelled(tmp_path):
    with pytest.warns(UserWarning, match="No noise covers them"):
        run, result = train(tmp_path, texts(24), log_training_loss=True, num_train_epochs=1)
    losses = [log["loss_not_private"] for log in run.state.log_history if "learning_rate" in log]
    assert len(losses) == 3
    assert all(0.5 < loss < 3 for loss in losses)
    assert (
        result.metrics["train_loss_not_private"]
        == result.training_loss
        == pytest.approx(sum(losses) / 3)
    )
    names = {name for log in run.state.log_history for name in log if "loss" in name}
    assert names == {"loss_not_private", "train_loss_not_private"}


def test_the_training_data_is_not_evaluated(tmp_path):
    data = texts(24)
    run = trainer(tmp_path, data=data, eval_dataset={"held out": texts(4, 1)})
    for use in (
        lambda: run.evaluate(data),
        lambda: run.predict(data),
        lambda: trainer(tmp_path, data=data, eval_dataset={"a": texts(4), "b": data}),
    ):
        with pytest.raises(IntegrationError, match="samples of the training data"):
            use()
    assert "eval_held out_loss" in run.evaluate()


def test_evaluation_logs_as_ever_and_ends_training_early(tmp_path):
    run, _ = train(
        tmp_path, texts(24), eval_strategy="epoch", eval_dataset=texts(8, 1), num_train_epochs=4,
        metric_for_best_model="loss", load_best_model_at_end=True, learning_rate=0.0,
        callbacks=[hf.EarlyStoppingCallback(1)],
    )  # fmt: skip
    assert run.state.global_step == 6
    assert sum("eval_loss" in log for log in run.state.log_history) == 2
    assert run.predict(texts(4, 2)).predictions.shape == (4, 3)
