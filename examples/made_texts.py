"""Made data, and a tokenizer and small random models for it: the examples need no download.

The words are a public list. A tokenizer that is fitted to the training data would not be covered.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import datasets
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

GOOD = "bright calm clean fresh friendly kind quick quiet tasty warm".split()
BAD = "broken cold dirty dull late loud rude slow stale wrong".split()
THINGS = "bread coffee hall lamp music room service soup staff window".split()
FILLERS = "and but here it really the there today very was".split()
SPECIAL = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]


def tokenizer(folder: str | None = None, *, begins: bool = False) -> Any:
    """Of a local model, or of the words above; with a word at the beginning, if wanted."""
    if folder is not None:
        return hf.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    words = [*SPECIAL, *GOOD, *BAD, *THINGS, *FILLERS]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if begins:
        first = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 2)])
        made.post_processor = first
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, **names)


def classifier(folder: str | None = None) -> Any:
    """A local model for sequence classification, or a small BERT with random weights."""
    if folder is not None:
        kind = hf.AutoModelForSequenceClassification
        return kind.from_pretrained(folder, local_files_only=True, num_labels=2)
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, initializer_range=0.1, pad_token_id=0,
    )  # fmt: skip
    return hf.BertForSequenceClassification(config)


def language_model(folder: str | None = None) -> Any:
    """A local causal language model, or a small Llama with random weights."""
    if folder is not None:
        return hf.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=128, max_position_embeddings=64, pad_token_id=0,
        bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def reviews(count: int, seed: int, file: str | Path | None = None) -> datasets.Dataset:
    """Rows of ``text`` and ``label``, made or from a JSON Lines file."""
    if file is not None:
        return datasets.Dataset.from_json(str(file))
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.randrange(2)
        words = draw.choices(FILLERS + THINGS, k=draw.randrange(3, 12))
        words += draw.choices((BAD, GOOD)[label], k=draw.randrange(1, 4))
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": label})
    return datasets.Dataset.from_list(rows)


def answers(count: int, seed: int, file: str | Path | None = None) -> datasets.Dataset:
    """Rows of ``prompt`` and ``completion``: a review is summed up."""
    if file is not None:
        return datasets.Dataset.from_json(str(file))
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        thing, word = draw.choice(THINGS), draw.choice(GOOD + BAD)
        said = draw.choices(FILLERS, k=draw.randrange(1, 6))
        prompt = f"{' '.join(said)} the {thing} was {word}"
        rows.append({"prompt": prompt, "completion": f" {word} {thing}"})
    return datasets.Dataset.from_list(rows)


def preferences(count: int, seed: int, file: str | Path | None = None) -> datasets.Dataset:
    """Rows of ``prompt``, ``chosen`` and ``rejected``: friendly words are preferred."""
    if file is not None:
        return datasets.Dataset.from_json(str(file))
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        thing = draw.choice(THINGS)
        chosen, rejected = (
            f" {draw.choice(words)} {' '.join(draw.choices(FILLERS, k=draw.randrange(1, 4)))}"
            for words in (GOOD, BAD)
        )
        rows.append({"prompt": f"the {thing} was", "chosen": chosen, "rejected": rejected})
    return datasets.Dataset.from_list(rows)
