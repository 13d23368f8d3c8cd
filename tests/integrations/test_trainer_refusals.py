"""Scripts that cannot be made private as they are get a message that says what to do."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from tests.integrations.trainers import arguments, bert, pad, texts, trainer
from torch.utils.data import IterableDataset

from quietgrad.errors import (
    EngineStateError,
    IntegrationError,
    LossError,
    MissingExtraError,
    SampleMixingError,
)
from quietgrad.integrations.transformers import PrivateTrainer, PrivateTrainerMixin


class Stream(IterableDataset):
    def __iter__(self):
        return iter(texts(8))


def test_streams_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(IntegrationError, match=r"Stream, a stream .*from_generator"):
        trainer(tmp_path, data=Stream())
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_list(texts(8)).to_iterable_dataset()
    with pytest.raises(IntegrationError, match="IterableDataset, a stream"):
        trainer(tmp_path, data=stream, max_steps=3)


class Weighted(hf.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        raise AssertionError("not called")


class WeightedPrivately(PrivateTrainerMixin, Weighted):
    pass


class PerSample(PrivateTrainerMixin, Weighted):
    def per_sample_losses(self, model, inputs):
        return super().per_sample_losses(model, inputs) * 2


class Sampled(PrivateTrainer):
    def get_train_dataloader(self):
        raise AssertionError("not called")


def test_losses_of_the_batch_are_refused(tmp_path):
    with pytest.raises(IntegrationError, match=r"compute_loss_func= .* per_sample_loss="):
        trainer(tmp_path, compute_loss_func=lambda *args, **kwargs: None)
    with pytest.raises(IntegrationError, match=r"Weighted overrides compute_loss.*per_sample_los"):
        trainer(tmp_path, kind=WeightedPrivately)
    trainer(tmp_path, kind=PerSample)
    with pytest.raises(IntegrationError, match="Sampled overrides get_train_dataloader"):
        trainer(tmp_path, kind=Sampled)


def test_a_loss_of_ones_own_must_have_one_entry_per_sample(tmp_path):
    run = trainer(tmp_path, per_sample_loss=lambda outputs, batch: outputs.logits.mean())
    with pytest.raises(Exception, match=r"losses of shape \[\] for 4 samples"):
        run.train()
    assert not (tmp_path / "ledger.jsonl").exists()


def test_missing_labels_are_named(tmp_path):
    rows = texts(24)

    def collate(rows):
        batch = pad(rows)
        del batch["labels"]
        return batch

    with pytest.raises(IntegrationError, match="no 'labels'; it has attention_mask, input_ids"):
        trainer(tmp_path, data=rows, data_collator=collate).train()


class Scaled(hf.BertForSequenceClassification):
    """Adds something to its loss that does not follow from the logits."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        outputs = super().forward(input_ids, attention_mask, labels=labels)
        if outputs.loss is not None:
            outputs.loss = outputs.loss + 1
        return outputs


def test_a_model_with_another_loss_than_that_of_its_task_is_refused(tmp_path):
    model = Scaled(bert().config)
    with pytest.raises(IntegrationError, match="no loss per sample is known for Scaled"):
        trainer(tmp_path, model).train()
    Scaled.__name__ = "BertForSequenceClassification"
    with pytest.raises(IntegrationError, match="has another loss than SequenceClassification"):
        trainer(tmp_path, model).train()


@pytest.mark.parametrize("kind", [dict, hf.BatchEncoding])
def test_padding_that_counts_is_refused(tmp_path, kind):
    def collate(rows):
        batch = pad(rows)
        del batch["attention_mask"]
        return kind(batch)

    with pytest.raises(SampleMixingError, match="padding counts"):
        trainer(tmp_path, data_collator=collate).train()


def other_labels(rows):
    """Each sample gets the label of another one."""
    batch = pad(rows)
    return batch | {"labels": batch["labels"].flip(0)}


def doubled(rows):
    return pad([*rows, rows[0]])


def over_padding(outputs, batch):
    """A mean over all positions, padded ones too."""
    scores = outputs.logits.float().logsumexp(1, keepdim=True) * batch["attention_mask"]
    return scores.mean(1)


def by_the_batch(outputs, batch):
    """As a script with gradient accumulation divides."""
    losses = F.cross_entropy(outputs.logits, batch["labels"], reduction="none")
    return losses / len(losses)


MIXED = {
    "labels of others": {"data_collator": other_labels},
    "a mean over padding": {"per_sample_loss": over_padding},
    "the number of samples": {"per_sample_loss": by_the_batch},
}


