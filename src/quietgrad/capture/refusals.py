"""What is refused at sight: models, operations, gradients and losses that cannot be right."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad.capture.compare import tensors_in
from quietgrad.distributed.sharding import is_distributed_tensor, is_fully_sharded
from quietgrad.distributed.world import World
from quietgrad.errors import (
    DistributedTrainingError,
    EscapedGradientError,
    LossError,
    QuietgradError,
    SampleMixingError,
    StrayGradientError,
    TrainableSetError,
    UnsupportedOperationError,
)

if TYPE_CHECKING:
    from quietgrad.capture.call import Call
    from quietgrad.capture.tape import Tape

_SPREAD = ("torch.nn.parallel.", "torch.distributed.")
_NOT_SPREAD = "torch.distributed.algorithms."  # wrappers for checkpointing, in one process


_UNWRAPPED = (
    "the engine adds up over the ranks of a process group itself (docs/distributed.md). With "
    "accelerate use PrivateAccelerator, with Lightning PrivateStrategy (docs/integrations)."
)


def refuse_distributed(
    model: nn.Module | None = None, *, ranks: int = 1, is_sharded: bool = False
) -> None:
    """A process group of another number of ranks, and models that are spread over some.

    Args:
        model: looked into if given; without it this costs about a microsecond.
        ranks: how many there are supposed to be.
        is_sharded: whether ``fully_shard`` may have spread it.
    """
    is_group = dist.is_available() and dist.is_initialized()
    found = dist.get_world_size() if is_group else 1
    if found != ranks:
        raise DistributedTrainingError(
            f"torch.distributed has a process group of {found} ranks"
            if is_group
            else f"the process group of {ranks} ranks that the engine was made in has ended",
            "Make the engine after torch.distributed.init_process_group(), in all ranks; check, "
            "plan and clipped_sum work in one process alone."
            if is_group
            else "End it after training.",
        )
    if model is None or not isinstance(model, nn.Module):
        return
    anew = "Build the model anew without it: each rank needs a whole copy (docs/distributed.md)."
    for path, module in model.named_modules():
        if (kind := _spread(type(module))) and not (is_sharded and is_fully_sharded(module)):
            raise DistributedTrainingError(
                f"{_name_module(path)} is a {kind}",
                f"Put the module that it wraps, its .module, in its place: {_UNWRAPPED}"
                if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel)
                else anew,
            )
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        is_flat = getattr(tensor, "_is_flat_param", False)  # left by FullyShardedDataParallel
        if is_sharded and isinstance(tensor, nn.Parameter) and is_distributed_tensor(tensor):
            continue
        if kind := "FlatParameter" if is_flat else _spread(type(tensor)):
            raise DistributedTrainingError(f"'{name}' is a {kind}", anew)


def refuse_wrapped_call() -> None:
    """A forward of an engine's model that DistributedDataParallel runs, around the model."""
    if nn.parallel.DistributedDataParallel._active_ddp_module is not None:
        raise DistributedTrainingError(
            "the model is called by a DistributedDataParallel that was put around it",
            f"Call the module that it wraps, its .module: {_UNWRAPPED}",
            "it waits for all ranks in every forward, and they may have different numbers of "
            "micro-batches",
        )


def _name_module(path: str) -> str:
    return f"module '{path}'" if path else "the model"


def _spread(kind: type) -> str | None:
    """The class, and the one of torch that it is derived from; None if it is of one process.

    Told by where classes are defined: to import them all takes seconds.
    """
    for base in kind.__mro__:
        place = f"{base.__module__}."
        if place.startswith(_SPREAD) and not place.startswith(_NOT_SPREAD):
            own = kind.__name__
            return own if own == base.__name__ else f"{own} ({base.__name__} of {base.__module__})"
    return None


