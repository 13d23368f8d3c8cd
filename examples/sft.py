"""Fine-tunes a language model on prompts and answers with TRL's SFTTrainer and LoRA, privately.

Usage: sft.py [--model FOLDER] [--train FILE.jsonl --test FILE.jsonl] [--out DIR]

By default on made data, with a small random Llama; the files have rows of "prompt" and
"completion".
"""

import argparse

import made_texts as made
import torch
from peft import LoraConfig
from trl import SFTConfig

from quietgrad.integrations.trl import PrivateSFTTrainer

options = argparse.ArgumentParser()
options.add_argument("--model", help="folder of a model and its tokenizer")
options.add_argument("--train", help="JSON Lines with 'prompt' and 'completion'")
options.add_argument("--test", help="the same, of rows that are not trained on")
options.add_argument("--out", default="out/sft")
options.add_argument("--samples", type=int, default=2000, help="of made data")
options.add_argument("--epochs", type=int, default=5)
options.add_argument("--resume", action="store_true")
given = options.parse_args()

trainer = PrivateSFTTrainer(
    model=made.language_model(given.model),
    args=SFTConfig(
        given.out,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=64,
        num_train_epochs=given.epochs,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
        use_cpu=not torch.accelerator.is_available(),
    ),
    train_dataset=made.answers(given.samples, 1, given.train),
    eval_dataset=made.answers(500, 2, given.test),
    processing_class=made.tokenizer(given.model),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    epsilon=8.0,
    delta=1e-5,
    batch_size=256,
)
before = trainer.evaluate()["eval_loss"]
trainer.train(resume_from_checkpoint=given.resume)
trainer.save_model(f"{given.out}/adapters")
print(f"loss of held-out answers: {before:.2f} before, {trainer.evaluate()['eval_loss']:.2f} after")
print(trainer.engine.report(f"{given.out}/report.html", title="Answers").verdict.sentence)
