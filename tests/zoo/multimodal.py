"""Inputs of models that read images or sound between words, found by trying.

How many placeholder tokens an image takes follows from many settings, differently in each family;
but a model that is given too few or too many says so.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from .inputs import LENGTH, Sample, image_shape, value_of

_FEATURES = re.compile(r"features:? (?:torch\.Size\(\[)?(\d+)")
_MOST_TOKENS = 70
_IMAGE_TOKENS = ("image_token_id", "image_token_index", "media_placeholder_token_id")
_AUDIO_TOKENS = ("audio_token_id", "audio_token_index", "speech_token_id")


def takes_media(model: nn.Module) -> bool:
    """Whether there are placeholder tokens for images or sound in what it reads."""
    taken = inspect.signature(model.forward).parameters
    return "input_ids" in taken and next(_attempts(model), None) is not None


def with_media(
    model: nn.Module, samples: list[Sample], losses: Callable[[nn.Module, list[Sample]], Tensor]
) -> list[Sample] | None:
    """The samples with an image or a sound each; None if there is no way that the model takes."""
    for make, token in _attempts(model):
        counts = list(range(1, _MOST_TOKENS))
        tried: set[int] = set()
        while counts:
            count = counts.pop(0)
            if count in tried:
                continue
            tried.add(count)
            made = [_joined(s, make(i), token, count, model) for i, s in enumerate(samples)]
            try:
                torch.manual_seed(0)
                # Two at once: what the model makes of one sample may broadcast by accident.
                losses(model, made[:2])
                losses(model, made[:1])
                return made
            except Exception as error:
                if len(tried) > 1 and not _FEATURES.search(str(error)):
                    # Nothing but the number of tokens is what another number could mend.
                    break
                said = [int(n) for n in _FEATURES.findall(str(error))]
                counts = [n for n in said if n < 200] + counts
    return None


def _attempts(model: nn.Module) -> Iterator[tuple[Callable[[int], Sample], int]]:
    taken = inspect.signature(model.forward).parameters
    config = model.config
    token = value_of(config, *_IMAGE_TOKENS)
    if "pixel_values" in taken and token is not None:
        for made in _images(model, taken):
            yield made, token
    token = value_of(config, *_AUDIO_TOKENS)
    name = next((n for n in ("input_features", "input_values") if n in taken), None)
    if name and token is not None:
        bins = value_of(config, "num_mel_bins", "input_dim", "feature_size", default=80)
        frames = 2 * value_of(config, "max_source_positions", default=32)
        for shape in ((bins, frames), (64, bins), (bins, 64), (1600,), (1, 1600)):
            yield _maker(name, shape, taken), token


def _images(model: nn.Module, taken: inspect.Signature) -> Iterator[Callable[[int], Sample]]:
    config = model.config
    channels, height, width = image_shape(config)
    if any(n in taken for n in ("image_grid_thw", "grid_thw", "image_grid_hws")):
        patch = value_of(config.vision_config, "patch_size", default=8)
        for depth in (value_of(config.vision_config, "temporal_patch_size", default=1), 1):
            yield _grid(taken, channels * depth * patch * patch)
        yield _grid(taken, channels, patch, patch)
    # A model may cut an image to the size that it is told, or want none; and see it in two crops.
    for size in ((height, width), None):
        for crops in ((), (1,), (2,)):
            yield _maker("pixel_values", (*crops, channels, height, width), taken, size)


def _maker(
    name: str, shape: tuple[int, ...], taken: inspect.Signature, size: tuple[int, int] | None = None
) -> Callable[[int], Sample]:
    def make(place: int) -> Sample:
        made: Sample = {name: _noise(place, 1, *shape)}
        if size and "image_sizes" in taken:
            made["image_sizes"] = torch.tensor([size])
        if "input_features_mask" in taken or "feature_attention_mask" in taken:
            key = "input_features_mask" if "input_features_mask" in taken else ""
            made[key or "feature_attention_mask"] = torch.ones(1, max(shape), dtype=torch.long)
        return made

    return make


def _grid(taken: inspect.Signature, *patch: int) -> Callable[[int], Sample]:
    """Patches of all images in one dimension, with the size of each image in patches."""

    def make(place: int) -> Sample:
        made: Sample = {"pixel_values": _noise(place, 16, *patch)}
        for name in ("image_grid_thw", "grid_thw"):
            if name in taken:
                made[name] = torch.tensor([[1, 4, 4]])
        if "image_grid_hws" in taken:
            made["image_grid_hws"] = torch.tensor([[4, 4]])
        return made

    return make


def _noise(place: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + place)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _joined(text: Sample, media: Sample, token: int, count: int, model: nn.Module) -> Sample:
    """The media's placeholder tokens after the first word; padding stays at the end."""
    sample = {**text, **media}
    tokens = torch.full((1, count), token)
    for name, fill in (("input_ids", tokens), ("attention_mask", torch.ones_like(tokens))):
        if name in text:
            sample[name] = torch.cat([text[name][:, :1], fill, text[name][:, 1:]], 1)
    sample.pop("token_type_ids", None)
    taken = inspect.signature(model.forward).parameters
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in taken:
            sample[name] = (sample["input_ids"] == token).long()
    if "image_attention_mask" in taken:
        sample["image_attention_mask"] = torch.ones(1, LENGTH + count, 1, dtype=torch.long)
    return sample
