"""Lightning's Trainer with PrivateStrategy: the same weights as a loop of one's own."""

import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.integrations.lightning_jobs import (
    BATCH,
    ENGINE,
    PACKAGES,
    STEPS,
    agree,
    build,
    data,
    fit,
    loader,
    make_trainer,
    package,
    plain,
    weights,
)

import quietgrad as qg
from quietgrad.errors import EngineStateError, IntegrationError, LossError

SHUFFLED = {"sampling": "shuffled", "adjacency": "replace-one"}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_weights_are_those_of_a_plain_loop(name):
    module, engine, trainer = fit(name, val=loader(shuffle=False))
    agree(weights(module), plain())
    assert engine.steps_taken == trainer.global_step == 2 * STEPS
    assert engine.batch_size == BATCH


@pytest.mark.parametrize(
    "options",
    [
        {"physical_batch_size": 3},
        SHUFFLED,
        {"clipping": "abadi", "radius": 0.5, "grouping": "layer-wise"},
        {"momentum": qg.InnerOuter(outer=None)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_are_those_of_the_engine(options):
    module, _, _ = fit(options=options)
    renamed = {"physical" if k == "physical_batch_size" else k: v for k, v in options.items()}
    agree(weights(module), plain(**renamed))


@pytest.mark.parametrize("size", [None, 18])
def test_people_with_several_records(size):
    people = {"units": torch.arange(40) % 13, "records_per_unit": 2, "public_size": size}
    module, engine, trainer = fit(train=loader(batch_size=3), options=people)
    agree(weights(module), plain(batch_size=3, **people))
    assert engine.steps_taken == trainer.global_step == (8 if size is None else 12)
    assert engine.ledger.unit.records == 2


def test_batches_that_are_empty_or_small():
    module, engine, _ = fit(train=loader(batch_size=1), max_steps=12)
    agree(weights(module), plain(batch_size=1, steps=12, epochs=1))
    assert engine.steps_taken == 12


def test_manual_optimization():
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        for x, y in batch:
            self.manual_backward(F.cross_entropy(self(x), y, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()

    module = build(framework, training_step=training_step)
    module.automatic_optimization = False
    module, _, trainer = fit(module=module, options={"physical_batch_size": 4})
    agree(weights(module), plain(physical=4))
    assert trainer.global_step == 2 * STEPS


def test_a_schedule_steps_with_the_engine():
    framework, _ = package()
    rates = []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def each(optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

        def on_step():
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])

        return on_step

    module, _, trainer = fit(module=build(framework, configure_optimizers=configure_optimizers))
    agree(weights(module), plain(each=each))
    assert trainer.optimizers[0].param_groups[0]["lr"] == rates[-1] == 0.125


def test_a_schedule_that_asks_for_the_number_of_steps():
    framework, _ = package()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=total)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    _, engine, trainer = fit(module=build(framework, configure_optimizers=configure_optimizers))
    assert trainer.lr_scheduler_configs[0].scheduler.total_steps == 2 * STEPS
    assert engine.steps_taken == 2 * STEPS


def test_bfloat16():
    module, _, _ = fit(precision="bf16-mixed")
    agree(weights(module), plain(context=lambda: torch.autocast("cpu", torch.bfloat16)))


def test_data_modules_and_dictionaries():
    framework, _ = package()

    class Data(framework.LightningDataModule):
        def train_dataloader(self):
            return loader(collate_fn=collate)

    def collate(samples):
        x, y = zip(*samples, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    def training_step(self, batch):  # without batch_idx
        losses = F.cross_entropy(self(batch["x"]), batch["y"], reduction="none")
        return {"loss": losses, "logits": "dropped"}

    module, _, _ = fit(module=build(framework, training_step=training_step), train=Data())
    agree(weights(module), plain())


def test_hooks_get_micro_batches_and_callbacks_no_losses():
    framework, _ = package()
    sizes, outputs = [], []

    def on_after_batch_transfer(self, batch, dataloader_idx):
        sizes.append(len(batch[0]))
        return batch

    class Look(framework.Callback):
        def on_train_batch_end(self, trainer, module, output, batch, batch_idx):
            outputs.append(output)

    module = build(framework, on_after_batch_transfer=on_after_batch_transfer)
    fit(module=module, options={"physical_batch_size": 4}, callbacks=[Look()])
    assert max(sizes) <= 4
    assert len(outputs) == 2 * STEPS
    assert all(output.keys() == {"loss"} and output["loss"].isnan() for output in outputs)


def test_early_stopping_by_a_validation_metric_and_by_epsilon():
    framework, _ = package()
    stop = framework.callbacks.EarlyStopping("val_accuracy", patience=0, mode="min", min_delta=2)
    _, engine, _ = fit(val=loader(shuffle=False), callbacks=[stop], max_epochs=5)
    assert engine.steps_taken == 2 * STEPS
    at = framework.callbacks.EarlyStopping("epsilon", stopping_threshold=0.1, mode="max")
    _, engine, _ = fit(callbacks=[at], max_epochs=5)
    assert engine.steps_taken == STEPS


def test_epsilon_is_planned_for_the_trainer_and_kept():
    options = {"noise_multiplier": None, "epsilon": 5.0}
    _, engine, _ = fit(options=options, max_epochs=3)
    assert engine.planned_steps == 3 * STEPS
    assert 4.9 < engine.epsilon() <= 5
    _, engine, _ = fit(options=options, max_epochs=-1, max_steps=5)
    assert (engine.planned_steps, engine.steps_taken) == (5, 5)
    _, engine, _ = fit(options=options, max_epochs=4, limit_train_batches=0.5)
    assert (engine.planned_steps, engine.steps_taken) == (2 * STEPS, 8)


def test_passes_go_on_where_an_epoch_is_cut_short():
    module, _, _ = fit(max_epochs=4, limit_train_batches=2, options=SHUFFLED)
    agree(weights(module), plain(**SHUFFLED))


def test_another_fit_goes_on_in_the_same_ledger():
    module, engine, trainer = fit(max_epochs=1)
    trainer.fit_loop.max_epochs = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader())
    again = trainer.strategy.engine
    assert again is not engine
    assert again.ledger is engine.ledger
    assert engine.ledger.steps == 3 * STEPS


def test_where_the_budget_ends_before_the_trainer():
    """What others recorded in the ledger since counts, too."""
    framework, strategy = package()

    class Others(framework.Callback):
        def on_train_epoch_end(self, trainer, module):
            (event,) = chosen.engine.ledger.events
            chosen.engine.ledger.record(replace(event, steps=1))

    chosen = strategy(epsilon=5.0, delta=1e-3, seed=0)
    trainer = make_trainer(framework, chosen, max_epochs=3, callbacks=[Others()])
    with pytest.warns(UserWarning, match="the budget is spent: training stops here"):
        trainer.fit(build(framework), loader())
    assert chosen.engine.steps_taken == 3 * STEPS - 2
    assert trainer.should_stop


def test_the_model_is_free_after_detach_and_guarded_until_then():
    module, engine, _ = fit(max_epochs=1)
    x, y = data().tensors
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(qg.QuietgradError):
        F.cross_entropy(module.train()(x), y).backward()
    engine.detach()
    F.cross_entropy(module(x), y).backward()
    optimizer.step()


def test_validating_and_testing_need_no_engine():
    framework, strategy = package()

    def test_step(self, batch, batch_idx):
        self.log("size", float(len(batch[0])))

    chosen = strategy(**ENGINE)
    trainer = make_trainer(framework, chosen)
    module = build(framework, test_step=test_step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = trainer.test(module, loader(shuffle=False), verbose=False)
        trainer.validate(module, loader(shuffle=False), verbose=False)
    assert found["size"] == BATCH
    with pytest.raises(EngineStateError, match=r"made when Trainer\.fit\(\) begins"):
        _ = chosen.engine


def returning(value):
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return value(F.cross_entropy(self(x), y, reduction="none"), batch_idx)

    return build(framework, training_step=training_step)


def test_losses_that_are_not_one_per_sample_are_refused():
    with pytest.raises(LossError, match="reduction='none'"):
        fit(module=returning(lambda losses, at: losses.mean()))
    with pytest.raises(IntegrationError, match="none may be skipped by what it contains"):
        fit(module=returning(lambda losses, at: None))
    with pytest.raises(IntegrationError, match="returned no losses"):
        fit(module=returning(lambda losses, at: {"losses": losses}))


def test_a_step_that_was_forgotten_is_refused():
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        for x, y in batch:
            self.manual_backward(F.cross_entropy(self(x), y, reduction="none"))

    module = build(framework, training_step=training_step)
    module.automatic_optimization = False
    with pytest.raises(EngineStateError, match=r"before step\(\) ended the last one"):
        fit(module=module)


def test_a_batch_is_iterated_once():
    framework, _ = package()

    class Look(framework.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            next(iter(batch))

    with pytest.raises(EngineStateError, match="was iterated before"):
        fit(callbacks=[Look()])


def test_options_that_belong_elsewhere_are_refused():
    _, strategy = package()
    with pytest.raises(IntegrationError, match=r"batch_size=\.\.\.\): it is that of the training"):
        strategy(delta=1e-3, noise_multiplier=1.0, batch_size=4)
    with pytest.raises(IntegrationError, match=r"epochs=\.\.\.\): it follows from Trainer"):
        strategy(delta=1e-3, noise_multiplier=1.0, epochs=4)
    with pytest.raises(TypeError, match="no argument 'epsilom'"):
        strategy(delta=1e-3, epsilom=4)
    with pytest.raises(TypeError, match="expected a list of names"):
        strategy(delta=1e-3, noise_multiplier=1.0, public_metrics="rate")