def refuse_unusable(model: nn.Module, world: World | None = None) -> None:
    """Models whose operations cannot be seen, and parameters that cannot be clipped."""
    world = world or World()
    refuse_distributed(model, ranks=world.size, is_sharded=world.has_collectives)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedOperationError(
                f"{_name_module(path)} is a ScriptModule, whose "
                "operations cannot be seen. Attach the model as it was before torch.jit."
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise TrainableSetError(
                f"parameter '{name}' is not initialized yet (a lazy module): run one forward pass "
                "before attaching."
            )
    refuse_hooks({name: p for name, p in model.named_parameters() if p.requires_grad})


def refuse_hooks(parameters: Mapping[str, nn.Parameter]) -> None:
    """Parameters with gradient hooks, which would never be called."""
    for name, parameter in parameters.items():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise UnsupportedOperationError(
                f"parameter '{name}' has a gradient hook, which is never called: per-sample "
                "gradients do not pass through it. Remove it; to keep rows or entries fixed, "
                "multiply by a mask in the forward, or freeze the parameter."
            )


def refuse_foreign_gradients(trained: Mapping[str, Tensor]) -> None:
    """Gradients that are there before a backward pass of ours."""
    for name, parameter in trained.items():
        if parameter.grad is not None:
            raise StrayGradientError(
                f"parameter '{name}' already holds a .grad that did not come from quietgrad. "
                "Call optimizer.zero_grad() first; gradients may only come from backward() of "
                "the engine."
            )


def refuse_escaped_gradients(trained: Mapping[str, nn.Parameter]) -> None:
    """Gradients that a backward pass of ours left behind: a use that was not recorded."""
    escaped = [n for n, p in trained.items() if p.grad is not None]
    if escaped:
        raise EscapedGradientError(
            f"parameter '{escaped[0]}' received an ordinary gradient: it is used outside the "
            "model's forward (in the loss, or through model.forward(...) instead of "
            "model(...)), or the model ran in eval mode. Nothing was accumulated. Use "
            "parameters only inside a forward called as model(...), after model.train()."
        )


def check_losses(losses: Any, batch: int | None = None, noun: str = "sample") -> None:
    """Refuse anything but one differentiable loss for each of ``batch`` samples, or records."""
    advice = (
        "Pass one loss per sample: use reduction='none' and, where a sample has several entries "
        "(tokens, outputs), reduce them to one per sample: losses.flatten(1).mean(1), or with "
        "padded places (losses * mask).sum(1) / mask.sum(1), since padding must not count. Do not "
        "divide by the batch size. A loss that a model computes itself (outputs.loss) is a mean: "
        "call the model without labels."
    )
    if not isinstance(losses, Tensor):
        raise LossError(f"expected a 1-D tensor of losses, got {type(losses).__name__}. {advice}")
    if is_distributed_tensor(losses):
        raise LossError(
            "the losses are a distributed tensor (loss_parallel, or outputs that were left so): "
            "let the last layer give whole outputs, ColwiseParallel(output_layouts=Replicate())."
        )
    if losses.ndim != 1:
        kind = "a scalar" if losses.ndim == 0 else f"of shape {tuple(losses.shape)}"
        raise LossError(f"expected a 1-D tensor with one loss per sample; it is {kind}. {advice}")
    if batch is not None and len(losses) != batch:
        flat = len(losses) > batch and len(losses) % batch == 0
        hint = (
            f" If they are {len(losses) // batch} entries for each {noun}, such as tokens, pass "
            f"losses.reshape({batch}, -1).mean(1)."
        )
        raise LossError(
            f"got {len(losses)} losses for a micro-batch of {batch} {noun}s: expected exactly one "
            f"loss per {noun}, in the order of the batch.{hint if flat else ''}"
        )
    if batch is not None and not losses.requires_grad:
        raise LossError(
            "the losses do not depend on any trainable parameter: they were computed under "
            "torch.no_grad() or detached."
        )


def check_scale(losses: Tensor, scale: float) -> None:
    """Refuse a factor that losses of this type cannot be multiplied by."""
    if scale > torch.finfo(losses.dtype).max:
        raise LossError(
            f"loss_scale={scale:g} is more than {losses.dtype} can hold: every gradient would be "
            "infinite. Compute the losses in float32 (F.cross_entropy(logits.float(), ...)), or "
            "choose a smaller power of two."
        )


# -- operations that leak or mix samples, whether or not a parameter is involved -----------------


def check_operation(
    function: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
    path: str,
    is_free_of_data: Callable[[Any], bool] = lambda value: False,
) -> None:
    """Refuse ``function`` if, called like this, it combines samples or records raw data.

    Statistics of what ``is_free_of_data`` (weights that are standardized) tell nothing of samples.
    """
    if found := CHECKED.get(function):
        checker, names = found
        arguments = dict(zip(names, args, strict=False)) | kwargs
        has_statistics = checker in (_check_batch_norm, _check_instance_norm)
        if not (has_statistics and is_free_of_data(arguments.get("input"))):
            checker(arguments, _name_module(path))


def refuse_unusual_layouts(call: Call, tensors: Sequence[Tensor]) -> None:
    """Data without rows that could be mapped to samples."""
    for tensor in tensors:
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise call.refuse(
                f"a tensor that is not dense ({kind}) meets a trainable parameter, and its rows "
                "cannot be mapped to samples",
                "Pass a dense one: to_dense(), or torch.nested.to_padded_tensor() with a mask",
                *tensors,
            )


def check_module(module: nn.Module, path: str) -> None:
    """Refuse a module that mixes samples outside of torch's functions."""
    if isinstance(module, nn.SyncBatchNorm) and module.training:
        _check_batch_norm({"training": True}, _name_module(path))


def check_write(tape: Tape, written: Any, others: Any) -> None:
    """Refuse to write data into what stays in the model: a buffer or a parameter."""
    name_of = tape.provenance.name_in_model
    kept = [name for tensor in tensors_in(written) if (name := name_of(tensor)) is not None]
    # Module.to() writes a parameter to itself.
    is_data = any(
        not tape.is_constant(tensor) and name_of(tensor) is None for tensor in tensors_in(others)
    )
    # A number of Python may have been read from data, as one in an attribute may.
    if kept and (is_data or (tape.reads_numbers and _has_float(others))):
        raise raw_data_refusal(kept[0])


def _has_float(values: Any) -> bool:
    """Whether an argument is a floating-point number, or one is in a list of them."""
    if isinstance(values, (list, tuple)):
        return any(map(_has_float, values))
    return type(values) is float and values not in (0.0, torch.inf, -torch.inf)  # to clear it


def check_replaced_buffers(module: nn.Module, tape: Tape) -> None:
    """Refuse a buffer that was replaced by something computed from data, and put it back."""
    for attribute, buffer in module._buffers.items():
        if buffer is not None and not tape.is_constant(buffer):
            module._buffers[attribute], name = tape.provenance.original(module, attribute)
            raise raw_data_refusal(name)


def raw_data_refusal(name: str) -> UnsupportedOperationError:
    """What is said of a buffer or parameter that would keep something of the samples."""
    return UnsupportedOperationError(
        f"buffer or parameter '{name}' is written from raw data, in the forward or between "
        "engine.batches() and engine.step(): it would leave the model without noise (running "
        "statistics, a memory of samples, an initialization by the first batch). Switch the update "
        "off, keep the statistics fixed, or write what is public after engine.step()."
    )


def unseen_refusal(kind: str, batch: int) -> UnsupportedOperationError:
    """What is said of a model that gets its samples in a way that nobody sees."""
    return UnsupportedOperationError(
        f"the model ({kind}) returns something for each of the "
        f"{batch} samples, and nothing that it is called with holds them: it gets them in "
        "another way (an attribute, a function, an object that cannot be looked into), so that it "
        "cannot be verified that it keeps them apart. Pass the samples as tensors, or as a list "
        "with one entry for each."
    )


def kept_data_refusal(name: str) -> UnsupportedOperationError:
    """What is said of an attribute that keeps something of the samples."""
    return UnsupportedOperationError(
        f"attribute '{name}' keeps something computed from the samples after the forward: it would "
        "enter later batches, and leave with torch.save(model). Do not store in a module, its "
        "class or a global variable what was computed from data (a cache, a running maximum, an "
        "initialization by the first batch); return it, or delete it before the forward ends. (A "
        "tensor in an attribute of a module that every forward computes anew, whatever it was "
        "before, is set to None after every micro-batch.)"
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


_BATCH_NORM = "input weight bias running_mean running_var training momentum eps cudnn_enabled"
_INSTANCE_NORM = "input weight bias running_mean running_var use_input_stats momentum eps"
_EMBEDDING = "weight indices padding_idx scale_grad_by_freq sparse"

# How a function is judged, and the names of its arguments, which native ones do not give.
CHECKED: dict[Callable[..., Any], tuple[Callable[[dict[str, Any], str], None], list[str]]] = {
    torch.batch_norm: (_check_batch_norm, _BATCH_NORM.split()),
    torch.native_batch_norm: (_check_batch_norm, _BATCH_NORM.split()),
    torch.instance_norm: (_check_instance_norm, _INSTANCE_NORM.split()),
    torch.embedding: (_check_embedding, _EMBEDDING.split()),
    **{
        function: (checker, list(inspect.signature(function).parameters))
        for function, checker in (
            (F.batch_norm, _check_batch_norm),
            (F.instance_norm, _check_instance_norm),
            (F.embedding, _check_embedding),
            (F.embedding_bag, _check_embedding),
        )
    },
}


# -- memory that ran out -------------------------------------------------------------------------

_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


def is_exhausted(error: BaseException | None) -> bool:
    """Whether this says that memory ran out; on the CPU torch has no class of error for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def advice(samples: int) -> str:
    """What to try when so many samples were too many."""
    if samples < 2:
        return (
            "memory ran out with a single sample: make the model or the sample smaller, checkpoint "
            "activations, or lower memory_budget="
        )
    return (
        f"memory ran out with {samples} samples at once: try about half, for example "
        f"physical_batch_size={samples // 2}. It changes neither the result nor the privacy"
    )


def note_if_exhausted(error: BaseException | None, samples: int) -> None:
    """Add the advice to an error that is on its way to the user, once."""
    if error is None or not is_exhausted(error):
        return
    if advice(samples) not in getattr(error, "__notes__", ()):
        error.add_note(advice(samples))


# -- of calls that were repeated ------------------------------------------------------------------


def mixed_refusal(kind: str) -> QuietgradError:
    """Others were replaced, and a sample noticed."""
    return SampleMixingError(
        f"samples are mixed: what the model ({kind}) returned for some samples, its shape, "
        "or their gradients, changed when other samples of the batch were replaced. Its forward or "
        "its backward computes something across the batch: statistics (also detached ones), a "
        "length or a set of all samples, a cache of earlier samples, or an operation over the "
        "batch dimension. Compute it per sample, or from public data kept in buffers. (Keep an "
        "argument that holds no samples, but happens to be as long as the batch, in the model. "
        "Outputs that are cut to the longest sample are to be padded to a fixed length: "
        "pad_packed_sequence(..., total_length=).)"
    )


def placed_refusal(kind: str) -> QuietgradError:
    """Samples changed places, and noticed."""
    return SampleMixingError(
        f"what the model ({kind}) returned for samples, or their gradients, depends on their place "
        "in the batch: it changed when samples changed places. Removing one sample would then "
        "change the gradients of all behind it. Something is indexed by the batch dimension; a "
        "sequence-first layer (a positional encoding, say) in a batch-first model is the usual "
        "cause."
    )


def counted_refusal(kind: str) -> QuietgradError:
    """Others were left out, and a sample noticed."""
    return SampleMixingError(
        f"what the model ({kind}) returned for samples, or their gradients, depends on the number "
        "of samples: with some left out, it changed for the others. Something is divided or scaled "
        "by the size of the batch, also in a backward pass. Use a constant instead."
    )


def sized_refusal(kind: str) -> QuietgradError:
    """Others got fewer or more records, and a unit noticed."""
    return SampleMixingError(
        f"what the model ({kind}) returned for the records of a unit, or their gradients, depends "
        "on how many records other units have: they are padded to the largest unit and the padding "
        "counts, or something is scaled by a number of all. Leave padded places out (a mask, or a "
        "sum by engine.record_owners), and divide by the unit's own number."
    )


def broken_refusal(kind: str, error: Exception) -> QuietgradError:
    """The model does not run with replaced samples."""
    return UnsupportedOperationError(
        f"the model ({kind}) does not run when some samples of the batch are replaced by copies of "
        f"others ({type(error).__name__}: {error}), so that it cannot be verified that it keeps "
        "samples apart. It requires something of all samples together. Remove what it asserts "
        "about the batch (an order), and keep arguments that hold no samples in the model."
    )


def unrepeatable_refusal(kind: str) -> QuietgradError:
    """The model gave something else with the same samples."""
    return UnsupportedOperationError(
        f"the model ({kind}) gave something else when its forward was repeated with the same "
        "samples, weights, attributes, buffers and random draws, so that it cannot be verified "
        "that it keeps samples apart. It keeps something outside of its modules between calls (a "
        "file, an iterator, an object that cannot be looked into), or it draws from a generator "
        "that cannot be put back (one made anew in each call, the operating system's). Keep state "
        "in attributes of modules, and draw from torch's own generator."
    )


def nothing_to_compare_refusal(kind: str) -> QuietgradError:
    """Nothing tells the samples apart."""
    return UnsupportedOperationError(
        f"the model ({kind}) is called with samples and returns nothing in which they can be told "
        "apart, so that it cannot be verified that it keeps them apart: its results leave it in "
        "another way (an attribute, a closure), or as rows of all samples one after the other. "
        "Return them from the forward, as tensors with a dimension for the samples or as a list "
        "with one entry for each."
    )


def reordered_refusal(kind: str) -> QuietgradError:
    """Rows or losses are not in the order of the samples."""
    return SampleMixingError(
        f"the model ({kind}) is called with rows of several samples, and the losses depend on them "
        "in another order than one sample after the other: losses[i] must be computed of the rows "
        "of sample i. Join samples in their order, and compute the losses in that order."
    )
