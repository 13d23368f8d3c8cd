"""Trains all weights of a text classifier with transformers.Trainer, privately.

Usage: trainer_full.py [--model FOLDER] [--train FILE.jsonl --test FILE.jsonl] [--out DIR]

By default on made data, with a small random BERT; the files have rows of "text" and "label".
"""

import argparse

import made_texts as made
import numpy as np
from transformers import DataCollatorWithPadding, EarlyStoppingCallback, TrainingArguments

from quietgrad.integrations.transformers import PrivateTrainer

options = argparse.ArgumentParser()
options.add_argument("--model", help="folder of a model and its tokenizer")
options.add_argument("--train", help="JSON Lines with 'text' and 'label'")
options.add_argument("--test", help="the same, of texts that are not trained on")
options.add_argument("--out", default="out/trainer-full")
options.add_argument("--samples", type=int, default=4000, help="of made data")
options.add_argument("--epochs", type=int, default=10)
options.add_argument("--resume", action="store_true")
given = options.parse_args()

tokenizer, model = made.tokenizer(given.model, begins=True), made.classifier(given.model)
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
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=20,
        report_to="none",
    ),
    train_dataset=train,
    eval_dataset=test,
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=accuracy,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=5)],
    epsilon=8.0,
    delta=1e-5,
    batch_size=256,
)
trainer.train(resume_from_checkpoint=given.resume)
trainer.save_model(f"{given.out}/model")
print(f"accuracy on held-out texts: {trainer.evaluate()['eval_accuracy']:.1%}")
print(trainer.engine.report(f"{given.out}/report.html", title="Reviews").verdict.sentence)
