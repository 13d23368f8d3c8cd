"""Every argument of Lightning's Trainer, and every callback: works, is harmless or refused."""

import inspect
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
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

from quietgrad.errors import IntegrationError
from quietgrad.integrations.common import Argument, refuse_arguments
from quietgrad.integrations.lightning_checks import CALLBACKS, TRAINER_ARGUMENTS

PAGE = ROOT / "docs/integrations/lightning.md"

# How each argument that works is used, and the number of steps there are then; by default STEPS.
WORKING = {
    "accelerator": [({"accelerator": "cpu"}, STEPS)],
    "barebones": [({"barebones": True, "logger": None, "enable_checkpointing": None}, STEPS)],
    "callbacks": [({"callbacks": []}, STEPS)],
    "check_val_every_n_epoch": [({"check_val_every_n_epoch": 2, "max_epochs": 2}, 2 * STEPS)],
    "detect_anomaly": [({"detect_anomaly": True}, STEPS)],
    "deterministic": [({"deterministic": True}, STEPS)],
    "devices": [({"devices": 1}, STEPS)],
    "enable_checkpointing": [({"enable_checkpointing": True}, STEPS)],
    "enable_progress_bar": [({"enable_progress_bar": True}, STEPS)],
    "fast_dev_run": [({"fast_dev_run": 2}, 2)],
    "limit_predict_batches": [({"limit_predict_batches": 1}, STEPS)],
    "limit_test_batches": [({"limit_test_batches": 1}, STEPS)],
    "limit_train_batches": [({"limit_train_batches": 3}, 3), ({"limit_train_batches": 0}, None)],
    "limit_val_batches": [({"limit_val_batches": 1}, STEPS)],
    "log_every_n_steps": [({"log_every_n_steps": 1, "logger": True}, STEPS)],
    "logger": [({"logger": True}, STEPS)],
    "max_epochs": [({"max_epochs": 2}, 2 * STEPS)],
    "max_steps": [({"max_steps": 3}, 3)],
    "max_time": [({"max_time": "00:01:00:00"}, STEPS)],
    "precision": [({"precision": "bf16-mixed"}, STEPS)],
    "min_epochs": [({"min_epochs": 2, "max_epochs": 2}, 2 * STEPS)],
    "min_steps": [({"min_steps": STEPS}, STEPS)],
    "num_sanity_val_steps": [({"num_sanity_val_steps": 1}, STEPS)],
    "plugins": [({"plugins": "precision"}, STEPS)],
    "val_check_interval": [
        ({"val_check_interval": 0.5}, STEPS),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None}, STEPS),
    ],
}
REFUSED = {
    "accumulate_grad_batches": [{"accumulate_grad_batches": 2}],
    "gradient_clip_algorithm": [{"gradient_clip_algorithm": "value"}],
    "gradient_clip_val": [{"gradient_clip_val": 1.0}],
    "num_nodes": [],  # waits for other machines
    "overfit_batches": [{"overfit_batches": 1}, {"overfit_batches": 0.5}],
    "precision": [{"precision": "16-true"}],
    "reload_dataloaders_every_n_epochs": [{"reload_dataloaders_every_n_epochs": 1}],
    "sync_batchnorm": [{"sync_batchnorm": True}],
    "accelerator": [],  # needs a TPU
}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_argument_is_classified(name):
    framework, _ = package(name)
    assert set(inspect.signature(framework.Trainer).parameters) == set(TRAINER_ARGUMENTS)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_callback_is_classified(name):
    framework, _ = package(name)
    assert set(framework.callbacks.__all__) == set(CALLBACKS)


