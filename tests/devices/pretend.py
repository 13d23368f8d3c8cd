"""A pretend accelerator: tensors on another device, with real numbers on the CPU behind them.

Operations on tensors of different devices raise, as they do on real ones. Each device has a
generator of its own. What makes the host wait for the device (a synchronization) and what would be
a kernel (a launch) is counted, with the line of quietgrad that asked for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "pretend"
DEVICES = 2

# What needs a number on the host, or a shape that depends on numbers.
_WAITING = frozenset(
    "_local_scalar_dense item equal is_nonzero nonzero masked_select allclose unique_dim _unique "
    "_unique2 unique_consecutive unique_dim_consecutive bincount histc".split()
)
# What only makes another view of the same numbers, or memory without any.
_FREE = frozenset(
    "view _unsafe_view reshape alias detach expand transpose t permute slice select unsqueeze "
    "squeeze as_strided split split_with_sizes chunk unbind diagonal view_as_real view_as_complex "
    "_reshape_alias narrow unfold lift_fresh empty empty_like empty_strided new_empty "
    "new_empty_strided resize_ set_ _conj _neg_view movedim unflatten is_pinned sym_size sym_stride"
    " sym_numel stride size is_same_size record_stream squeeze_ unsqueeze_ transpose_ t_".split()
)
_BETWEEN_DEVICES = frozenset("copy_ _to_copy _copy_from set_".split())
_INDEXING = frozenset("index index_put index_put_ _index_put_impl_ _unsafe_index".split())


@dataclass
class Counts:
    """What was asked of the devices.

    Attributes:
        syncs: how often the host waited, by operation and line.
        launches: kernels, by operation and line.
        copied: bytes from a device to the host.
    """

    syncs: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: Counter[tuple[str, str]] = field(default_factory=Counter)
    copied: int = 0

    @property
    def sync_count(self) -> int:
        return self.syncs.total()

    @property
    def launch_count(self) -> int:
        return self.launches.total()

    def by_line(self, what: Counter[tuple[str, str]]) -> str:
        """A table for failures, most frequent first."""
        return "\n".join(f"{n:5d} {name} at {line}" for (name, line), n in what.most_common(30))


_counts: list[Counts] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what is asked of the devices."""
    _counts.append(Counts())
    try:
        yield _counts[-1]
    finally:
        _counts.pop()


class PretendTensor(Tensor):
    """A tensor on a pretend device; ``raw`` has its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, device: torch.device) -> PretendTensor:
        made: PretendTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=device,
        )
        made.raw = raw
        return made

    def __repr__(self, **_: Any) -> str:
        return f"{self.raw!r} on {self.device}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied: Tensor = PretendTensor(self.raw.detach().clone(), self.device)
            is_parameter = isinstance(self, nn.Parameter)
            copied = nn.Parameter(copied) if is_parameter else copied
            memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def _set_data(self, value: PretendTensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.raw = value.raw

    data = property(Tensor.data.__get__, _set_data)  # type: ignore[attr-defined, assignment]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class _DeviceModule(backend_registration._DummyBackendModule):
    """What torch asks a backend for: its generators, and what autocast takes."""

    generators = tuple(torch.Generator() for _ in range(DEVICES))
    _initialized = True  # otherwise checkpointing does not keep generators
    _current = 0

    def _generator(self, device: Any = None) -> torch.Generator:
        if device in (None, -1):
            return self.generators[self._current]
        place = torch.device(NAME, device) if isinstance(device, int) else torch.device(device)
        return self.generators[place.index or 0]

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        """In here it is the current one."""
        before, self._current = self._current, index
        try:
            yield
        finally:
            self._current = before

    def device_count(self) -> int:
        return DEVICES

    def current_device(self) -> int:
        return self._current

    def is_initialized(self) -> bool:
        return True

    def manual_seed(self, seed: int) -> None:
        self._generator().manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return self._generator(device).get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        self._generator(device).set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def is_autocast_available(self) -> bool:
        return True

    def synchronize(self, device: Any = None) -> None:
        pass


class _Generator(torch.Generator):
    """Of a pretend device it is one of the CPU: torch lets no backend in Python make its own."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        is_pretend = torch.device(device).type == NAME
        return super().__new__(cls, "cpu" if is_pretend else device)


