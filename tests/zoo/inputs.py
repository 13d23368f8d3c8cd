"""Inputs of a model by what its forward takes: a few samples that differ, padded alike."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .shrink import IMAGE, VOCABULARY

_PLACEHOLDER = re.compile(r"(image|audio|speech|media|video)\w*_token_(id|index)")
SAMPLES, LENGTH, TARGETS, SOUND = 3, 8, 5, 1600

Sample = dict[str, Tensor]


def value_of(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these settings that the configuration or one of its parts has."""
    parts = [config, *(v for v in vars(config).values() if hasattr(v, "model_type"))]
    for part in parts:
        for name in names:
            if (value := getattr(part, name, None)) is not None:
                return value
    return default


def make_samples(model: nn.Module, extra: dict[str, Any] | None = None) -> list[Sample]:
    """One dictionary per sample; joined along the first dimension they are a batch.

    Args:
        model: a transformers model.
        extra: name of an argument -> its shape without the batch, or "long" or "ones" and the
            shape for what is not noise, or None to leave it out.
    """
    taken = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(7)
    samples = [_sample(model, taken, place, generator) for place in range(SAMPLES)]
    for name, made in (extra or {}).items():
        for place, sample in enumerate(samples):
            if made is None:
                sample.pop(name, None)
            else:
                sample[name] = _extra(list(made), place, generator)
    return samples


def _extra(made: list[Any], place: int, generator: torch.Generator) -> Tensor:
    kind, shape = (made[0], made[1:]) if made and isinstance(made[0], str) else ("", made)
    if kind == "long":
        return torch.randint(1, 4, (1, *shape), generator=generator) + place
    return torch.ones(1, *shape).long() if kind == "ones" else _noise((1, *shape), generator)


def _sample(model: nn.Module, taken: Any, place: int, generator: torch.Generator) -> Sample:
    config = model.config
    length = LENGTH - place
    sample: Sample = {}
    if "input_ids" in taken:
        sample["input_ids"] = _ids(config, LENGTH, length, generator)
        if "attention_mask" in taken:
            sample["attention_mask"] = _mask(LENGTH, length)
        if "token_type_ids" in taken and value_of(config, "type_vocab_size", default=0) > 1:
            sample["token_type_ids"] = (torch.arange(LENGTH)[None] > 3).long()
        if "bbox" in taken:
            sample["bbox"] = torch.tensor([[[1, 2, 5 + place, 9]]]).expand(1, LENGTH, 4).clone()
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
        sample["decoder_input_ids"] = _ids(config, TARGETS, TARGETS - place, generator)
        if "decoder_attention_mask" in taken:
            sample["decoder_attention_mask"] = _mask(TARGETS, TARGETS - place)
    for name, maker in _MAKERS.items():
        if name in taken and not ("input_ids" in sample and _has_placeholders(config)):
            sample[name] = maker(model, generator)
    return sample


def _has_placeholders(config: Any) -> bool:
    """Whether images and sound have places among the words: `multimodal` puts them there."""
    return any(_PLACEHOLDER.search(key) for key in vars(config))


def _ids(config: Any, length: int, used: int, generator: torch.Generator) -> Tensor:
    top = min(value_of(config, "vocab_size", default=VOCABULARY), VOCABULARY) - 20
    ids = torch.randint(5, max(top, 8), (1, length), generator=generator)
    pad = getattr(config, "pad_token_id", None)
    ids[:, used:] = 0 if pad is None else pad
    return ids


def _mask(length: int, used: int) -> Tensor:
    return (torch.arange(length) < used).long()[None]


def _noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def image_shape(config: Any) -> tuple[int, ...]:
    size = value_of(config, "image_size", "input_size", "img_size", default=IMAGE)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = value_of(config, "num_channels", "in_channels", "in_chans", default=3)
    return (channels, height, width)


def _image(model: nn.Module, generator: torch.Generator) -> Tensor:
    frames = value_of(model.config, "num_frames", "frames_per_clip")
    lead = (1, frames) if frames and "Video" in type(model).__name__ + str(frames) else (1,)
    return _noise((*lead, *image_shape(model.config)), generator)


def _video(model: nn.Module, generator: torch.Generator) -> Tensor:
    frames = value_of(model.config, "num_frames", "frames_per_clip", default=2)
    return _noise((1, frames, *image_shape(model.config)), generator)


def _sound(model: nn.Module, generator: torch.Generator) -> Tensor:
    if bins := value_of(model.config, "num_mel_bins"):
        frames = value_of(model.config, "max_length", default=64)
        return _noise((1, frames, bins), generator)
    return _noise((1, SOUND), generator)


def _features(model: nn.Module, generator: torch.Generator) -> Tensor:
    config = model.config
    bins = value_of(config, "num_mel_bins", "feature_projection_input_dim", "input_dim", default=80)
    frames = 2 * value_of(config, "max_source_positions", default=32)
    if "whisper" in config.model_type:
        return _noise((1, bins, frames), generator)
    return _noise((1, min(frames, 64), bins), generator)


def _series(model: nn.Module, generator: torch.Generator) -> Tensor:
    length = value_of(model.config, "context_length", default=16)
    channels = value_of(model.config, "num_input_channels", default=1)
    return _noise((1, length, channels), generator)


_MAKERS: dict[str, Callable[[nn.Module, torch.Generator], Tensor]] = {
    "pixel_values": _image,
    "pixel_values_videos": _video,
    "input_values": _sound,
    "input_features": _features,
    "past_values": _series,
}


def join(samples: list[Sample]) -> Sample:
    """A batch of them."""
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}
