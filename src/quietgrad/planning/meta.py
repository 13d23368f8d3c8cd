"""Runs of a model on the meta device, where tensors have shapes and no numbers.

Models of any size can be run there. What follows from constants alone (positions, masks, buffers,
the batch that is given) is computed beside it in real numbers, because models ask about it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from quietgrad import reduction
from quietgrad.capture.compare import map_tensors
from quietgrad.capture.draws import preserve_randomness
from quietgrad.errors import QuietgradError, UnsupportedOperationError
from quietgrad.factors import base, outer
from quietgrad.factors.base import doubts_noted
from quietgrad.inspection.subject import copy_model

aten = torch.ops.aten
META = torch.device("meta")

# What is larger is no mask or list of positions that a model would ask about.
_MOST_VALUES = 1 << 24


def is_meta(tensor: object) -> bool:
    """Whether it has a shape and no numbers."""
    return isinstance(tensor, Tensor) and tensor.device.type == "meta"


class KnownValues(TorchDispatchMode):
    """Keeps the numbers of meta tensors that follow from constants, and answers questions on them.

    A question about anything else ends the run: what a model does then depends on its data.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def note(self, tensor: Tensor, value: Tensor) -> None:
        """A meta tensor has these numbers."""
        if value.numel() > _MOST_VALUES:
            return
        place = id(tensor)

        def forget(gone: weakref.ref[Tensor]) -> None:
            if self._known.get(place, (None,))[0] is gone:
                del self._known[place]

        self._known[place] = weakref.ref(tensor, forget), value

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        is_known = torch.Tag.nondeterministic_seeded not in func.tags and all(
            self._value_of(each) is not None for each in given
        )
        made: Any = _NOTHING if _is_for_host(func, kwargs) and any(map(is_meta, given)) else None
        if made is None:
            try:
                made = func(*args, **kwargs)
            except (RuntimeError, NotImplementedError):
                if torch.Tag.dynamic_output_shape not in func.tags:
                    raise
                made = _NOTHING  # its size follows from numbers
        if made is _NOTHING:
            if not is_known:
                sizes = ", ".join(str(tuple(each.shape)) for each in given)
                raise UnsupportedOperationError(
                    f"{func.name()} asks for numbers of a tensor of shape {sizes}{_place()}, and "
                    "there are none on the meta device, where ranks are planned: what the model "
                    "does depends on its data or its weights. If it is data (masks, lengths), pass "
                    "the batch on the CPU; if it is weights (routing), qg.plan and `quietgrad "
                    "plan` without --world run the model itself"
                )
            value = func(*tree_map(self._as_real, args), **tree_map(self._as_real, dict(kwargs)))
            return value if _is_for_host(func, kwargs) else tree_map(self._without_numbers, value)
        outputs = [each for each in tree_leaves(made) if isinstance(each, Tensor)]
        if is_known and all(is_meta(each) and each.numel() <= _MOST_VALUES for each in outputs):
            values = func(*tree_map(self._as_real, args), **tree_map(self._as_real, dict(kwargs)))
            for output, value in zip(outputs, tree_leaves(values), strict=False):
                self.note(output, value)
        elif func._schema.is_mutable:
            self._forget(outputs)
        return made

    def _forget(self, written: Iterable[Tensor]) -> None:
        memories = {each.untyped_storage()._cdata for each in written}
        for place, (tensor, _) in list(self._known.items()):
            held = tensor()
            if held is None or held.untyped_storage()._cdata in memories:
                self._known.pop(place, None)

    def _value_of(self, tensor: Tensor) -> Tensor | None:
        if not is_meta(tensor):
            return tensor
        known = self._known.get(id(tensor))
        return None if known is None or known[0]() is not tensor else known[1]

    def _as_real(self, each: Any) -> Any:
        if isinstance(each, Tensor):
            return self._value_of(each)
        return torch.device("cpu") if isinstance(each, torch.device) else each

    def _without_numbers(self, each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        found = torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=META)
        self.note(found, each)
        return found


_QUESTIONS = frozenset(
    {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default}
)


_NOTHING = object()


