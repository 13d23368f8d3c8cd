"""What Lightning logs and saves: epsilon and validation metrics, and nothing of training losses."""

import csv
import re
from numbers import Number
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.integrations.lightning_jobs import PACKAGES, STEPS, build, fit, loader, package

from quietgrad.errors import IntegrationError
from quietgrad.integrations.lightning_checks import LABEL


def spying(framework, **methods):
    """A module that notes every loss and every mean and sum of them."""
    seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        seen.extend([*losses.tolist(), losses.mean().item(), losses.sum().item()])
        return losses

    return build(framework, **({"training_step": training_step} | methods)), seen


def numbers_in(value):
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers_in(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, torch.Tensor):
        yield from value.detach().double().flatten().tolist()
    elif isinstance(value, Number):
        yield float(value)


def assert_none_of(found, losses):
    found = torch.tensor(list(found), dtype=torch.float64)
    losses = torch.tensor(losses, dtype=torch.float64)
    assert len(found)
    assert len(losses)
    nearest = (found[:, None] - losses[None]).abs().min(1).values
    assert nearest.min() > 1e-9


@pytest.mark.parametrize("name", PACKAGES)
def test_files_hold_epsilon_and_no_training_loss(name, tmp_path):
    framework, _ = package(name)
    module, seen = spying(framework)
    _, engine, trainer = fit(
        name,
        module,
        val=loader(shuffle=False),
        folder=tmp_path,
        logger=framework.loggers.CSVLogger(tmp_path),
        log_every_n_steps=2,
        enable_checkpointing=True,
    )
    text = Path(trainer.logger.experiment.metrics_file_path).read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert set(rows[0]) == {"epoch", "step", "epsilon", "val_accuracy"}
    epsilons = [float(row["epsilon"]) for row in rows if row["epsilon"]]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(engine.epsilon(), rel=1e-6)
    assert len(set(epsilons)) == STEPS  # of every second step
    assert_none_of((float(cell) for row in rows for cell in row.values() if cell), seen)

    (path,) = tmp_path.rglob("*.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    weights = checkpoint.pop("state_dict"), checkpoint.pop("optimizer_states")
    assert all(weights)
    assert_none_of(numbers_in(checkpoint), seen)
    assert set(trainer.callback_metrics) == {"epsilon", "val_accuracy"}
    assert_none_of(numbers_in(trainer.callback_metrics), seen)
    assert "loss" not in "".join(map(str, tmp_path.rglob("*")))


def test_tensorboard_files(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    framework, _ = package()
    module, seen = spying(framework)
    logger = framework.loggers.TensorBoardLogger(tmp_path)
    fit(module=module, val=loader(shuffle=False), logger=logger, log_every_n_steps=1)
    events = EventAccumulator(logger.log_dir).Reload()
    tags = events.Tags()["scalars"]
    assert set(tags) - {"hp_metric"} == {"epoch", "epsilon", "val_accuracy"}
    values = [event.value for tag in tags for event in events.Scalars(tag)]
    assert_none_of(values, [float(torch.tensor(loss).float()) for loss in seen])


def test_epsilon_in_the_name_of_a_checkpoint(tmp_path):
    framework, _ = package()
    save = framework.callbacks.ModelCheckpoint(
        tmp_path, filename="{step}-{epsilon:.2f}", every_n_train_steps=2, save_top_k=-1
    )
    _, engine, _ = fit(callbacks=[save], enable_checkpointing=True, log_every_n_steps=1)
    names = sorted(path.stem for path in tmp_path.iterdir())
    found = [float(re.fullmatch(r"step=\d+-epsilon=([\d.]+)", name)[1]) for name in names]
    assert len(found) == STEPS
    assert found[-1] == pytest.approx(engine.epsilon(), abs=0.006)


def logging(name, value=lambda losses: losses.mean(), hook="training_step", **options):
    """A module that logs in training."""
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        self.kept = float(value(losses))
        if hook == "training_step":
            self.log(name, value(losses), **options)
        return losses

    def later(self, *args):
        self.log(name, self.kept)

    others = {} if hook == "training_step" else {hook: later}
    return build(framework, training_step=training_step, **others)


@pytest.mark.parametrize(
    "hook", ["training_step", "on_train_batch_end", "on_train_epoch_end", "on_train_batch_start"]
)
def test_a_training_metric_is_refused_before_it_is_logged(hook, tmp_path):
    framework, _ = package()
    module = logging("train_loss", hook=hook)
    module.kept = 0.0
    logger = framework.loggers.CSVLogger(tmp_path)
    message = rf"self\.log\('train_loss'\) in {hook}: .*private.*not_private/train_loss"
    with pytest.raises(IntegrationError, match=message):
        fit(module=module, logger=logger, log_every_n_steps=1)
    logger.save()
    assert not [path for path in tmp_path.rglob("*.csv") if "train_loss" in path.read_text()]


def test_log_dict_and_callbacks_are_refused_too():
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.log_dict({"a": 1.0, "b": 2.0})
        return F.cross_entropy(self(x), y, reduction="none")

    with pytest.raises(IntegrationError, match=r"self\.log\('a'\) in training_step"):
        fit(module=build(framework, training_step=training_step))

    class Look(framework.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.log("seconds", 1.0)

    with pytest.raises(IntegrationError, match=r"self\.log\('seconds'\) in on_train_batch_end"):
        fit(callbacks=[Look()])


def test_what_is_public_or_labelled_is_logged(tmp_path):
    framework, _ = package()
    for name, options in ((f"{LABEL}train_loss", {}), ("rate", {"public_metrics": ["rate"]})):
        logger = framework.loggers.CSVLogger(tmp_path, name=name.replace("/", "-"))
        module = logging(name, on_step=True, on_epoch=True, prog_bar=True)
        _, _, trainer = fit(module=module, options=options, logger=logger, log_every_n_steps=1)
        text = Path(trainer.logger.experiment.metrics_file_path).read_text()
        assert {f"{name}_step", f"{name}_epoch"} <= set(text.splitlines()[0].split(","))
        # The mean over an epoch is not weighted with how many samples were drawn.
        rows = list(csv.DictReader(text.splitlines()))
        steps = [float(row[f"{name}_step"]) for row in rows if row[f"{name}_step"]]
        means = [float(row[f"{name}_epoch"]) for row in rows if row[f"{name}_epoch"]]
        assert means[0] == pytest.approx(sum(steps[:STEPS]) / STEPS, rel=1e-5)


def test_validation_metrics_are_not_looked_at():
    framework, _ = package()

    def validation_step(self, batch, batch_idx):
        self.log("train_loss", 1.0)

    _, _, trainer = fit(
        module=build(framework, validation_step=validation_step), val=loader(shuffle=False)
    )
    assert "train_loss" in trainer.callback_metrics
