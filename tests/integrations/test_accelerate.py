"""accelerate with an engine: the same weights as without it, and what is refused by name."""

import inspect
import re

import pytest
import torch
import torch.nn.functional as F
from tests.docs.blocks import ROOT
from tests.integrations.lightning_jobs import BATCH, ENGINE, STEPS, agree, data, layers, weights

import quietgrad as qg
from quietgrad.errors import (
    BudgetExhaustedError,
    EngineStateError,
    IntegrationError,
    StrayGradientError,
)

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402

from quietgrad.integrations.accelerate import (  # noqa: E402
    ACCELERATOR_ARGUMENTS,
    REFUSED_METHODS,
    PrivateAccelerator,
)

PAGE = ROOT / "docs/integrations/accelerate.md"


@pytest.fixture(autouse=True)
def own_state():
    """What an Accelerator sets for the whole process."""
    reset()
    yield
    reset()


def reset():
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def attach(model, optimizer, **options):
    given = ENGINE | {"batch_size": BATCH, "epochs": 3, "physical_batch_size": 4}
    return qg.PrivacyEngine(model, optimizer, data(), **(given | options))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def train(engine, model, scheduler, steps=2 * STEPS):
    while engine.steps_taken < steps:
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(F.cross_entropy(model(x), y, reduction="none"))
            engine.step()
            scheduler.step()
            if engine.steps_taken == steps:
                break
    return weights(model)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def ordinary(steps=2 * STEPS, autocast=False):
    model = layers()
    optimizer = sgd(model)
    engine = attach(model, optimizer)

    def call(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(x).float()

    call.parameters = model.parameters
    return train(engine, call, halving(optimizer), steps)


def prepared(accelerator, order, **options):
    model = layers()
    optimizer = sgd(model)
    scheduler = halving(optimizer)
    if order == "engine first":
        engine = attach(model, optimizer, **options)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    else:
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        engine = attach(model, optimizer, **options)
    accelerator.register_for_checkpointing(engine)
    return model, optimizer, scheduler, engine


ORDERS = ["engine first", "engine last"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("kind", [accelerate.Accelerator, PrivateAccelerator])
def test_the_weights_are_those_without_it(kind, precision, order):
    accelerator = kind(cpu=True, mixed_precision=precision)
    model, optimizer, scheduler, engine = prepared(accelerator, order)
    agree(train(engine, model, scheduler), ordinary(autocast=precision == "bf16"))
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert engine.settings()["optimizer"] == "SGD"


@pytest.mark.parametrize("order", ORDERS)
def test_a_saved_state_is_resumed(order, tmp_path):
    accelerator = PrivateAccelerator(cpu=True)
    model, _, scheduler, engine = prepared(accelerator, order)
    train(engine, model, scheduler, 5)
    accelerator.save_state(tmp_path / "state")
    train(engine, model, scheduler, 7)

    reset()
    accelerator = PrivateAccelerator(cpu=True)
    model, _, scheduler, engine = prepared(accelerator, order)
    accelerator.load_state(tmp_path / "state")
    assert engine.steps_taken == engine.ledger.steps == 5
    agree(train(engine, model, scheduler, 3 * STEPS), ordinary(3 * STEPS))


def test_steps_that_were_lost_count(tmp_path):
    options = {"noise_multiplier": None, "epsilon": 5.0, "ledger": tmp_path / "ledger.jsonl"}
    accelerator = PrivateAccelerator(cpu=True)
    model, _, scheduler, engine = prepared(accelerator, "engine last", **options)
    train(engine, model, scheduler, 5)
    accelerator.save_state(tmp_path / "state")
    train(engine, model, scheduler, 7)

    reset()
    accelerator = PrivateAccelerator(cpu=True)
    model, _, scheduler, engine = prepared(accelerator, "engine last", **options)
    accelerator.load_state(tmp_path / "state")
    assert (engine.steps_taken, engine.ledger.steps) == (5, 7)
    train(engine, model, scheduler, 3 * STEPS - 2)
    with pytest.raises(BudgetExhaustedError, match="2 were recorded and then lost"):
        engine.batches()
    assert engine.epsilon() <= 5


def test_nothing_of_training_losses_is_saved(tmp_path):
    accelerator = PrivateAccelerator(cpu=True)
    model, _, scheduler, engine = prepared(accelerator, "engine last")
    train(engine, model, scheduler, 3)
    accelerator.save_state(tmp_path / "state")
    names = {path.name for path in (tmp_path / "state").iterdir()}
    own = {"custom_checkpoint_0.pkl", "scheduler.bin", "optimizer.bin", "random_states_0.pkl"}
    assert names == own | {"model.safetensors"}
    state = torch.load(tmp_path / "state/custom_checkpoint_0.pkl", weights_only=True)
    assert state.keys() == engine.state_dict().keys()


def test_a_state_without_an_engine_is_refused(tmp_path):
    accelerator = PrivateAccelerator(cpu=True)
    for call in (accelerator.save_state, accelerator.load_state):
        with pytest.raises(IntegrationError, match=r"register_for_checkpointing\(engine\) first"):
            call(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_state_in_the_middle_of_a_step_is_refused(tmp_path):
    accelerator = PrivateAccelerator(cpu=True)
    _, _, _, engine = prepared(accelerator, "engine last")
    next(iter(engine.batches()))
    with pytest.raises(EngineStateError, match="a batch is under way"):
        accelerator.save_state(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_every_argument_is_classified():
    assert set(inspect.signature(accelerate.Accelerator).parameters) == set(ACCELERATOR_ARGUMENTS)


def dummy(name):
    """Plugins that cannot be made here."""
    return type(name, (), {"to_kwargs": dict})()


REFUSED = [
    {"mixed_precision": "fp16"},
    {"mixed_precision": "fp8"},
    {"gradient_accumulation_steps": 2},
    {"gradient_accumulation_plugin": accelerate.utils.GradientAccumulationPlugin(num_steps=2)},
    {"deepspeed_plugin": dummy("DeepSpeedPlugin")},
    {"deepspeed_plugins": {"a": dummy("DeepSpeedPlugin")}},
    {"fsdp_plugin": dummy("FullyShardedDataParallelPlugin")},
    {"megatron_lm_plugin": dummy("MegatronLMPlugin")},
    {"torch_tp_plugin": dummy("TorchTensorParallelPlugin")},
    {"parallelism_config": dummy("ParallelismConfig")},
    {"kwargs_handlers": [accelerate.utils.GradScalerKwargs()]},
    {"dynamo_backend": "inductor"},
    {"dynamo_plugin": accelerate.utils.TorchDynamoPlugin(backend="inductor")},
]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: next(iter(options)))
def test_an_argument_that_is_refused(options):
    (name,) = options
    note = re.escape(ACCELERATOR_ARGUMENTS[name].note[:40])
    with pytest.raises(IntegrationError, match=rf"Accelerator\({name}.*\): {note}"):
        PrivateAccelerator(cpu=True, **options)
    assert not AcceleratorState._shared_state  # nothing was set for others
    tested = {name for each in REFUSED for name in each}
    kinds = {"refused", "in part"}
    assert tested == {n for n, each in ACCELERATOR_ARGUMENTS.items() if each.verdict in kinds}


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("ACCELERATE_MIXED_PRECISION", "fp16", "mixed_precision='fp16'"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "gradient_accumulation_steps=4"),
        ("ACCELERATE_DYNAMO_BACKEND", "EAGER", "dynamo_plugin=... of EAGER"),
    ],
)
def test_settings_of_the_environment_are_refused_too(variable, value, shown, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(IntegrationError, match=re.escape(shown)):
        PrivateAccelerator(cpu=True)


def test_processes_that_it_does_not_know_of_are_refused(monkeypatch):
    """Each would take itself for the first one, and write its files."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *group: 2)
    with pytest.raises(IntegrationError, match=r"of 2 ranks, and the Accelerator 1: .*cpu=True"):
        PrivateAccelerator()


def test_arguments_that_work(tmp_path):
    PrivateAccelerator(
        device_placement=True,
        mixed_precision="bf16",
        gradient_accumulation_steps=1,
        cpu=True,
        dataloader_config=accelerate.utils.DataLoaderConfiguration(),
        rng_types=["torch"],
        project_dir=tmp_path,
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[accelerate.utils.AutocastKwargs()],
    )


@pytest.mark.parametrize("name", REFUSED_METHODS)
def test_a_method_that_is_refused(name):
    accelerator = PrivateAccelerator(cpu=True)
    assert callable(getattr(accelerate.Accelerator, name))
    with pytest.raises(IntegrationError, match=rf"^accelerator\.{name}\(\): "):
        getattr(accelerator, name)(torch.zeros(()))


@pytest.mark.parametrize("kind", [accelerate.Accelerator, PrivateAccelerator])
def test_steps_and_gradients_beside_the_engine(kind):
    accelerator = kind(cpu=True)
    model, optimizer, _, engine = prepared(accelerator, "engine last", batch_size=40)
    with pytest.raises(StrayGradientError, match=r"Call engine\.step\(\) instead"):
        optimizer.step()
    x, y = next(next(engine.batches()))
    with pytest.raises((StrayGradientError, IntegrationError), match=r"engine\.backward"):
        accelerator.backward(F.cross_entropy(model(x), y))


def test_what_an_ordinary_accelerator_prepared_is_refused_by_name():
    model = layers()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = accelerator.prepare(sgd(model))
    with pytest.raises(IntegrationError, match="gradient_accumulation_steps=2: the samples of"):
        attach(model, optimizer)
    optimizer.gradient_state.plugin_kwargs.clear()
    optimizer.scaler = object()
    with pytest.raises(IntegrationError, match="with a GradScaler, which follows the data"):
        attach(model, optimizer)


def test_wrappers_that_nobody_knows_are_refused():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)

    model = layers()
    with pytest.raises(TypeError, match=r"Wrapper is .* If it wraps another, pass that one"):
        attach(model, Wrapper(sgd(model)))


def test_the_page_has_every_verdict():
    text = PAGE.read_text(encoding="utf-8")
    for name, each in ACCELERATOR_ARGUMENTS.items():
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", text, re.MULTILINE)
        verdict, _, note = row.partition(" | ")
        assert (verdict.rstrip(" |"), note.strip(" |")) == (each.verdict, each.note), name
    for name, note in REFUSED_METHODS.items():
        assert re.search(rf"^\| `{name}` \| {re.escape(note)} \|$", text, re.MULTILINE), name
