"""Operations without a rule: their vector-Jacobian product, one sample at a time.

The gradient of a sample's loss with respect to an operation's output is zero but for the rows of
that sample; probes have established which rows these are. So a sample's gradient of a parameter is
the operation's own vector-Jacobian product with all other rows set to zero. This is exact for any
differentiable operation, whatever it does with its arguments, and costs one backward pass of the
operation for each sample. One of torch's own that gives the same rows for a sample alone is run on
each sample by itself, which costs no more than one pass in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from quietgrad.capture.call import Call
from quietgrad.capture.compare import has_digits
from quietgrad.capture.draws import RandomState, with_generators
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import HiddenFunction
from quietgrad.capture.owners import OwnedLayout
from quietgrad.errors import UnsupportedOperationError
from quietgrad.factors.base import (
    Dense,
    Factor,
    Verdict,
    all_of,
    any_of,
    content_of,
    verdict_of,
)

_FLOATS_AT_ONCE = 2**22
_AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the same operation, run twice

REMEDY = (
    "Freeze the parameter (requires_grad_(False)), or express it with supported operations: "
    "linear, matmul, einsum, convolutions, embeddings, indexing, normalizations, and elementwise "
    "or broadcast arithmetic"
)


def run_per_sample(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on parameters and data for which there is no rule."""
    _refuse_unfit(call, args, kwargs)
    if call.writes_in_place:
        before = args[0].clone()  # what is written to is needed as it was
        result = _run(call, _OutOfPlace(call.function), (before, *args[1:]), kwargs)
        return args[0].copy_(result)
    return _run(call, call.function, args, kwargs)


