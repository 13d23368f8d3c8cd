"""Started by torchrun, or alone: trains with `PrivateTrainer`, and writes what came of it.

Usage: trainer_on_ranks.py FOLDER KINDS [resume]
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from tests.integrations import test_trl
from tests.integrations.trainers import bert, lora, texts, trainer, weights

FOLDER, KINDS, *REST = sys.argv[1:]
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def train(kind):
    run = OF_TRL[kind]() if kind in OF_TRL else make(kind)
    run.train(resume_from_checkpoint=REST == ["resume"] or None)
    return {
        "weights": weights(run.model).tolist(),
        "epsilon": run.engine.epsilon(),
        "steps": run.engine.steps_taken,
        "ranks": run.engine.ranks,
        "logs": run.state.log_history,
    }


def make(kind):
    model = bert()
    model = lora(model) if kind == "lora" else model
    if RANK and kind == "full":  # the weights of the first process count
        torch.nn.init.normal_(model.get_parameter("classifier.weight"))
    return trainer(
        Path(FOLDER, kind), model, optim="sgd", lr_scheduler_type="linear",
        per_device_train_batch_size=2, logging_steps=1, save_strategy="epoch", bf16=kind == "bf16",
        # Else transformers multiplies the loss of an evaluation by the number of processes.
        eval_strategy="epoch", eval_dataset=texts(8, 1), average_tokens_across_devices=False,
    )  # fmt: skip


def of_trl(kind):
    options = {"per_device_train_batch_size": 2, "num_train_epochs": 2}
    return getattr(test_trl, kind)(Path(FOLDER, kind), test_trl.read_words(), **options)


OF_TRL = {"sft": partial(of_trl, "sft"), "dpo": partial(of_trl, "dpo")}

found = {kind: train(kind) for kind in KINDS.split(",")}
Path(FOLDER, f"{RANK}-of-{RANKS}.json").write_text(json.dumps(found))
if dist.is_initialized():
    dist.destroy_process_group()
