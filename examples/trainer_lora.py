"""Trains low-rank adapters of a text classifier with transformers.Trainer and PEFT, privately.

Usage: trainer_lora.py [--model FOLDER] [--train FILE.jsonl --test FILE.jsonl] [--out DIR]

By default on made data, with a small random BERT; the files have rows of "text" and "label". Name
the layers of another model with --layers.
"""

import argparse

import made_texts as made
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import DataCollatorWithPadding, TrainingArguments

from quietgrad.integrations.transformers import PrivateTrainer

options = argparse.ArgumentParser()
options.add_argument("--model", help="folder of a model and its tokenizer")
options.add_argument("--layers", nargs="+", default=["query", "key", "value", "dense"])
options.add_argument("--train", help="JSON Lines with 'text' and 'label'")
options.add_argument("--test", help="the same, of texts that are not trained on")
options.add_argument("--out", default="out/trainer-lora")
options.add_argument("--samples", type=int, default=4000, help="of made data")
options.add_argument("--epochs", type=int, default=10)
options.add_argument("--resume", action="store_true")
given = options.parse_args()

tokenizer, model = made.tokenizer(given.model, begins=True), made.classifier(given.model)
model = get_peft_model(
    model, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=given.layers)
)
train, test = made.reviews(given.samples, 1, given.train), made.reviews(500, 2, given.test)
train, test = (
    data.map(lambda row: tokenizer(row["text"], truncation=True)) for data in (train, test)
)


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


trainer = PrivateTrainer(
    model=model,
    args=TrainingArguments(
        given.out,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=64,
        num_train_epochs=given.epochs,
        learning_rate=1e-2,
        warmup_steps=10,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_steps=20,
        label_names=["labels"],
        bf16=True,
        use_cpu=not torch.accelerator.is_available(),
        report_to="none",
    ),
    train_dataset=train,
    eval_dataset=test,
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=accuracy,
    epsilon=8.0,
    delta=1e-5,
    batch_size=256,
)
trainer.train(resume_from_checkpoint=given.resume)
trainer.save_model(f"{given.out}/adapters")
print(f"accuracy on held-out texts: {trainer.evaluate()['eval_accuracy']:.1%}")
print(trainer.engine.report(f"{given.out}/report.html", title="Reviews").verdict.sentence)
