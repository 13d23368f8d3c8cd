"""Stock models of transformers and peft, without dropout. They need the extra `transformers`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.benchmark.workload import Workload
from quietgrad.errors import MissingExtraError

_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ROBERTA_TOKENS, _GPT2_TOKENS = 128, 100


def vit(batch_size: int) -> Workload:
    """8x8 patches of 4x4 pixels, and the class token."""
    hf = _transformers()
    config = hf.ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_labels=10,
        **_NO_DROPOUT,
    )
    model, images = hf.ViTForImageClassification(config), torch.randn(batch_size, 3, 32, 32)
    labels = torch.randint(10, (batch_size,))
    return Workload(model.train(), (images,), labels, _logits, has_images=True)


def roberta(batch_size: int) -> Workload:
    """Classification of whole sequences: none is padded."""
    hf = _transformers()
    config = hf.RobertaConfig(num_hidden_layers=6, num_labels=2, **_NO_DROPOUT)
    model = hf.RobertaForSequenceClassification(config).train()
    # The first ids are special: one of them is padding, which shifts positions.
    tokens = torch.randint(4, config.vocab_size, (batch_size, _ROBERTA_TOKENS))
    return Workload(model, (tokens,), torch.randint(2, (batch_size,)), _logits)


def lora(batch_size: int) -> Workload:
    """Adapters and the classifier are trained, all else is frozen."""
    base = roberta(batch_size)
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise MissingExtraError("peft", "transformers") from error
    adapters = LoraConfig(r=8, target_modules=["query", "value"], task_type=TaskType.SEQ_CLS)
    model: Any = base.model
    adapted: nn.Module = get_peft_model(model, adapters)
    return Workload(adapted.train(), base.inputs, base.targets, _logits)


def gpt2(batch_size: int) -> Workload:
    """Next tokens, of sequences that are not padded."""
    hf = _transformers()
    config = hf.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    tokens = torch.randint(config.vocab_size, (batch_size, _GPT2_TOKENS))
    model = hf.GPT2LMHeadModel(config).train()
    return Workload(model, (tokens,), tokens[:, 1:], _next_tokens)


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    logits: Tensor = model(inputs).logits
    return logits


def _next_tokens(model: nn.Module, tokens: Tensor) -> Tensor:
    logits: Tensor = model(tokens).logits
    return logits[:, :-1].mT


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "transformers") from error
    return transformers