@dataclass(frozen=True)
class _OutOfPlace:
    """A function that would write to its first argument, on a copy of that."""

    function: Callable[..., Any]

    def __call__(self, written: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.function(written.clone(), *args, **kwargs)


def _run(
    call: Call, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    leaves, structure = tree_flatten((args, kwargs))
    leaves = [call.own_copies(leaf) for leaf in leaves]
    values = [call.value(leaf) for leaf in leaves]
    devices = with_generators(value for value in values if isinstance(value, Tensor))
    before = RandomState(devices, foreign=False)
    inner_args, inner_kwargs = tree_unflatten(values, structure)
    result = function(*inner_args, **inner_kwargs)
    managed = [place for place, leaf in enumerate(leaves) if call.is_managed(leaf)]
    if not managed:
        return result
    if before.find_moved():
        raise call.refuse("it draws random numbers, and no rule captures it", REMEDY, *leaves)
    outputs, shape = tree_flatten(result)
    if not any(isinstance(output, Tensor) for output in outputs):
        raise call.refuse(
            "no rule captures what is computed here from parameter and data", REMEDY, *leaves
        )
    call.prefix = "per-sample fallback: "
    places = tuple(place for place, value in enumerate(values) if isinstance(value, Tensor))
    tensors = [values[place] for place in places]
    # Tensors are kept by autograd, which may drop and recompute them (checkpointing).
    rest = tuple(None if isinstance(value, Tensor) else value for value in values)
    shared = tuple(places.index(place) for place in managed)
    operation = _Operation(function, rest, structure, places, shared, _autocast_of(tensors))
    for number, output in enumerate(outputs):
        if not isinstance(output, Tensor) or not has_digits(output):
            continue
        own = output.clone()  # the operation may need its output as it is, or have returned a view
        content = content_of(own)
        uses = [(leaves[p], _vjp(call, leaves, operation, p, number, content)) for p in managed]
        label = str(number) if number else ""
        outputs[number] = call.watch(
            own, uses, saved=tensors, dims=own.ndim, label=label, takes_complex=True
        )
    return tree_unflatten(outputs, shape)


def _refuse_unfit(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    if call.writes_in_place and (not args or call.is_managed(args[0])):
        raise call.refuse(
            "a trainable parameter is changed in place", "Use the out-of-place operation", *tensors
        )
    if call.name == "__set__" or kwargs.get("out") is not None:
        raise call.refuse(
            "no rule captures this operation on a trainable parameter together with data",
            REMEDY,
            *tensors,
        )
    if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors):
        raise call.refuse("no rule captures it with sparse or nested tensors", REMEDY, *tensors)


@dataclass(frozen=True)
class _Operation:
    """A function with its arguments; the tensors among them are put in when it runs.

    Attributes:
        function: what is run.
        values: its arguments and the values of keywords in a row, None for tensors.
        structure: how they are arranged.
        places: of tensors among the values.
        shared: which of the tensors are parameters, and not data.
        precision: of autocast, if it is on.
    """

    function: Callable[..., Any]
    values: tuple[Any, ...]
    structure: Any
    places: tuple[int, ...]
    shared: tuple[int, ...]
    precision: tuple[str, torch.dtype] | None

    @property
    def is_torchs_own(self) -> bool:
        """Whether it is no function of the user's, which may do anything."""
        return not isinstance(self.function, HiddenFunction)

    def run(self, tensors: Sequence[Tensor], number: int) -> Tensor:
        """Output ``number`` for these tensors."""
        values = list(self.values)
        for place, tensor in zip(self.places, tensors, strict=True):
            values[place] = tensor
        args, kwargs = tree_unflatten(values, self.structure)
        with torch.enable_grad(), _as_then(self.precision):
            output: Tensor = tree_flatten(self.function(*args, **kwargs))[0][number]
        return output


def _autocast_of(tensors: Sequence[Tensor]) -> tuple[str, torch.dtype] | None:
    """The kind of device and the type that operations are computed in, under autocast."""
    kind = tensors[0].device.type
    return (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None


def _as_then(precision: tuple[str, torch.dtype] | None) -> AbstractContextManager[Any]:
    """In the precision of the forward pass; the backward pass runs outside of autocast."""
    if precision is None:
        return nullcontext()
    kind, dtype = precision
    return torch.autocast(kind, dtype, cache_enabled=False)


def _vjp(
    call: Call,
    leaves: Sequence[Any],
    operation: _Operation,
    place: int,
    number: int,
    content: Tensor,
) -> Callable[..., Factor]:
    unlike = call.refuse(
        "run again on the same arguments it does not give the same output, so that the gradient "
        "of each sample cannot be computed",
        "Make it depend on nothing but its arguments, or write it with torch's own operations",
        *leaves,
    )
    failed = call.refuse(
        "torch cannot differentiate it with respect to the parameter", REMEDY, *leaves
    )
    return partial(
        _factor,
        operation=operation,
        place=operation.places.index(place),
        number=number,
        content=content,
        errors=(unlike, failed),
    )


def _factor(
    layout: Layout,
    grad: Tensor,
    *tensors: Tensor,
    operation: _Operation,
    place: int,
    number: int,
    content: Tensor,
    errors: tuple[UnsupportedOperationError, UnsupportedOperationError],
) -> Factor:
    """The gradient of the tensor at ``place``, through output ``number``."""
    unlike, failed = errors
    given = [tensor.detach() for tensor in tensors]
    given[place] = source = given[place].clone().requires_grad_()
    try:
        output = operation.run(given, number)
    except RuntimeError as error:
        raise failed from error
    is_alike = _is_close(content_of(output), content)
    if is_alike is False:
        raise unlike
    alone = _pull_alone(operation, given, place, number, output, layout, grad)
    if not is_alike:  # on a device all verdicts are read here
        raise unlike
    if not output.requires_grad:
        return Dense(source.new_zeros(layout.batch, *source.shape).detach())
    if alone is not None and alone.is_exact:
        return Dense(alone.gradients)
    gradients = _pull_rows(output, source, layout, grad, failed)
    is_whole = layout.split(output.isfinite() & grad.isfinite(), 0).all(1)
    spoiled = is_whole & ~_are_finite(gradients)
    if spoiled.any():
        # Zero times what is not a number is none either: others must not spoil these samples.
        given = [
            t if i in (place, *operation.shared) or not has_digits(t) else _fill(t)
            for i, t in enumerate(given)
        ]
        filled = operation.run(given, number)
        own = layout.split(filled.detach(), 0)[spoiled], layout.split(output.detach(), 0)[spoiled]
        if not _is_equal(*own):
            raise unlike
        gradients = _pull_rows(filled, source, layout, grad.nan_to_num(0.0, 0.0, 0.0), failed)
        gradients[~is_whole] = torch.nan
    return Dense(gradients)


def _pull_rows(
    output: Tensor,
    source: Tensor,
    layout: Layout,
    grad: Tensor,
    failed: UnsupportedOperationError,
) -> Tensor:
    """The gradient of each sample, of whose rows alone the gradient is pulled back."""
    at_once = max(1, _FLOATS_AT_ONCE // max(1, grad.numel()))
    parts = [
        _pull(output, source, _rows_of_each(layout, grad, range(start, start + at_once)), failed)
        for start in range(0, layout.batch, at_once)
    ]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _are_finite(gradients: Tensor) -> Tensor:
    return gradients.reshape(len(gradients), -1).isfinite().all(1)


def _fill(tensor: Tensor) -> Tensor:
    """With ones for what is not finite."""
    return torch.where(tensor.isfinite(), tensor, torch.ones_like(tensor))


def _pull(
    output: Tensor, source: Tensor, cotangents: Tensor, failed: UnsupportedOperationError
) -> Tensor:
    """All at once where every operation on the way can be batched, otherwise one by one."""

    def pull(cotangent: Tensor, *, batched: bool) -> Tensor:
        (gradient,) = torch.autograd.grad(
            output,
            source,
            cotangent.to(output.dtype),
            retain_graph=True,
            is_grads_batched=batched,
            allow_unused=True,
        )
        lead = cotangent.shape[:1] if batched else ()
        return source.new_zeros(*lead, *source.shape) if gradient is None else gradient

    try:
        return pull(cotangents, batched=True)
    except RuntimeError:
        try:
            return torch.stack([pull(cotangent, batched=False) for cotangent in cotangents])
        except RuntimeError as error:
            raise failed from error


class _Alone(NamedTuple):
    """Gradients of samples that were run one by one, and whether that is the same."""

    gradients: Tensor
    is_exact: Verdict


def _pull_alone(
    operation: _Operation,
    given: Sequence[Tensor],
    place: int,
    number: int,
    output: Tensor,
    layout: Layout,
    grad: Tensor,
) -> _Alone | None:
    """The gradients of samples that are run one by one; None if that is not the same.

    Data are tensors with as many rows as the output. The rows of every sample must be those that it
    has in the batch, and all gradients together must be that of the batch.
    """
    rows = len(grad) if grad.ndim else 0
    is_fit = operation.is_torchs_own and layout == Layout(layout.batch) and layout.batch > 1
    if not is_fit or rows % layout.batch or not output.requires_grad:
        return None
    source, each = given[place], rows // layout.batch
    shared = (*operation.shared, place)
    gradients, verdicts = [], list[Verdict]()
    try:
        for start in range(0, rows, each):
            own = slice(start, start + each)
            part = operation.run(
                [
                    t[own] if i not in shared and t.ndim and len(t) == rows else t
                    for i, t in enumerate(given)
                ],
                number,
            )
            verdicts.append(_is_equal(part.detach(), output.detach()[own]))
            if verdicts[-1] is False:
                return None
            gradients.append(torch.autograd.grad(part, source, grad[own].to(part.dtype))[0])
        (total,) = torch.autograd.grad(output, source, grad.to(output.dtype), retain_graph=True)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None  # sizes of the whole batch among the arguments, or no gradient at all
    stacked = torch.stack(gradients)
    # With a sample that is not finite there is nothing to compare with.
    is_broken = verdict_of(~total.isfinite().all())
    is_sum = _is_equal(stacked.sum(0), total, stacked.abs().sum(0))
    return _Alone(stacked, all_of((*verdicts, any_of((is_broken, is_sum)))))


def _is_equal(found: Tensor, expected: Tensor, sizes: Tensor | None = None) -> Verdict:
    """Up to rounding, in terms of the largest of ``sizes``; what is not finite is so in both."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    finite = expected.isfinite()
    sizes = (expected.abs() if sizes is None else sizes).where(finite, 0.0)
    allowed = _AGREEMENT.get(sizes.dtype, 0.05) * (sizes.max() if sizes.numel() else 0.0)
    return verdict_of(((found - expected).abs() <= allowed).where(finite, ~found.isfinite()).all())


def _rows_of_each(layout: Layout, grad: Tensor, samples: range) -> Tensor:
    """For each of some samples the gradient with all rows of others set to zero."""
    if layout.batch == 1:
        return grad.unsqueeze(0)
    chosen = torch.arange(samples.start, min(samples.stop, layout.batch), device=grad.device)
    is_own = layout.owner_of(grad) == chosen.view(-1, *[1] * grad.ndim)
    if isinstance(layout, OwnedLayout):
        grad = layout.clear(grad)
    # Not a product: rows of a sample that is not finite must not reach others.
    return torch.where(is_own, grad, grad.new_zeros(()))


def _is_close(found: Tensor, expected: Tensor) -> Verdict:
    """Whether sums and norms differ by no more than a share of the norm, or are not finite both."""
    allowed = _AGREEMENT.get(found.dtype, 0.05) * expected[1]
    is_close = ((found - expected).abs() <= allowed).all()
    is_same_kind = found.isfinite().eq(expected.isfinite()).all()
    return verdict_of(torch.where(expected.isfinite().all(), is_close, is_same_kind))
