"""Every field of TrainingArguments is classified: it works, it is neutral, or it is refused."""

import dataclasses

import pytest
import torch
from tests.integrations.trainers import hf, pad, texts, trainer, weights

from quietgrad.errors import IntegrationError
from quietgrad.integrations.training_arguments import (
    NEUTRAL,
    REFUSED,
    WORKS,
    check_arguments,
    fields_of_frameworks,
)


def kinds():
    trl = pytest.importorskip("trl")
    return (hf.TrainingArguments, hf.Seq2SeqTrainingArguments, trl.SFTConfig, trl.DPOConfig)


def test_every_field_is_in_one_table():
    fields = {field.name for kind in kinds() for field in fields_of_frameworks(kind)}
    assert fields == WORKS | NEUTRAL | set(REFUSED)
    assert not WORKS & NEUTRAL
    assert not (WORKS | NEUTRAL) & set(REFUSED)


def test_defaults_are_taken(tmp_path):
    for kind in kinds():
        check_arguments(kind(str(tmp_path), use_cpu=True))


# A value that is refused for each, and a word of the remedy.
BAD = {
    "gradient_accumulation_steps": (4, "batch_size="),
    "max_grad_norm": (0.5, "max_grad_norm=0"),
    "optim": ("galore_adamw_layerwise", "adamw_torch"),
    "fp16": (True, "bf16=True"),
    "train_sampling_strategy": ("group_by_length", "lengths"),
    "data_seed": (1, "leave it out"),
    "accelerator_config": ({"gradient_accumulation_kwargs": {"sync_each_batch": True}}, "batch_si"),
    "neftune_noise_alpha": (5.0, "leave it out"),
    "auto_find_batch_size": (True, "per_device_train_batch_size"),
    "torch_compile": (True, "'compile': True"),
    "torch_compile_backend": ("eager", "torch_compile"),
    "torch_compile_mode": ("default", "torch_compile"),
    "use_liger_kernel": (True, "leave it out"),
    "gradient_checkpointing_kwargs": ({"use_reentrant": True}, "use_reentrant"),
    "metric_for_best_model": ("train_loss", "evaluation"),
    "include_num_input_tokens_seen": (True, "leave it out"),
    "skip_memory_metrics": (False, "leave it out"),
    "debug": ("underflow_overflow", "leave it out"),
    "torch_empty_cache_steps": (2, "leave it out"),
    "enable_jit_checkpoint": (True, "save_steps="),
    "fsdp": (True, "torchrun"),
    "fsdp_config": ({"version": 2}, "torchrun"),
    "deepspeed": ("config.json", "torchrun"),
    "parallelism_config": (object(), "torchrun"),
    "hub_strategy": ("checkpoint", "'every_save'"),
    "sortish_sampler": (True, "lengths"),
    "packing": (True, "packing=False"),
    "padding_free": (True, "padding_free=False"),
    "activation_offloading": (True, "leave it out"),
    "router_aux_loss_coef": (0.1, "0.0"),
    "loss_type": ("dft", "'nll'"),
    "loss_weights": ([1.0], "leave it out"),
    "ld_alpha": (0.5, "leave it out"),
    "f_divergence_type": ("js_divergence", "reverse_kl"),
    "use_weighting": (True, "leave it out"),
    "sync_ref_model": (True, "leave it out"),
}


def test_each_has_a_value_that_is_refused():
    assert set(BAD) == set(REFUSED)


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_is_named_with_a_remedy(tmp_path, name):
    value, remedy = BAD[name]
    kind = next(each for each in kinds() if name in {f.name for f in dataclasses.fields(each)})
    args = kind(str(tmp_path), use_cpu=True)
    try:
        args = kind(str(tmp_path), use_cpu=True, **{name: value})
    except Exception:  # this machine does not have what it needs
        setattr(args, name, value)
    with pytest.raises(IntegrationError) as refusal:
        check_arguments(args)
    message = str(refusal.value)
    assert message.split("=")[0] in (name, "torch_compile")  # which two others switch on
    assert remedy in message


def test_the_trainer_refuses_before_it_does_anything(tmp_path):
    with pytest.raises(IntegrationError, match="gradient_accumulation_steps=2"):
        trainer(tmp_path / "out", gradient_accumulation_steps=2)
    assert not (tmp_path / "out").exists()


@dataclasses.dataclass
class OfARelease(hf.TrainingArguments):
    """What a release of transformers that adds a field would have."""

    samples_per_batch: int = 1


OfARelease.__module__ = "transformers.training_args"


