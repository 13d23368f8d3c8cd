"""CPU time of a step of the private trainers over the ordinary ones of transformers and TRL.

Usage: OMP_NUM_THREADS=1 python -m benchmarks.trainer_time [--only full,lora,sft,dpo] [--steps 60]

Both train the same model on the same made data, each in a thread of its own, and take turns step by
step: a step is timed by the processor time of its thread, with everything that the Trainer does
between two steps. Steps have 64 samples, in parts of 16: the ordinary ones by gradient
accumulation, the private ones as Poisson samples of that size on average.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import datasets
import made_texts as made
import peft
import torch
import transformers as hf
import trl

from quietgrad.integrations.transformers import PrivateTrainer
from quietgrad.integrations.trl import PrivateDPOTrainer, PrivateSFTTrainer

SAMPLES, PART, WORDS = 64, 16, 64
_PRIVATE = {"epsilon": 8.0, "delta": 1e-5, "batch_size": SAMPLES}


def bert() -> Any:
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=8000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=1024, max_position_embeddings=WORDS,
    )  # fmt: skip
    return hf.BertForSequenceClassification(config)


def llama() -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=8000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=768, max_position_embeddings=2 * WORDS,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def rows(**columns: int) -> datasets.Dataset:
    """Random words of these lengths, in so many samples as a few epochs need."""
    torch.manual_seed(1)
    made_rows = {
        name: torch.randint(4, 8000, (1024, length)).tolist() for name, length in columns.items()
    }
    return datasets.Dataset.from_dict(made_rows)


def pairs() -> datasets.Dataset:
    """Random pairs as text, which `DPOTrainer` takes apart itself: half prompt, half answer."""
    draw = random.Random(1)
    words = [*made.GOOD, *made.BAD, *made.THINGS, *made.FILLERS]

    def texts(count: int, begin: str = "") -> list[str]:
        return [begin + " ".join(draw.choices(words, k=count)) for _ in range(1024)]

    half = WORDS // 2
    answers = {side: texts(half - 1, " ") for side in ("chosen", "rejected")}  # TRL ends each
    return datasets.Dataset.from_dict({"prompt": texts(half), **answers})


class Turns(hf.TrainerCallback):
    """Lets two trainers step by turns, and keeps the processor time of each step."""

    def __init__(self, mine: threading.Semaphore, other: threading.Semaphore) -> None:
        self.mine, self.other, self.times = mine, other, list[float]()
        self.started = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.mine.acquire()
        self.started = time.thread_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(time.thread_time() - self.started)
        self.other.release()
        self.mine.acquire()
        self.started = time.thread_time()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.other.release(1000)


def trainers(workload: str, folder: str, steps: int) -> list[Any]:
    """The ordinary trainer, and the private one."""
    options: dict[str, Any] = {
        "per_device_train_batch_size": PART, "max_steps": steps, "learning_rate": 1e-4,
        "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True,
        "logging_strategy": "no",
    }  # fmt: skip
    accumulated = {"gradient_accumulation_steps": SAMPLES // PART}
    lora = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    if workload in ("full", "lora"):
        data = rows(input_ids=WORDS).add_column("labels", [i % 2 for i in range(1024)])
        kinds, config = (hf.Trainer, PrivateTrainer), hf.TrainingArguments
        adapted = peft.LoraConfig(r=8, target_modules=["query", "value"], task_type="SEQ_CLS")
        known: Any = {"train_dataset": data}

        def model() -> Any:
            return bert() if workload == "full" else peft.get_peft_model(bert(), adapted)

        options |= {"label_names": ["labels"]}
    else:
        model, known = llama, {"processing_class": made.tokenizer(), "peft_config": lora}
        options |= {"bf16": False, "gradient_checkpointing": False}
        if workload == "sft":
            kinds, config = (trl.SFTTrainer, PrivateSFTTrainer), trl.SFTConfig
            known["train_dataset"] = rows(input_ids=WORDS)
        else:
            kinds, config = (trl.DPOTrainer, PrivateDPOTrainer), trl.DPOConfig
            known["train_dataset"] = pairs()
    return [
        kinds[0](model=model(), args=config(f"{folder}/a", **options, **accumulated), **known),
        kinds[1](model=model(), args=config(f"{folder}/b", **options), **known, **_PRIVATE),
    ]


def measure(workload: str, steps: int) -> list[list[float]]:
    gates = [threading.Semaphore(1), threading.Semaphore(0)]
    turns = [Turns(*gates), Turns(*reversed(gates))]
    with tempfile.TemporaryDirectory() as folder:
        both = trainers(workload, folder, steps)
        threads = []
        for trainer, callback in zip(both, turns, strict=True):
            trainer.add_callback(callback)
            trainer.remove_callback(hf.PrinterCallback)
            threads.append(threading.Thread(target=trainer.train))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return [each.times for each in turns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="full,lora,sft,dpo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--skip", type=int, default=20, help="steps at the beginning, not counted")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    print(
        "| workload | ordinary, ms | private, ms | ratio (quartiles) |\n| --- | --- | --- | --- |"
    )
    for workload in given.only.split(","):
        ordinary, private = (times[given.skip :] for times in measure(workload, given.steps))
        ratios = [b / a for a, b in zip(ordinary, private, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"| {workload} | {1e3 * statistics.median(ordinary):.0f} "
            f"| {1e3 * statistics.median(private):.0f} "
            f"| {middle:.2f} ({low:.2f} to {high:.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
