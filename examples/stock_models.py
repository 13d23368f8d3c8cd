"""Ten models as their authors ship them, at full size, with random weights and random data.

Usage: quietgrad check examples/stock_models.py:gpt2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

SAMPLES, TOKENS, CLASSES = 4, 64, 10
Losses = Callable[[nn.Module, Any], Tensor]
Example = tuple[nn.Module, Any, Losses]


def next_token(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(**batch).logits[:, :-1]
    ids = batch.get("decoder_input_ids", batch["input_ids"])
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(1)


def classify(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return F.cross_entropy(logits, labels, reduction="none")


def text(vocabulary: int) -> dict[str, Tensor]:
    mask = torch.ones(SAMPLES, TOKENS, dtype=torch.long)
    mask[0, TOKENS // 2 :] = 0
    return {"input_ids": torch.randint(5, vocabulary, (SAMPLES, TOKENS)), "attention_mask": mask}


def labelled(inputs: Any) -> Any:
    return inputs, torch.arange(SAMPLES) % CLASSES


def images(size: int = 224) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(SAMPLES, 3, size, size)}


def gpt2() -> Example:
    """124M parameters, tied embedding and head."""
    config = hf.GPT2Config()
    return hf.GPT2LMHeadModel(config).train(), text(config.vocab_size), next_token


def llama() -> Example:
    """Rotary positions, grouped queries, RMSNorm: a small configuration of the real thing."""
    config = hf.LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
    )
    return hf.LlamaForCausalLM(config).train(), text(config.vocab_size), next_token


def t5() -> Example:
    """Encoder and decoder with shared embeddings and relative positions."""
    config = hf.T5Config(decoder_start_token_id=0)
    batch = text(config.vocab_size)
    batch["decoder_input_ids"] = torch.randint(5, config.vocab_size, (SAMPLES, 32))
    return hf.T5ForConditionalGeneration(config).train(), batch, next_token


def roberta() -> Example:
    """RoBERTa-base, with dropout, as a classifier."""
    config = hf.RobertaConfig(num_labels=CLASSES)
    model = hf.RobertaForSequenceClassification(config)
    return model.train(), labelled(text(config.vocab_size)), classify


def distilbert() -> Example:
    config = hf.DistilBertConfig(num_labels=CLASSES)
    model = hf.DistilBertForSequenceClassification(config)
    return model.train(), labelled(text(config.vocab_size)), classify


def vit() -> Example:
    """ViT-base on 224 x 224 images."""
    model = hf.ViTForImageClassification(hf.ViTConfig(num_labels=CLASSES))
    return model.train(), labelled(images()), classify


def beit() -> Example:
    """Relative position bias and stochastic depth."""
    config = hf.BeitConfig(num_labels=CLASSES, use_relative_position_bias=True)
    return hf.BeitForImageClassification(config).train(), labelled(images()), classify


def convnext() -> Example:
    """ConvNeXt-tiny: depthwise convolutions, layer scale."""
    model = hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=CLASSES))
    return model.train(), labelled(images()), classify


def wav2vec2() -> Example:
    """Wav2Vec2-base on one second of sound: convolutions with weight normalization."""
    config = hf.Wav2Vec2Config(num_labels=CLASSES)
    batch = {"input_values": torch.randn(SAMPLES, 16_000)}
    model = hf.Wav2Vec2ForSequenceClassification(config)
    return model.train(), labelled(batch), classify


class Tagger(nn.Module):
    """A recurrent classifier of plain torch layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20_000, 300, padding_idx=0)
        self.recurrent = nn.LSTM(
            300, 256, num_layers=2, bidirectional=True, dropout=0.3, batch_first=True
        )
        self.head = nn.Linear(512, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        outputs, _ = self.recurrent(self.embedding(ids))
        return self.head(outputs.mean(1))


def lstm() -> Example:
    ids = torch.randint(1, 20_000, (SAMPLES, TOKENS))
    return Tagger().train(), labelled(ids), classify


ALL = (gpt2, llama, t5, roberta, distilbert, vit, beit, convnext, wav2vec2, lstm)
