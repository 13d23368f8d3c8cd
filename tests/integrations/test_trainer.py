"""`PrivateTrainer` ends with the weights of the engine's own loop, and its script is the user's."""

import pytest
import torch
from tests.integrations.trainers import (
    bert,
    gpt2,
    lora,
    next_token,
    plain_loop,
    texts,
    trainer,
    weights,
)

SGD = {"optim": "sgd", "lr_scheduler_type": "constant"}


def steps_of(kind, model):
    trained = [p for p in model.parameters() if p.requires_grad]
    if kind == "sgd":
        return torch.optim.SGD(trained, lr=0.05)
    return torch.optim.AdamW(trained, lr=0.05, weight_decay=0.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clipping": "psac", "grouping": "layer-wise"},
        {"sampling": "shuffled", "adjacency": "replace-one"},
        {"lengths": [len(row["input_ids"]) for row in texts(24)]},
    ],
    ids=["default", "layer-wise", "shuffled", "lengths"],
)
def test_the_weights_are_those_of_the_plain_loop(tmp_path, options):
    plain = bert()
    before = weights(bert())
    plain_loop(plain, texts(24), steps_of("sgd", plain), 2, **options)
    run = trainer(tmp_path, engine_options=options, **SGD)
    run.train()
    assert torch.equal(weights(run.model), weights(plain))
    assert (weights(plain) - before).abs().max() > 1e-3
    assert run.state.global_step == run.engine.steps_taken == 6


@pytest.mark.parametrize("limits", [{}, {"max_steps": 5}], ids=["epochs", "steps"])
def test_people_with_several_rows(tmp_path, limits):
    """Seven people have 24 rows: batches, epochs and steps are of people, micro-batches of rows."""
    options = {"units": [row % 7 for row in range(24)], "records_per_unit": 3}
    options |= {"unit": "author", "public_size": 8}
    plain = bert()
    plain_loop(plain, texts(24), steps_of("sgd", plain), 2, batch_size=2, **options)
    run = trainer(tmp_path, engine_options=options, batch_size=2, **SGD, **limits)
    found = run.train()
    assert run.engine.settings()["physical_batch_size"] == 4
    # Nor does the Trainer log the number of rows, or of authors.
    taken = limits.get("max_steps", 8) * 2
    assert found.metrics["train_samples_per_second"] * found.metrics["train_runtime"] == (
        pytest.approx(taken, rel=0.2)
    )
    assert run.state.global_step == run.engine.steps_taken == limits.get("max_steps", 8)
    assert "gradients of the authors" in run.engine.report().verdict.sentence  # it is seeded
    assert run.engine.ledger.unit.plural == "authors"
    if not limits:
        assert torch.equal(weights(run.model), weights(plain))


def test_adamw_with_a_schedule_and_dropout(tmp_path):
    plain = bert(dropout=0.1)
    optimizer = steps_of("adamw", plain)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 6)
    torch.manual_seed(42)  # TrainingArguments(seed=42): the Trainer begins with it
    plain_loop(plain, texts(24), optimizer, 2, scheduler=schedule)
    run = trainer(tmp_path, model=bert(dropout=0.1), optim="adamw_torch")
    torch.manual_seed(42)
    run.train()
    assert torch.allclose(weights(run.model), weights(plain), rtol=0, atol=1e-6)


def test_a_language_model_with_adapters(tmp_path):
    rows = [{**row, "labels": row["input_ids"]} for row in texts(24)]
    options = {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"], "fan_in_fan_out": True}
    plain = lora(gpt2(), **options)
    plain_loop(plain, rows, steps_of("sgd", plain), 2, loss=next_token)
    run = trainer(tmp_path, model=lora(gpt2(), **options), data=rows, **SGD)
    run.train()
    assert torch.allclose(weights(run.model), weights(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_precision_and_checkpointing(tmp_path, bf16, checkpointing):
    plain = bert()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        plain_loop(plain, texts(24), steps_of("sgd", plain), 1)
    run = trainer(
        tmp_path, num_train_epochs=1, bf16=bf16, gradient_checkpointing=checkpointing, **SGD
    )
    run.train()
    assert torch.allclose(weights(run.model), weights(plain), rtol=0, atol=1e-6)
