"""What a Lightning script must not do, and what it is told instead."""

import pytest
import torch
import torch.nn.functional as F
from tests.integrations.lightning_jobs import PACKAGES, build, data, fit, loader, package
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from quietgrad.capture.model_state import walk_attributes
from quietgrad.errors import IntegrationError
from quietgrad.integrations.lightning_checks import HOOKS


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_that_would_see_gradients_or_no_samples(name, hook):
    framework, _ = package(name)
    module = build(framework, **{hook: lambda self, *args, **kwargs: None})
    with pytest.raises(IntegrationError, match=rf"^Net\.{hook}: "):
        fit(name, module)


def test_hooks_of_callbacks_and_data_modules():
    framework, _ = package()

    class Norms(framework.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            pass

    class Data(framework.LightningDataModule):
        def train_dataloader(self):
            return loader()

        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch

    with pytest.raises(IntegrationError, match=r"^Norms\.on_before_optimizer_step: .*no gradient"):
        fit(callbacks=[Norms()])
    own = framework.callbacks.LambdaCallback(on_after_backward=lambda *args: None)
    with pytest.raises(IntegrationError, match=r"^LambdaCallback\.on_after_backward"):
        fit(callbacks=[own])
    with pytest.raises(IntegrationError, match=r"^Data\.on_before_batch_transfer: .*collate_fn"):
        fit(train=Data())


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])

    def __len__(self):
        return 4


WEIGHTS = WeightedRandomSampler([1.0] * 40, 40)
LOADERS = {
    "a list": ([1, 2], IntegrationError, "the training loader is a list"),
    "several": ([loader(), loader()], IntegrationError, "several training loaders"),
    "a dictionary": ({"a": loader()}, IntegrationError, "is in a dict: pass it .* by itself"),
    "a stream": (DataLoader(Stream(), 2), TypeError, r"one after the other\. Pass list\("),
    "weights": (
        loader(shuffle=None, sampler=WEIGHTS),
        IntegrationError,
        "draws with a WeightedRandomSampler: .*PrivateStrategy",
    ),
    "with replacement": (
        loader(shuffle=None, sampler=RandomSampler(data(), replacement=True)),
        IntegrationError,
        "draws with a RandomSampler",
    ),
    "no batches": (loader(batch_size=None, shuffle=None), IntegrationError, "batch_size=None"),
    "own batches": (
        DataLoader(data(), batch_sampler=[[0, 1], [2]]),
        IntegrationError,
        "has a batch_sampler= of its own",
    ),
    "own workers": (
        loader(worker_init_fn=print),
        IntegrationError,
        "worker_init_fn=: it would not be called",
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_that_are_not_the_engines(kind):
    train, error, message = LOADERS[kind]
    with pytest.raises(error, match=message):
        fit(train=train)


def test_several_optimizers():
    framework, _ = package()

    def configure_optimizers(self):
        of = self.layers[0].parameters(), self.layers[2].parameters()
        return [torch.optim.SGD(each, lr=0.1) for each in of]

    module = build(framework, configure_optimizers=configure_optimizers)
    module.automatic_optimization = False
    with pytest.raises(IntegrationError, match="2 optimizers: a step is released by one"):
        fit(module=module)


def test_truncated_back_propagation_and_iterators():
    framework, _ = package()
    module = build(framework)
    module.truncated_bptt_steps = 5
    with pytest.raises(IntegrationError, match=r"Net\.truncated_bptt_steps: parts of a sequence"):
        fit(module=module)
    module = build(framework, training_step=lambda self, dataloader_iter: None)
    with pytest.raises(IntegrationError, match="gets one micro-batch at a time"):
        fit(module=module)


def test_a_compiled_module():
    framework, _ = package()
    with pytest.raises(RuntimeError, match="compiled model is incompatible with the current"):
        fit(module=torch.compile(build(framework)))


def test_plans_that_have_no_end():
    with pytest.raises(IntegrationError, match=r"Trainer\(max_epochs=-1\): epsilon= is kept by"):
        fit(max_epochs=-1, options={"noise_multiplier": None, "epsilon": 3.0})


def manual(step):
    framework, _ = package()

    def training_step(self, batch, batch_idx):
        for x, y in batch:
            step(self, F.cross_entropy(self(x), y, reduction="none"))

    module = build(framework, training_step=training_step)
    module.automatic_optimization = False
    return module


def test_manual_calls_that_would_go_around_the_engine():
    def backward_alone(self, losses):
        losses.mean().backward()

    with pytest.raises(RuntimeError, match=r"engine\.backward"):
        fit(module=manual(backward_alone))

    def own_step(self, losses):
        self.manual_backward(losses)
        self.optimizers(use_pl_optimizer=False).step()

    with pytest.raises(RuntimeError, match=r"optimizer\.step\(\) was called directly"):
        fit(module=manual(own_step))

    def with_arguments(self, losses):
        self.manual_backward(losses, retain_graph=True)

    with pytest.raises(IntegrationError, match="and nothing else"):
        fit(module=manual(with_arguments))


def test_the_trainer_and_its_data_are_not_searched_for_what_a_model_holds():
    framework, _ = package()
    found = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        found.extend(held.path for held in walk_attributes(self))
        return F.cross_entropy(self(x), y, reduction="none")

    fit(module=build(framework, training_step=training_step), max_epochs=1)
    assert "_trainer" in found
    assert not [path for path in found if path.startswith("_trainer.")]


def test_a_process_group_that_the_trainer_does_not_know(monkeypatch):
    """Each rank would write files, and take itself for the only one."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *group: 2)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    with pytest.raises(IntegrationError, match="of 2 ranks, and the Trainer has 1: give it dev"):
        fit()