def test_every_verdict_has_its_test():
    verdicts = {"works": set(WORKING) | {"strategy"}, "refused": set(REFUSED)}
    for verdict, tested in verdicts.items():
        kinds = {verdict, "in part"}
        stated = {name for name, each in TRAINER_ARGUMENTS.items() if each.verdict in kinds}
        assert stated <= tested, stated - tested


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [(name, *case) for name, cases in WORKING.items() for case in cases],
    ids=[f"{name}-{i}" for name, cases in WORKING.items() for i in range(len(cases))],
)
def test_an_argument_that_works(name, options, steps, tmp_path, capsys):
    framework, strategy = package()
    if options.get("plugins"):
        options = {"plugins": [framework.plugins.precision.MixedPrecision("bf16-mixed", "cpu")]}
    chosen = strategy(**ENGINE)
    trainer = make_trainer(framework, chosen, tmp_path, **({"max_epochs": 1} | options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(build(framework), loader(), loader(shuffle=False))
    torch.use_deterministic_algorithms(False)
    if steps is None:
        assert trainer.global_step == 0
    else:
        assert chosen.engine.steps_taken == trainer.global_step == steps


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_precisions(precision):
    module, engine, _ = fit(precision=precision, max_epochs=1)
    assert engine.steps_taken == STEPS
    assert weights(module).isfinite().all()


def test_what_is_harmless_changes_nothing(tmp_path):
    harmless = {
        "benchmark": True,
        "default_root_dir": tmp_path,
        "enable_autolog_hparams": False,
        "enable_model_summary": True,
        "inference_mode": False,
        "model_registry": "mine",
        "profiler": "simple",
        "use_distributed_sampler": False,
    }
    stated = {name for name, each in TRAINER_ARGUMENTS.items() if each.verdict == "harmless"}
    assert set(harmless) == stated
    harmless["folder"] = harmless.pop("default_root_dir")
    module, _, _ = fit(**harmless)
    agree(weights(module), plain())


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(
    ("argument", "options"), [(name, each) for name, uses in REFUSED.items() for each in uses]
)
def test_an_argument_that_is_refused(name, argument, options):
    message = rf"Trainer\({argument}=.*\): {re.escape(TRAINER_ARGUMENTS[argument].note[:40])}"
    with pytest.raises(IntegrationError, match=message):
        fit(name, **options)


def test_a_grad_scaler_is_refused():
    framework, _ = package()
    plugin = framework.plugins.precision.MixedPrecision("16-mixed", "cpu")
    with pytest.raises(IntegrationError, match=r"precision='16-mixed'.*a GradScaler follows"):
        fit(plugins=[plugin])


def test_other_machines_and_tpus_are_refused():
    tpu = type("XLAAccelerator", (), {})()
    trainer = SimpleNamespace(num_nodes=2, accelerator=tpu)
    found = [TRAINER_ARGUMENTS[name].used(trainer) for name in ("num_nodes", "accelerator")]
    assert found == ["num_nodes=2", "accelerator=XLAAccelerator()"]


CALLBACK_OPTIONS = {
    "BackboneFinetuning": {},
    "BaseFinetuning": {},
    "BatchSizeFinder": {},
    "GradientAccumulationScheduler": {"scheduling": {1: 2}},
    "LearningRateFinder": {},
    "ModelPruning": {"pruning_fn": "l1_unstructured"},
    "SpikeDetection": {},
    "StochasticWeightAveraging": {"swa_lrs": 0.1},
    "ThroughputMonitor": {"batch_size_fn": len},
    "DeviceStatsMonitor": {},
    "EMAWeightAveraging": {},
    "LambdaCallback": {},
    "LearningRateMonitor": {},
    "ModelCheckpoint": {"every_n_train_steps": 2},
    "ModelSummary": {},
    "OnExceptionCheckpoint": {"dirpath": "."},
    "RichModelSummary": {},
    "RichProgressBar": {},
    "TQDMProgressBar": {},
    "Timer": {},
    "WeightAveraging": {},
    "EarlyStopping": {"monitor": "val_accuracy"},
}
NOT_MADE = {"BasePredictionWriter", "Callback", "Checkpoint", "ProgressBar"}  # to be derived from


def test_every_callback_is_tried():
    assert set(CALLBACK_OPTIONS) | NOT_MADE == set(CALLBACKS)


@pytest.mark.parametrize("kind", CALLBACK_OPTIONS)
def test_callbacks(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    framework, _ = package()
    if kind == "SpikeDetection":
        pytest.importorskip("torchmetrics")
    callback = getattr(framework.callbacks, kind)(**CALLBACK_OPTIONS[kind])
    of = {
        "callbacks": [callback],
        "folder": tmp_path,
        "logger": True,
        "log_every_n_steps": 1,
        "enable_progress_bar": "Progress" in kind,
        "enable_checkpointing": "Checkpoint" in kind,
        "enable_model_summary": "Summary" in kind,
    }
    if CALLBACKS[kind].verdict == "refused":
        with pytest.raises(IntegrationError, match=rf"^the callback {kind}: "):
            fit(val=loader(shuffle=False), **of)
        return
    module, engine, _ = fit(val=loader(shuffle=False), **of)
    assert engine.steps_taken == 2 * STEPS
    if "WeightAveraging" not in kind:
        agree(weights(module), plain())


def test_a_callback_of_ones_own_that_is_derived_from_a_refused_one():
    framework, _ = package()

    class Mine(framework.callbacks.GradientAccumulationScheduler):
        pass

    with pytest.raises(IntegrationError, match="the callback Mine: the samples of a step"):
        fit(callbacks=[Mine({1: 2})])


class Future:
    """A Trainer with two arguments that nobody has classified."""

    def __init__(self, known=1, shown=None, hidden=None):
        self.known, self.shown = known, shown


KNOWN = {"known": Argument("works"), "hidden": Argument("works")}


def test_a_new_argument_is_refused_unless_it_is_left_out():
    refuse_arguments(Future(), Future, KNOWN)
    with pytest.raises(IntegrationError, match=r"Future\(shown=\.\.\.\): .* does not know"):
        refuse_arguments(Future(shown=2), Future, KNOWN)
    with pytest.raises(IntegrationError, match=r"Future\(hidden=\.\.\.\)"):
        refuse_arguments(Future(), Future, {"known": KNOWN["known"]})


@pytest.mark.parametrize("table", [TRAINER_ARGUMENTS, CALLBACKS], ids=["arguments", "callbacks"])
def test_the_page_has_every_verdict(table):
    text = PAGE.read_text(encoding="utf-8")
    for name, each in table.items():
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", text, re.MULTILINE)
        verdict, note = row.split(" | ") if " | " in row else (row.rstrip(" |"), "")
        assert verdict == each.verdict, name
        assert note.strip() == each.note, name
