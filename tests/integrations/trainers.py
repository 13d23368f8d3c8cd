"""Small models, data and scripts for `transformers.Trainer`, and the engine's own loop."""

import os

import torch
import torch.nn.functional as F

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers as hf

import quietgrad as qg
from quietgrad.integrations.transformers import PrivateTrainer

CLASSES = 3
_SIZES = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
_TEXT = {"vocab_size": 40, "intermediate_size": 32, "max_position_embeddings": 32}


def bert(dropout=0.0, **options):
    torch.manual_seed(0)
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = hf.BertConfig(**_SIZES, **_TEXT, **drop, num_labels=CLASSES, **options)
    return hf.BertForSequenceClassification(config)


def gpt2():
    torch.manual_seed(0)
    config = hf.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=40, n_positions=32, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config)


def lora(model, **options):
    import peft

    torch.manual_seed(1)
    known = {"task_type": "SEQ_CLS", "target_modules": ["query", "value"], "lora_dropout": 0.0}
    return peft.get_peft_model(model, peft.LoraConfig(r=2, **(known | options)))


def texts(count, seed=0, longest=9):
    """Of different lengths, with a class that the first words tell."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        label = int(torch.randint(CLASSES, (1,), generator=generator))
        length = int(torch.randint(4, longest, (1,), generator=generator))
        words = torch.randint(10, 40, (length,), generator=generator)
        words[:2] = 3 + label
        row = {"input_ids": words.tolist(), "attention_mask": [1] * length, "labels": label}
        rows.append(row)
    return rows


def pad(rows):
    """Every row to the longest of them."""
    longest = max(len(row["input_ids"]) for row in rows)

    def column(name, value):
        return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])

    batch = {"input_ids": column("input_ids", 0), "attention_mask": column("attention_mask", 0)}
    if isinstance(rows[0]["labels"], list):
        return batch | {"labels": column("labels", -100)}
    return batch | {"labels": torch.tensor([row["labels"] for row in rows])}


def arguments(folder, **options):
    known = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.05,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 2,
    }
    return hf.TrainingArguments(str(folder), **(known | options))


def trainer(folder, model=None, data=None, kind=PrivateTrainer, engine_options=None, **options):
    """A private Trainer; what is not known here is for `TrainingArguments`."""
    own = {
        name: options.pop(name)
        for name in (
            "eval_dataset", "callbacks", "compute_metrics", "data_collator", "per_sample_loss",
            "ledger", "log_training_loss", "optimizers", "model_init", "epsilon", "batch_size",
            "compute_loss_func",
        )
        if name in options
    }  # fmt: skip
    known = {
        "model": None if "model_init" in own else bert() if model is None else model,
        "train_dataset": texts(24) if data is None else data,
        "data_collator": pad,
        "delta": 1e-3,
        "batch_size": 8,
        "engine_options": {"seed": 1, "noise_multiplier": 1.0} | (engine_options or {}),
    }
    return kind(args=arguments(folder, **options), **(known | own))


def weights(model):
    trained = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([parameter.flatten() for parameter in trained])


def plain_loop(model, data, optimizer, epochs, loss=None, scheduler=None, **options):
    """What the documents call the training loop, with the engine alone."""
    known = {
        "batch_size": 8,
        "physical_batch_size": 4,
        "epochs": epochs,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "seed": 1,
        "collate_fn": pad,
    }
    engine = qg.PrivacyEngine(model, optimizer, data, **(known | options))
    for _ in range(epochs):
        for batch in engine.batches():
            for content in batch:
                model.train()
                features = {name: each for name, each in content.items() if name != "labels"}
                engine.backward(
                    (loss or cross_entropy)(model(**features).logits, content["labels"])
                )
            engine.step()
            if scheduler is not None:
                scheduler.step()
    engine.detach()
    return engine


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none")


def next_token(logits, labels):
    losses = F.cross_entropy(logits[:, :-1].mT, labels[:, 1:], reduction="none")
    return losses.sum(1) / labels[:, 1:].ne(-100).sum(1)