@dataclasses.dataclass
class OfAUser(hf.TrainingArguments):
    """A user's own, with a field for the user's own code."""

    shade: str = "blue"


def test_fields_of_other_releases_must_have_their_default(tmp_path):
    check_arguments(OfARelease(str(tmp_path), use_cpu=True))
    with pytest.raises(IntegrationError, match="samples_per_batch=2 is not known to this version"):
        check_arguments(OfARelease(str(tmp_path), use_cpu=True, samples_per_batch=2))
    check_arguments(OfAUser(str(tmp_path), use_cpu=True, shade="red"))


# What each that works does, as far as a short run shows it.
def _steps(run):
    run.train()
    return run.state.global_step


def _rates(run):
    run.train()
    found = [log["learning_rate"] for log in run.state.log_history if "learning_rate" in log]
    return [round(rate, 4) for rate in found]


SHOWN = {
    "num_train_epochs": ({"num_train_epochs": 1.5}, _steps, 5),
    "max_steps": ({"max_steps": 4}, _steps, 4),
    "per_device_train_batch_size": (
        {"per_device_train_batch_size": 3, "batch_size": None, "num_train_epochs": 1}, _steps, 8
    ),
    "warmup_steps": (
        {"warmup_steps": 2, "lr_scheduler_type": "constant_with_warmup", "logging_steps": 1,
         "num_train_epochs": 1}, _rates, [0.0, 0.025, 0.05],
    ),
    "lr_scheduler_kwargs": (
        {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3},
         "logging_steps": 1, "num_train_epochs": 1}, _rates, [0.05, 0.05, 0.05],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_what_works_has_its_effect(tmp_path, name):
    options, ask, expected = SHOWN[name]
    assert ask(trainer(tmp_path, **options)) == expected


def test_the_optimizer_gets_its_options(tmp_path):
    run = trainer(
        tmp_path, max_steps=1, optim="adamw_torch_fused", learning_rate=0.01, weight_decay=0.1,
        adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=1e-6,
    )  # fmt: skip
    run.train()
    group = run.optimizer.param_groups[0]
    assert (group["initial_lr"], group["weight_decay"], group["eps"]) == (0.01, 0.1, 1e-6)
    assert group["betas"] == (0.8, 0.9)
    assert group["fused"]


def test_optim_args(tmp_path):
    run = trainer(tmp_path, max_steps=1, optim="rmsprop", optim_args="momentum=0.5")
    run.train()
    assert run.optimizer.param_groups[0]["momentum"] == 0.5


def test_smoothed_labels_are_those_of_the_loss(tmp_path):
    from quietgrad.integrations.losses import SequenceClassification

    options = {"num_train_epochs": 1, "optim": "sgd"}
    smoothed = trainer(tmp_path / "a", label_smoothing_factor=0.3, **options)
    own = trainer(
        tmp_path / "b", per_sample_loss=SequenceClassification(label_smoothing=0.3), **options
    )
    plain = trainer(tmp_path / "c", **options)
    for each in (smoothed, own, plain):
        each.train()
    assert torch.equal(weights(smoothed.model), weights(own.model))
    assert not torch.equal(weights(smoothed.model), weights(plain.model))


class Asked(torch.nn.Module):
    """A model of no framework, with labels of another name."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(40, 8), torch.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(2)
        return {"logits": self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1))}


def test_labels_of_another_name_and_columns_that_are_not_used(tmp_path):
    data = [{**row, "answer": row["labels"], "note": "unused"} for row in texts(24)]
    for row in data:
        del row["labels"]

    def collate(rows):
        assert all("note" not in row for row in rows)
        batch = pad([{**row, "labels": row["answer"]} for row in rows])
        return {"answer": batch.pop("labels"), **batch}

    def loss(outputs, batch):
        return torch.nn.functional.cross_entropy(
            outputs["logits"], batch["answer"], reduction="none"
        )

    model = Asked()
    before = weights(model).clone()
    run = trainer(
        tmp_path, model, data, data_collator=collate, label_names=["answer"], per_sample_loss=loss,
        num_train_epochs=1, dataloader_num_workers=1,
    )  # fmt: skip
    run.train()
    assert (weights(model) - before).abs().max() > 0


def test_the_default_norm_has_no_effect(tmp_path):
    one, two = (
        trainer(tmp_path / str(norm), max_steps=1, optim="sgd", max_grad_norm=norm)
        for norm in (0.0, 1.0)
    )
    one.train()
    two.train()
    assert torch.equal(weights(one.model), weights(two.model))
