"""Operations that leak or mix samples whether or not a trainable parameter is involved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from quietgrad.capture.tape import Tape
from quietgrad.capture.trees import tensors_in
from quietgrad.errors import SampleMixingError, UnsupportedOperationError


def check(function: Callable[..., Any], args: Any, kwargs: dict[str, Any], path: str) -> None:
    """Refuse ``function`` if, called like this, it combines samples or records raw data."""
    checker = _CHECKS.get(function)
    if checker is not None:
        checker(_arguments(function, args, kwargs), f"module '{path}'" if path else "the model")


def check_module(module: nn.Module, path: str) -> None:
    """Refuse a module that mixes samples outside of torch's functions."""
    if isinstance(module, nn.SyncBatchNorm) and module.training:
        _check_batch_norm({"training": True}, f"module '{path}'" if path else "the model")


def check_write(tape: Tape, written: Any, others: Any) -> None:
    """Refuse to write data into what stays in the model: a buffer or a parameter."""
    names = [tape.provenance.name_in_model(tensor) for tensor in tensors_in(written)]
    kept = [name for name in names if name is not None]
    if kept and any(not tape.is_constant(tensor) for tensor in tensors_in(others)):
        raise raw_data_refusal(kept[0])


def check_buffers(module: nn.Module, tape: Tape) -> None:
    """Refuse a buffer that was replaced by something computed from data, and put it back."""
    for attribute, buffer in module._buffers.items():
        if buffer is not None and not tape.is_constant(buffer):
            module._buffers[attribute], name = tape.provenance.original(module, attribute)
            raise raw_data_refusal(name)


def raw_data_refusal(name: str) -> UnsupportedOperationError:
    """What is said of a buffer or parameter that would keep something of the samples."""
    return UnsupportedOperationError(
        f"buffer or parameter '{name}' is written from raw data in the forward: it would leave the "
        "model without noise (running statistics, a memory of samples). Switch the update off, or "
        "keep the statistics fixed."
    )


def _check_batch_norm(arguments: dict[str, Any], where: str) -> None:
    if arguments.get("training"):
        raise SampleMixingError(
            f"batch_norm in {where} runs in training mode: it normalises each sample with "
            "statistics of the whole batch, so one sample changes every other sample's gradient, "
            "and its running statistics would be updated from raw data. Replace it by GroupNorm "
            "or LayerNorm (quietgrad.nn.harden does it), keep its statistics fixed by calling "
            ".eval() on it after model.train(), or train it beside public features with "
            "quietgrad.BatchClipping."
        )


def _check_instance_norm(arguments: dict[str, Any], where: str) -> None:
    if arguments.get("use_input_stats", True) and arguments.get("running_mean") is not None:
        raise UnsupportedOperationError(
            f"instance_norm in {where} updates running statistics from raw data in training mode, "
            "which would leave the model without noise. Build it with track_running_stats=False."
        )


def _check_embedding(arguments: dict[str, Any], where: str) -> None:
    reasons = {
        "max_norm": "max_norm rescales rows of the table in place, without noise, for the ids seen",
        "scale_grad_by_freq": "scale_grad_by_freq divides by counts over the whole batch",
        "sparse": "sparse gradients would reveal which rows were looked up",
    }
    for name, reason in reasons.items():
        if arguments.get(name):
            raise UnsupportedOperationError(
                f"embedding in {where}: {reason}. Build the layer with {name} left at its default."
            )


def _arguments(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(_PARAMETER_NAMES[function], args, strict=False)) | kwargs


_BATCH_NORM = "input weight bias running_mean running_var training momentum eps cudnn_enabled"
_INSTANCE_NORM = "input weight bias running_mean running_var use_input_stats momentum eps"
_EMBEDDING = "weight indices padding_idx scale_grad_by_freq sparse"

_PARAMETER_NAMES: dict[Callable[..., Any], list[str]] = {
    torch.batch_norm: _BATCH_NORM.split(),
    torch.native_batch_norm: _BATCH_NORM.split(),
    torch.instance_norm: _INSTANCE_NORM.split(),
    torch.embedding: _EMBEDDING.split(),
    **{
        function: list(inspect.signature(function).parameters)
        for function in (F.batch_norm, F.instance_norm, F.embedding, F.embedding_bag)
    },
}

_CHECKS: dict[Callable[..., Any], Callable[[dict[str, Any], str], None]] = {
    F.batch_norm: _check_batch_norm,
    torch.batch_norm: _check_batch_norm,
    torch.native_batch_norm: _check_batch_norm,
    F.instance_norm: _check_instance_norm,
    torch.instance_norm: _check_instance_norm,
    F.embedding: _check_embedding,
    torch.embedding: _check_embedding,
    F.embedding_bag: _check_embedding,
}