def _is_for_host(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether what comes out are numbers."""
    device = kwargs.get("device")
    return func in _QUESTIONS or (device is not None and torch.device(device).type == "cpu")


def _place() -> str:
    """The class of the module whose forward runs."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        names = frame.f_code.co_varnames[:1]
        own = frame.f_locals.get(names[0]) if names else None
        if isinstance(own, nn.Module) and frame.f_code.co_name == "forward":
            return f" in the forward of a {type(own).__name__}"
        frame = frame.f_back
    return ""


class FusedAttention(TorchFunctionMode):
    """Attention as kernels compute it: tables of all pairs of positions are not kept.

    On the meta device torch would take it apart.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    is_usual = query.ndim == key.ndim == value.ndim == 4 and query.shape[-1] == value.shape[-1]
    needs_gradient = attn_mask is not None and attn_mask.requires_grad
    if not (is_meta(query) and is_usual) or dropout_p > 0 or needs_gradient:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if enable_gqa and key.shape[1] != query.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    attend = aten._scaled_dot_product_flash_attention_for_cpu
    return attend(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


class FlopCounter(TorchDispatchMode):
    """Counts floating-point operations of matrix products, convolutions and attention.

    A multiplication with the addition behind it counts as two.

    Attributes:
        total: so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        kind = func.overloadpacket
        if kind is aten._scaled_dot_product_flash_attention_for_cpu:
            query, key, value = args[:3]
            self.total += sdpa_flop_count(query.shape, key.shape, value.shape)
        elif kind is aten._scaled_dot_product_flash_attention_for_cpu_backward:
            shapes = [each.shape for each in args[:4]]
            self.total += sdpa_backward_flop_count(*shapes)
        else:
            kind = getattr(aten, kind.__name__.removesuffix("_"), kind)  # addmm_ counts as addmm
            if kind in flop_registry:
                self.total += flop_registry[kind](*args, **kwargs, out_val=made)
        return made


_BY_DEVICE = (base.WIDENED_FLOATS, outer.MOST_BLOCKS, reduction.WAITING_BYTES)
"""What is done otherwise on some types of devices."""


@contextmanager
def as_if_on(device: str) -> Iterator[None]:
    """In here the meta device is treated as one of this type."""
    known = [table for table in _BY_DEVICE if device in table]
    for table in known:
        table["meta"] = table[device]
    try:
        yield
    finally:
        for table in known:
            del table["meta"]


def without_numbers(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy of a model on the meta device, which takes no memory; tied parameters stay tied.

    Args:
        model: on any device.
        dtype: which its floating-point parameters and buffers are to have; as they are if None.
    """
    held = [*model.parameters(), *model.buffers()]
    copies: dict[int, Any] = {}
    for each in held:
        kind = dtype if dtype is not None and each.is_floating_point() else each.dtype
        bare = torch.empty_strided(each.shape, each.stride(), dtype=kind, device=META)
        is_trained = each.requires_grad
        is_parameter = isinstance(each, nn.Parameter)
        copies[id(each)] = nn.Parameter(bare, is_trained) if is_parameter else bare
    return copy_model(model, copies)


@contextmanager
def running_on_meta(model: nn.Module, original: nn.Module) -> Iterator[KnownValues]:
    """In here the copy of a model can be run.

    Raises:
        UnsupportedOperationError: it cannot, and why.
    """
    values = KnownValues()
    sources = dict(original.named_buffers())
    for name, buffer in model.named_buffers():
        if not is_meta(sources[name]):
            values.note(buffer, sources[name].detach().to("cpu", buffer.dtype))
    try:
        with preserve_randomness(), FusedAttention(), values, doubts_noted():
            yield values
    except QuietgradError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        if not _is_of_meta(error):
            raise
        raise UnsupportedOperationError(
            f"the model cannot be traced without numbers (on the meta device): {error}. Without "
            "--world (qg.plan) it is traced on the CPU"
        ) from error


def _is_of_meta(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("meta", "storage", "data pointer", "fake", "device"))


def batch_on_meta(batch: Any, values: KnownValues) -> Any:
    """The batch without its numbers, which stay known where it had some."""

    def bare(tensor: Tensor) -> Tensor:
        if is_meta(tensor):
            return tensor
        found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
        if tensor.requires_grad:
            found.requires_grad_()
        with suppress(RuntimeError):  # of a device that cannot be read
            values.note(found, tensor.detach().cpu())
        return found

    return map_tensors(bare, batch)
