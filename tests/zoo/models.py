"""A family as something to judge: its small model, samples, and one loss per sample."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .families import Family
from .inputs import Sample, join, make_samples
from .judge import Subject, Unbuildable
from .multimodal import takes_media, with_media
from .overrides import EXTRA_INPUTS
from .shrink import small_config

# More than this is no small model: some size was not shrunk.
MOST_PARAMETERS = 3_000_000
# Outputs to score, best first; what compares samples with each other (CLIP's logits) is not here.
_OUTPUTS = (
    "logits text_embeds image_embeds audio_embeds pred_boxes last_hidden_state prediction_outputs "
    "prediction_logits seq_relationship_logits spectrogram waveform predicted_depth reconstruction "
    "pooler_output start_logits end_logits masks_queries_logits class_queries_logits pred_masks "
    "decoder_hidden_state query_embeddings language_output image_text_embeds"
).split()


def subjects_of(family: Family) -> list[Callable[[], Subject]]:
    """What makes its classes, one by one."""
    made = [family, *([replace(family, model=family.second)] if family.second else [])]
    return [partial(subject_of, one) for one in made]


def subject_of(family: Family) -> Subject:
    """Build it; `Unbuildable` says why it cannot be."""
    try:
        model = build(family)
        samples = make_samples(model, EXTRA_INPUTS.get(family.name))
    except Unbuildable:
        raise
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_filename.rpartition('/')[2]}:{frame.tb_lineno}"
        raise Unbuildable(f"{type(error).__name__} at {where}: {error}") from error
    note = ""
    if takes_media(model) and family.name not in EXTRA_INPUTS:
        found = with_media(model, samples, losses)
        samples, note = (samples, "text only") if found is None else (found, "")
    return Subject(model, samples, losses, type(model).__name__, note)


def build(family: Family) -> nn.Module:
    """The family's model in float64 and train mode, with nothing left to chance."""
    import transformers

    config_class = getattr(transformers, family.config)
    config = small_config(config_class, family.name)
    model_class = getattr(transformers, family.model, None) or _from_package(config, family.model)
    if (count := _size(model_class, config)) > MOST_PARAMETERS:
        config = small_config(config_class, family.name, harsh=True)
        count = _size(model_class, config)
    if count > MOST_PARAMETERS:
        raise Unbuildable(f"{count / 1e6:.0f} million parameters: a size was not made small")
    torch.manual_seed(0)
    return settle(model_class(copy.deepcopy(config)))


def _size(model_class: type, config: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())


def _from_package(config: Any, name: str) -> type:
    package = type(config).__module__.rpartition(".")[0]
    modeling = type(config).__module__.replace("configuration_", "modeling_")
    return getattr(importlib.import_module(modeling, package), name)


def settle(model: nn.Module) -> nn.Module:
    """In float64 and train mode, without dropout, and no parameter at a special value."""
    model = model.double().train()
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or name == "p"):
                setattr(module, name, 0.0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            # Zeros (LoRA's B, layer scales, biases) would hide gradients of what they multiply.
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.05 * noise)
    return model


def losses(model: nn.Module, samples: list[Sample]) -> Tensor:
    """A fixed random projection of every sample's outputs at the positions that are no padding."""
    batch = join(samples)
    dtype = next(model.parameters()).dtype
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
    outputs = model(**batch)
    found = score(outputs, batch, len(samples))
    if found is None:
        raise Unbuildable(f"no output to score: {list(_named(outputs))}")
    return found


def score(outputs: Any, batch: Sample, count: int) -> Tensor | None:
    """One loss per sample of these outputs; None if there is none that has one row per sample."""
    named = _named(outputs)
    chosen = [n for n in _OUTPUTS if n in named][:2] or list(named)[:1]
    total = None
    for name in chosen:
        value = named[name]
        if len(value) % count:
            continue
        # Outputs with several rows per sample (crops, boxes) keep them next to each other.
        value = value.reshape(count, -1, *value.shape[1:]) if len(value) != count else value
        value = value * _weights(value, batch)
        loss = value.flatten(1).sum(1)
        total = loss if total is None else total + loss
    return total


def _named(outputs: Any) -> dict[str, Tensor]:
    items = outputs.items() if hasattr(outputs, "items") else {"output": outputs}.items()
    return {k: v for k, v in items if isinstance(v, Tensor) and v.is_floating_point() and v.ndim}


def _weights(value: Tensor, batch: Sample) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    shape = value.shape[1:]
    weights = torch.randn(shape, generator=generator, dtype=torch.float64).to(value.dtype)
    for name in ("decoder_attention_mask", "attention_mask"):
        mask = batch.get(name)
        if mask is not None and value.ndim > 2 and mask.shape == value.shape[:2]:
            kept = mask.reshape(*mask.shape, *[1] * (value.ndim - 2))
            return weights.unsqueeze(0) * kept
    return weights.unsqueeze(0)