@pytest.mark.parametrize("name", MIXED)
def test_losses_that_depend_on_other_samples_are_refused(tmp_path, name):
    with pytest.raises(SampleMixingError, match=r"beside itself and .* beside other samples"):
        trainer(tmp_path, **MIXED[name]).train()
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_collator_that_adds_samples_and_no_data_are_named(tmp_path):
    with pytest.raises(LossError, match=r"losses of shape \[5\] for 4 samples"):
        trainer(tmp_path, data_collator=doubled).train()
    with pytest.raises(IntegrationError, match=r"train_dataset \(list\) is empty"):
        trainer(tmp_path, data=[]).train()


@pytest.mark.parametrize("name", ["compute_loss", "training_step", "get_train_dataloader"])
def test_methods_that_were_replaced_in_the_trainer_are_named(tmp_path, name):
    run = trainer(tmp_path)
    setattr(run, name, lambda *arguments, **options: None)
    with pytest.raises(IntegrationError, match=rf"trainer\.{name} was replaced"):
        run.train()


def test_a_trainer_of_trl_with_another_loss_is_refused(tmp_path):
    trl = pytest.importorskip("trl")

    class PrivateReward(PrivateTrainerMixin, trl.RewardTrainer):
        pass

    with pytest.raises(IntegrationError, match="RewardTrainer computes its loss itself"):
        trainer(tmp_path, kind=PrivateReward)


def test_engine_options_are_those_of_the_engine(tmp_path):
    with pytest.raises(IntegrationError, match="'epochs', which follows from other arguments"):
        trainer(tmp_path, engine_options={"epochs": 3})
    with pytest.raises(IntegrationError, match=r"'clip', which is no option.* clipping"):
        trainer(tmp_path, engine_options={"clip": 1.0})


def test_searches_are_refused(tmp_path):
    with pytest.raises(IntegrationError, match=r"every trial.*accounting.tuned"):
        trainer(tmp_path).hyperparameter_search()


def test_there_is_no_engine_before_training(tmp_path):
    with pytest.raises(EngineStateError, match=r"no engine yet: trainer.train\(\) makes it"):
        _ = trainer(tmp_path).engine
    with pytest.raises(IntegrationError, match="pass train_dataset="):
        PrivateTrainer(bert(), arguments(tmp_path), delta=1e-3, epsilon=3.0).train()


def test_several_devices_and_a_scaler_of_accelerate_are_refused(tmp_path, monkeypatch):
    args = arguments(tmp_path)
    args._n_gpu = 2
    with pytest.raises(IntegrationError, match=r"2 devices .* torchrun"):
        PrivateTrainer(bert(), args, train_dataset=texts(8), delta=1e-3, epsilon=3.0)
    run = trainer(tmp_path)
    for name, match in (("is_deepspeed_enabled", "DeepSpeed"), ("is_fsdp_enabled", "FSDP")):
        from quietgrad.integrations.trainer_checks import check_accelerator

        setattr(run, name, True)
        with pytest.raises(IntegrationError, match=f"{match} is switched on"):
            check_accelerator(run)
        setattr(run, name, False)
    run.accelerator.state._mixed_precision = "fp16"
    with pytest.raises(IntegrationError, match=r"mixed precision 'fp16' .* bf16=True"):
        check_accelerator(run)
    run.accelerator.state._mixed_precision = "no"


@pytest.mark.parametrize("name", ["transformers", "trl", "accelerate"])
def test_without_the_framework_the_extra_is_named(name, monkeypatch):
    import quietgrad

    place = Path(quietgrad.__file__).parent / f"integrations/{name}.py"
    monkeypatch.setitem(sys.modules, name, None)
    spec = importlib.util.spec_from_file_location("loaded", place)
    extra = "trainer" if name == "transformers" else name
    with pytest.raises(MissingExtraError, match=rf"'quietgrad\[{extra}\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_another_loader_is_noticed_when_it_is_used(tmp_path):
    run = trainer(tmp_path)
    with pytest.raises(IntegrationError, match="does not come from the engine"):
        run.training_step(run.model, pad(texts(4)))


def test_a_callback_cannot_step_or_differentiate_by_itself(tmp_path):
    class Steps(hf.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)

        def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
            optimizer.optimizer.inner.step()

    with pytest.raises(Exception, match="engine"):
        trainer(tmp_path, callbacks=[Steps()]).train()


def test_a_release_of_transformers_without_a_method_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(hf.Trainer, "_init_training_state")
    with pytest.raises(IntegrationError, match=r"has no Trainer._init_training_state"):
        trainer(tmp_path)
