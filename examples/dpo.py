"""Aligns a language model with preferences by TRL's DPOTrainer and LoRA, privately.

Usage: dpo.py [--model FOLDER] [--train FILE.jsonl --test FILE.jsonl] [--out DIR]

The unit of privacy is one pair. By default on made data, with a small random Llama; the files have
rows of "prompt", "chosen" and "rejected".
"""

import argparse

import made_texts as made
import torch
from peft import LoraConfig
from trl import DPOConfig

from quietgrad.integrations.trl import PrivateDPOTrainer

options = argparse.ArgumentParser()
options.add_argument("--model", help="folder of a model and its tokenizer")
options.add_argument("--train", help="JSON Lines with 'prompt', 'chosen' and 'rejected'")
options.add_argument("--test", help="the same, of pairs that are not trained on")
options.add_argument("--out", default="out/dpo")
options.add_argument("--samples", type=int, default=2000, help="of made data")
options.add_argument("--epochs", type=int, default=5)
options.add_argument("--resume", action="store_true")
given = options.parse_args()

trainer = PrivateDPOTrainer(
    model=made.language_model(given.model),
    args=DPOConfig(
        given.out,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=64,
        num_train_epochs=given.epochs,
        learning_rate=5e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
        use_cpu=not torch.accelerator.is_available(),
    ),
    train_dataset=made.preferences(given.samples, 1, given.train),
    eval_dataset=made.preferences(500, 2, given.test),
    processing_class=made.tokenizer(given.model),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    epsilon=8.0,
    delta=1e-5,
    batch_size=256,
)
trainer.train(resume_from_checkpoint=given.resume)
trainer.save_model(f"{given.out}/adapters")
right = trainer.evaluate()["eval_rewards/accuracies"]
print(f"held-out pairs whose chosen answer is preferred: {right:.1%}")
print(trainer.engine.report(f"{given.out}/report.html", title="Preferences").verdict.sentence)
