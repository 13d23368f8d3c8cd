"""Small modules, data and runs for the tests of Lightning, with either of its packages."""

import importlib
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg

PACKAGES = {
    "lightning": "lightning.pytorch",
    "pytorch_lightning": "pytorch_lightning",
}
SAMPLES, FEATURES, CLASSES, BATCH, STEPS = 40, 4, 3, 10, 4
ENGINE = {"noise_multiplier": 1.0, "delta": 1e-3, "seed": 0}


def package(name="lightning"):
    """Lightning, and the strategy for it."""
    framework = pytest.importorskip(PACKAGES[name])
    return framework, importlib.import_module(f"quietgrad.integrations.{name}").PrivateStrategy


def data(samples=SAMPLES):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(x, torch.arange(samples) % CLASSES)


def loader(dataset=None, **options):
    return DataLoader(dataset or data(), **({"batch_size": BATCH, "shuffle": True} | options))


def layers():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def build(framework, **methods):
    """A module with these methods besides its own."""

    def __init__(self):
        framework.LightningModule.__init__(self)
        self.layers = layers()

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="none")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    own = [__init__, forward, training_step, validation_step, configure_optimizers]
    members = {function.__name__: function for function in own} | methods
    return type("Net", (framework.LightningModule,), members)()


def make_trainer(framework, strategy, folder=None, **options):
    """A quiet Trainer that writes nothing unless it is given a folder."""
    given = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "logger": False,
        "enable_checkpointing": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return framework.Trainer(strategy=strategy, **(given | options))


def fit(name="lightning", module=None, train=None, val=None, options=None, ckpt=None, **trainer):
    """Fit a module; the module, the engine and the Trainer."""
    framework, strategy = package(name)
    module = build(framework) if module is None else module
    chosen = strategy(**(ENGINE | (options or {})))
    made = make_trainer(framework, chosen, **trainer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.fit(module, train or loader(), val, ckpt_path=ckpt)
    return module, chosen.engine, made


def plain(epochs=2, steps=None, dataset=None, physical=None, context=None, each=None, **options):
    """The same training in a loop of one's own."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    given = ENGINE | {"batch_size": BATCH, "physical_batch_size": physical} | options
    engine = qg.PrivacyEngine(model, optimizer, dataset or data(), epochs=epochs, **given)
    on_step = each(optimizer) if each else None
    while engine.steps_taken < (epochs * engine.steps_per_epoch if steps is None else steps):
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(_losses(model, x, y, context, engine, options))
            engine.step()
            if on_step:
                on_step()
            if engine.steps_taken == steps:
                break
    engine.detach()
    return weights(model)


def _losses(model, x, y, context, engine, options):
    def losses():
        if context is None:
            return F.cross_entropy(model(x), y, reduction="none")
        with context():
            return F.cross_entropy(model(x), y, reduction="none")

    return losses if "momentum" in options else losses()


def weights(module):
    return torch.cat([p.detach().flatten().double() for p in module.parameters()])


def agree(one, other, tolerance=1e-6):
    assert one.shape == other.shape
    assert (one - other).abs().max() <= tolerance