@cache
def register() -> _DeviceModule:
    """Make the device known to torch; once in a process, for good."""
    module = _DeviceModule()
    backend_registration._setup_privateuseone_for_python_backend(NAME, module)
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _factory(torch.empty), "PrivateUse1")
    library.impl("empty_strided", _factory(torch.empty_strided), "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    # Torch makes these without entries, and lets kernels resize them: here that would not be seen.
    for name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m"):
        library.impl(name, _factory(getattr(torch, name.partition(".")[0])), "PrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _AUTOCAST)
    for name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d"):
        library.impl(name, _in_lower_precision(getattr(torch.ops.aten, name).default), _AUTOCAST)
    torch.Generator = _Generator  # type: ignore[misc]
    module.libraries = library, others  # type: ignore[attr-defined]  # undone with the objects
    return module


_AUTOCAST = "AutocastPrivateUse1"


def _in_lower_precision(operation: Any) -> Callable[..., Tensor]:
    """As autocast does it on other devices; torch has it for none that is written in Python."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _AUTOCAST))

    def run(*args: Any, **kwargs: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(NAME)

        def lower(leaf: Any) -> Any:
            is_wide = isinstance(leaf, Tensor) and leaf.dtype == torch.float32
            return leaf.to(dtype) if is_wide else leaf

        with torch._C._ExcludeDispatchKeyGuard(keys):
            output: Tensor = operation(*tree_map(lower, args), **kwargs)
        return output

    return run


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What ``torch.tensor(..., device=...)`` ends with."""
    raw = [each.raw if isinstance(each, PretendTensor) else each for each in (source, target)]
    raw[1].copy_(raw[0])
    return target


def _factory(function: Any) -> Callable[..., Tensor]:
    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
        place = torch.device(device or NAME)
        own = torch.device(NAME, place.index or 0)
        if _counts and function.__name__ not in _FREE:
            _counts[-1].launches[function.__name__, _line()] += 1
        return PretendTensor(function(*args, device="cpu", **kwargs), own)

    return make


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.split("::")[1]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    own = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    _refuse_several_devices(name, args, tensors, own)
    asked = kwargs.get("device")
    device = own[0].device if asked is None else torch.device(asked)
    if name in ("index_put_", "copy_", "_copy_from"):
        device = args[0 if name != "_copy_from" else 1].device
    if device.type == NAME and device.index is None:
        device = torch.device(NAME, 0)
    if _counts:
        _note(func, name, args, kwargs, device)
    inner = {**kwargs, "device": torch.device("cpu")} if asked is not None else kwargs
    raw_args, raw_kwargs = tree_map(
        lambda leaf: leaf.raw if isinstance(leaf, PretendTensor) else leaf, (args, inner)
    )
    with _drawing(func, device):
        output = func(*raw_args, **raw_kwargs)
    known = {id(tensor.raw): tensor for tensor in own}

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, PretendTensor):
            return leaf
        if id(leaf) in known:  # it was written in place
            return known[id(leaf)]
        if device.type != NAME:
            return leaf
        # Torch cannot be told that a tensor is conjugated or negated when its numbers are read.
        return PretendTensor(leaf.resolve_conj().resolve_neg(), device)

    return tree_map(wrap, output)


def _refuse_several_devices(
    name: str, args: tuple[Any, ...], tensors: list[Tensor], own: list[PretendTensor]
) -> None:
    devices = {t.device for t in own}
    # Single numbers may stay on the host, and indices are copied.
    others = [t for t in tensors if not isinstance(t, PretendTensor) and t.ndim]
    if name in _INDEXING:
        others = [t for t in others if t is args[0]]
    if name not in _BETWEEN_DEVICES and (len(devices) > 1 or (devices and others)):
        places = sorted({*map(str, devices), *(str(t.device) for t in others)})
        raise RuntimeError(f"Expected all tensors to be on the same device, found {places}: {name}")


@contextmanager
def _drawing(func: Any, device: torch.device) -> Iterator[None]:
    """Draws of a device come from its own generator."""
    if torch.Tag.nondeterministic_seeded not in func.tags or device.type != NAME:
        yield
        return
    generator, state = register()._generator(device), torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
        generator.set_state(torch.get_rng_state())
    finally:
        torch.set_rng_state(state)


def _note(func: Any, name: str, args: Any, kwargs: Any, device: torch.device) -> None:
    counts, line = _counts[-1], _line()
    if name in ("_to_copy", "copy_", "_copy_from"):
        source = args[1] if name == "copy_" else args[0]
        is_out, is_in = isinstance(source, PretendTensor), device.type == NAME
        if is_out and not is_in:
            counts.syncs[f"{name} to the host", line] += 1
            counts.copied += source.numel() * source.element_size()
        elif is_in and not is_out:
            # A single number is an argument of a kernel.
            if source.ndim and not _is_non_blocking(name, args, kwargs) and not _is_pinned(source):
                counts.syncs[f"{name} from the host", line] += 1
            counts.launches[name, line] += 1
        elif is_in:
            counts.launches[name, line] += 1
        return
    if name in _WAITING or _waits(func, name, args, kwargs):
        counts.syncs[name, line] += 1
    if name not in _FREE:
        counts.launches[name, line] += 1


def _is_non_blocking(name: str, args: Any, kwargs: Any) -> bool:
    """Torch hands it on to ``copy_`` by its place, whichever way it was given."""
    return bool(kwargs.get("non_blocking") or (name != "_to_copy" and args[2:3] == (True,)))


def _is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor, "is_pinned_here", False)


def _waits(func: Any, name: str, args: Any, kwargs: Any) -> bool:
    if name in _INDEXING:
        indices = [index for index in args[1] if isinstance(index, Tensor)]
        is_mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        return is_mask or any(not isinstance(index, PretendTensor) for index in indices)
    if name == "repeat_interleave":
        return "Tensor" in func._overloadname and kwargs.get("output_size") is None
    return False


def _line() -> str:
    """The innermost line of quietgrad that led here; else the innermost one of anybody."""
    frame, first = sys._getframe(3), ""
    while frame is not None:
        path = frame.f_code.co_filename
        if "/src/quietgrad/" in path:
            return f"{path.split('/src/quietgrad/')[-1]}:{frame.f_lineno}"
        if not first and "/torch/" not in path and path != __file__:
            first = f"{path.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return first or "torch"


@contextmanager
def noise_of_the_host() -> Iterator[None]:
    """With a seed, noise is the same on all devices, so that runs can be compared."""
    from quietgrad import noise

    original = noise.release

    def release(totals: Any, keys: Any, on_host: Any, on_device: Any) -> list[Tensor]:
        here = original([total.cpu() for total in totals], keys, on_host, on_device)
        return [noisy.to(total.device) for noisy, total in zip(here, totals, strict=True)]

    noise.release = release
    try:
        yield
    finally:
        noise.release = original
