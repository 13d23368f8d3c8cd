"""The contract every factored per-sample gradient keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, Self, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

if TYPE_CHECKING:
    from quietgrad.factors.membership import Membership

# Errors of a sum, in units of epsilon times the magnitude of its parts; and the share of that
# magnitude below which a norm is small enough for them to matter.
_ROUNDING_ERRORS, _SMALL = 4.0, 0.03

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Cost:
    """Estimated work of one way to evaluate a factor: multiply-adds and extra floats held."""

    flops: float
    floats: float


def is_autocast_on(kind: str) -> bool:
    """Whether operations on devices of this type are computed in another precision."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


@contextmanager
def without_autocast() -> Iterator[None]:
    """What is computed in here has the precision of its operands, also inside of an autocast.

    A user's block may end only after ``backward``; norms and sums are not to be rounded to half.
    """
    with ExitStack() as stack:
        for kind in {"cpu", *_accelerators()}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def ignoring_autocast(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """A function that runs :func:`without_autocast`; mostly there is none to leave."""

    @wraps(function)
    def run(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        if not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        with without_autocast():
            return function(*args, **kwargs)

    return run


@cache
def _accelerators() -> tuple[str, ...]:
    found = torch.accelerator.current_accelerator()
    return () if found is None else (found.type,)


# -- verdicts -------------------------------------------------------------------------------------

# On the CPU a verdict is a bool, known at once. Elsewhere it is read later, with all others that
# have been asked for by then, so that the host waits once for many.


class Later:
    """A truth value on a device, or what follows from some; read when it is first asked for."""

    def __init__(self, source: Tensor | Callable[[], object]) -> None:
        self._source: Tensor | Callable[[], object] | bool = source
        if isinstance(source, Tensor):
            with _lock:
                _unread.add(self)

    def __bool__(self) -> bool:
        if isinstance(self._source, Tensor):
            _read_all()
        if not isinstance(self._source, bool):
            # A tensor that is left is one that another thread is reading.
            self._source = bool(self._source() if callable(self._source) else self._source)
        return self._source


Verdict = bool | Later
"""A truth value that is known, or will be."""

_HOSTS = frozenset({"cpu"})
_unread: WeakSet[Later] = WeakSet()
_lock = Lock()


def _read_all() -> None:
    with _lock:
        waiting = list(_unread)
        _unread.clear()
    by_device: dict[torch.device, list[tuple[Later, Tensor]]] = {}
    for each in waiting:
        if isinstance(each._source, Tensor):
            by_device.setdefault(each._source.device, []).append((each, each._source))
    for some in by_device.values():
        values = torch.stack([source for _, source in some]).tolist()
        for (each, _), value in zip(some, values, strict=True):
            each._source = bool(value)


def is_at_hand(tensor: Tensor) -> bool:
    """Whether nobody has to wait for its numbers."""
    return tensor.device.type in _HOSTS


def verdict_of(value: Tensor) -> Verdict:
    """What a tensor of one truth value says."""
    return bool(value) if is_at_hand(value) else Later(value.detach().reshape(()).bool())


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Whether all are true; none is asked for behind one that is known to be false."""
    return negated(any_of(map(negated, verdicts)))


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Whether one is true; none is asked for behind one that is known to be."""
    left = []
    for each in verdicts:
        if each is True:
            return True
        if each is not False:
            left.append(each)
    return Later(lambda: any(left)) if left else False


def negated(verdict: Verdict) -> Verdict:
    """Whether it is false."""
    return not verdict if isinstance(verdict, bool) else Later(lambda: not verdict)


def is_surely_equal(one: Tensor, other: Tensor) -> bool:
    """Whether entries are the same, asked only where nobody waits for the answer."""
    return is_at_hand(one) and torch.equal(one, other)


def has_same_entries(one: Tensor, other: Tensor) -> Verdict:
    """As ``torch.equal``."""
    is_simple = one.device == other.device and one.dtype == other.dtype and one.shape == other.shape
    if is_at_hand(one) or not is_simple:
        return torch.equal(one, other)
    return verdict_of(one.eq(other).all())


def send(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A small tensor on another device, without waiting for it there if it comes from the host."""
    from_host = tensor.device.type == "cpu" and device.type != "cpu"
    return tensor.to(device, dtype or tensor.dtype, non_blocking=from_host)


# -- doubts ---------------------------------------------------------------------------------------

# Whether norms can be used as they come is known where they are computed. To read it there would
# make the host wait for the device at every parameter; so it is noted, and read once for all.


class Doubt(NamedTuple):
    """Something taken for granted until it is read; ``error`` is what it means if it is not so."""

    is_fine: Tensor
    error: Exception | None = None


_noted: ContextVar[list[Doubt] | None] = ContextVar("doubts", default=None)


@contextmanager
def doubts_noted() -> Iterator[list[Doubt]]:
    """What :func:`is_true` is asked in here about other devices is taken to be true, and noted."""
    doubts: list[Doubt] = []
    before = _noted.set(doubts)
    try:
        yield doubts
    finally:
        _noted.reset(before)


def is_true(condition: Tensor, error: Exception | None = None) -> bool:
    """What a tensor of one truth value says; of another device perhaps later, see above."""
    doubts = _noted.get()
    if doubts is None or condition.device.type == "cpu":
        return bool(condition)
    doubts.append(Doubt(condition, error))
    return True


class RawNorms(NamedTuple):
    """What a factor's squared norms are made of, before it is known whether they can be used.

    Attributes:
        factor: whose norms they are.
        tensors: what :attr:`stacked` makes norms of; their first dimension is that of the samples.
        stacked: makes them, of several factors at once.
        are_parts: whether the tensors are factors, and not yet what norms are sums of.
        joined: how many parameters' factors are joined in this one; tensors have another dimension
            in front for them. None if it is that of one.
    """

    factor: Factor
    tensors: tuple[Tensor, ...]
    stacked: type[StackedNorms]
    are_parts: bool = False
    joined: int | None = None

    @property
    def kind(self) -> Hashable:
        """Equal for those whose norms can be computed together."""
        return self.places[0]

    @property
    def places(self) -> tuple[Hashable, Hashable]:
        """:attr:`kind` and :attr:`run`."""
        sizes = self.sizes
        run = type(self.factor), sizes, None if self.joined is None else id(self.factor)
        return (self.stacked, self.stacked.kind_of(self, sizes)), run

    @property
    def sizes(self) -> Hashable:
        """Equal for those whose tensors can be stacked."""
        first = 0 if self.joined is None else 1
        return self.are_parts, *[(t.shape[first:], t.dtype, t.device) for t in self.tensors]

    @property
    def run(self) -> Hashable:
        """Equal for those that come one after the other among those of a kind."""
        return self.places[1]

    def shape_of(self, tensor: Tensor) -> torch.Size:
        """That of one parameter's, whether they are joined or not."""
        return tensor.shape if self.joined is None else tensor.shape[1:]

    @property
    def nbytes(self) -> int:
        """Of the tensors: they are held until norms are made of them, or copied then."""
        return sum([*map(_nbytes, self.tensors)])

    def compute(self) -> Tensor:
        """Of this factor alone, ``[B]``, corrected."""
        norms = self.stacked([self])
        if norms.are_fine is not None and not is_true(norms.are_fine.all()):
            norms.repair()
        return norms.squares.squeeze(0)


class StackedNorms(ABC):
    """Squared norms of several factors at once: chains of small operations cost more than sums.

    Attributes:
        squares: those norms, ``[F, B]``.
        are_fine: which of them can be used, ``[F, B]``; None if all can.
        factors: of which they are; one that several are joined in comes as often.
    """

    squares: Tensor
    are_fine: Tensor | None = None
    factors: Sequence[Factor]
    has_sums = False  # whether sums can be taken from what is held here, too

    def __init__(self, found: Sequence[RawNorms]) -> None:
        counts = [raw.joined or 1 for raw in found]
        pairs = [*zip(found, counts, strict=True)]
        self.factors = [raw.factor for raw, count in pairs for _ in range(count)]
        self._places = [place for _, count in pairs for place in range(count)]
        self._make(*self._join(found))

    def sample(self, place: int, sample: int) -> Factor:
        """The factor of one sample."""
        first = self._places[place] * self.squares.shape[1] + sample
        return self.factors[place].select(slice(first, first + 1))

    @staticmethod
    def kind_of(raw: RawNorms, sizes: Hashable) -> Hashable:
        """Equal for those that can be given to one of these together; ``sizes`` are its own."""
        return sizes

    def _join(self, found: Sequence[RawNorms]) -> tuple[Tensor, ...]:
        """The tensors of all, which come in runs."""
        return stack_tensors(found)

    @abstractmethod
    def _make(self, *tensors: Tensor) -> None:
        """Set the attributes; tensors have one more dimension, that of the factors, in front."""

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor | None]:
        """``sum_i weights[f, i] * gradient_i`` of each factor, flat; None where it is not held."""
        return [None] * len(self.factors)

    def repair(self) -> None:
        """Take the norms that cannot be used from their factors."""
        if self.are_fine is None:
            return
        for place, sample in (~self.are_fine).nonzero().tolist():
            self.squares[place, sample] = self.sample(place, sample).sq_norm().squeeze(0)


def stack_tensors(found: Sequence[RawNorms]) -> tuple[Tensor, ...]:
    """Those of several factors, with one more dimension in front."""
    if any(raw.joined is not None for raw in found):
        parts = [raw.tensors if raw.joined is not None else stack_tensors([raw]) for raw in found]
        return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))
    if len(found) == 1:
        return tuple(tensor.unsqueeze(0) for tensor in found[0].tensors)
    return tuple(map(torch.stack, zip(*(raw.tensors for raw in found), strict=True)))


# -- the contract ---------------------------------------------------------------------------------


class Factor(ABC):
    """Gradients of one parameter for ``batch`` samples, in a form cheaper than ``[B, *shape]``.

    Shapes in this package: B samples, T positions per sample, P rows and D columns of a matrix.
    Every method is exact up to rounding; which one is called is a matter of speed only.
    """

    batch: int
    shape: torch.Size
    is_half = False  # whether some of what it was made of is in half precision
    is_small = False  # whether calls cost more than all that is to be computed

    @abstractmethod
    def stamps(self) -> Iterable[Stamp]:
        """Of the tensors that it was made of, as they were then."""

    def held_bytes(self) -> int:
        """The size of those tensors."""
        return sum([tensor.nbytes for stamp in self.stamps() for tensor in stamp.tensors])

    def seal(self) -> None:
        """From here on also find writes that torch does not count; costs a pass."""
        for stamp in self.stamps():
            stamp.seal()

    def changed(self) -> Verdict:
        """Whether a tensor it was made of has been written to since."""
        return any_of(stamp.differs() for stamp in self.stamps())

    @abstractmethod
    def sq_norm(self) -> Tensor:
        """Squared Euclidean norm of each sample's gradient, ``[B]``, without materializing it.

        Where parts of a gradient cancel, it covers the rounding errors of :meth:`weighted_sum`.
        """

    def raw_norms(self) -> RawNorms | None:
        """The same, to be computed with those of other factors; None if it cannot be."""
        return None

    def joined_norms(self, count: int) -> RawNorms | None:
        """The same if factors of so many parameters are joined in this one; None if not so."""
        return None

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``sum_i weights[i] * gradient_i``, of the parameter's shape."""

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> Tensor:
        """``total``, which may be written to, with the weighted sum added."""
        return total.add_(self.weighted_sum(weights))

    @abstractmethod
    def materialize(self) -> Tensor:
        """The per-sample gradients themselves, ``[B, *shape]``."""

    def materializers(self) -> dict[str, Callable[[], Tensor]]:
        """All ways to do that, the most promising first; they differ in speed."""
        return {"": self.materialize}

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the gradients are."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """In what precision."""

    @abstractmethod
    def signature(self) -> Hashable:
        """Equal for factors that cost the same per sample: sizes but the batch, layout, type."""

    @abstractmethod
    def select(self, samples: slice | Tensor) -> Factor:
        """The factor of some samples only, given as a slice or as an index tensor."""

    @abstractmethod
    def merged(self, membership: Membership) -> Factor:
        """The factor of samples of which these are the records: their gradients add up."""

    @abstractmethod
    def scaled(self, scales: Tensor) -> Factor:
        """The factor of every sample's gradient times its number in ``scales[B]``."""

    @abstractmethod
    def rescaled(self) -> tuple[Factor, Tensor]:
        """Gradients whose squares are in range, and by what each is to be multiplied, ``[B]``.

        Powers of two are taken out of each sample, so that no digit is lost. What they are
        multiplied with is NaN where a gradient is not finite.
        """

    @abstractmethod
    def magnitude(self) -> Tensor:
        """Root of the summed squares of each sample's parts, ``[B]``, or a little more.

        Parts are what is added up to a gradient: one per position or use. Where they cancel, the
        norm is far smaller than this, and rounding errors of sums are of this order times epsilon.
        """

    @abstractmethod
    def sq_norm_cost(self) -> Cost:
        """Estimated cost of :meth:`sq_norm`."""

    @abstractmethod
    def materialize_cost(self) -> Cost:
        """Estimated cost of :meth:`materialize`."""


class Stamp:
    """Tensors as they were: torch counts how often one, or a view of it, is written to.

    What goes around the count (``.data``, numpy) shows in a sum and a norm, once sealed.

    Attributes:
        tensors: the tensors themselves.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors, self._versions = tensors, versions_of(tensors)
        self._contents: list[Tensor] | Tensor | None = None

    def seal(self) -> None:
        """Note what is in them."""
        self._contents = self._content()

    def differs(self) -> Verdict:
        """Whether one of them has been written to by now."""
        if self._versions != versions_of(self.tensors):
            return True
        return self._contents is not None and any_of(self.compare_contents())

    def compare_contents(self) -> Iterator[Verdict]:
        """Of each, if it was sealed, whether something else is in it."""
        before = self._contents
        if before is None:
            return
        if isinstance(before, Tensor):
            yield from before.nan_to_num().ne(self._joined_content().nan_to_num()).any(1).tolist()
            return
        for each, tensor in zip(before, self.tensors, strict=True):
            yield verdict_of(each.nan_to_num().ne(content_of(tensor).nan_to_num()).any())

    def _content(self) -> list[Tensor] | Tensor:
        """Of each tensor; of several of one kind that are at hand, in one."""
        kinds = {tensor.dtype for tensor in self.tensors}
        is_plain = len(kinds) == 1 and kinds <= _PLAIN and all(map(is_at_hand, self.tensors))
        return self._joined_content() if is_plain else [*map(content_of, self.tensors)]

    def _joined_content(self) -> Tensor:
        values = [tensor.detach() for tensor in self.tensors]
        sums = [*map(torch.sum, values), *map(torch.linalg.vector_norm, values)]
        return torch.stack(sums).view(2, -1).T


_nbytes = attrgetter("nbytes")
_PLAIN = {torch.float32, torch.float64}  # their sums and norms are of the same type

# Numbers that are held in half precision are multiplied and added up in float32: so many of them
# are widened at a time, for as long as it takes.
WIDENED_FLOATS = {"cpu": 1 << 19}
_WIDENED_FLOATS_ELSEWHERE = 1 << 24


class TensorFactor(Factor):
    """A factor that was made of tensors; ``values``, the first, has its device and its type.

    They are held as they are, in half precision too; norms and sums are in float32 then.
    """

    def __init__(self, values: Tensor, *others: Tensor) -> None:
        self._values, self._stamp = values, Stamp(values, *others)
        self.is_half = not _HALF.isdisjoint([t.dtype for t in self._stamp.tensors])
        self._bytes: int | None = None

    def held_bytes(self) -> int:
        if self._bytes is None:  # asked several times, or never
            self._bytes = sum([tensor.nbytes for tensor in self._stamp.tensors])
        return self._bytes

    def stamps(self) -> Iterable[Stamp]:
        return (self._stamp,)

    def changed(self) -> Verdict:
        return self._stamp.differs()

    @property
    def device(self) -> torch.device:
        return self._values.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if is_half(self._values) else self._values.dtype

    @abstractmethod
    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same, made of other tensors."""

    def select(self, samples: slice | Tensor) -> Self:
        return self._with(lambda tensor: tensor[samples])

    def merged(self, membership: Membership) -> Self:
        return self._with(membership.collect)

    def widened(self) -> Iterator[tuple[slice, Self]]:
        """Which samples, and their factor in float32: all of them, if it is so already."""
        if not self.is_half:
            yield slice(None), self
            return
        most = WIDENED_FLOATS.get(self.device.type, _WIDENED_FLOATS_ELSEWHERE)
        held = sum(tensor.numel() for tensor in self._stamp.tensors)
        at_once = max(1, self.batch * most // max(1, held))
        for start in range(0, max(1, self.batch), at_once):
            samples = slice(start, start + at_once)

            def widen(tensor: Tensor, samples: slice = samples) -> Tensor:
                return to_float32(tensor[samples])

            yield samples, self._with(widen)


_Held = TypeVar("_Held", bound=TensorFactor)


def of_samples(method: Callable[[_Held], Tensor]) -> Callable[[_Held], Tensor]:
    """A method that gives something of each sample: in float32, a few samples at a time."""

    @wraps(method)
    def in_float32(self: _Held) -> Tensor:
        if not self.is_half:
            return method(self)
        found: Tensor | None = None
        for samples, part in self.widened():
            values = method(part)
            if found is None:
                found = values.new_empty(self.batch, *values.shape[1:])
            found[samples] = values
        assert found is not None
        return found

    return in_float32


def summed(
    method: Callable[[_Held, Tensor, Tensor], Tensor],
) -> Callable[[_Held, Tensor, Tensor], Tensor]:
    """An ``add_weighted_sum`` that adds a few samples at a time, in float32."""

    @wraps(method)
    def in_float32(self: _Held, weights: Tensor, total: Tensor) -> Tensor:
        if not self.is_half:
            return method(self, weights, total)
        for samples, part in self.widened():
            total = method(part, weights[samples], total)
        return total

    return in_float32


def content_of(tensor: Tensor) -> Tensor:
    """A sum and a norm, which hardly any write leaves unchanged."""
    values = tensor.detach()
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    values = values if values.is_floating_point() else values.double()
    wide = torch.float32 if is_half(values) else None
    return torch.stack([values.sum(dtype=wide), torch.linalg.vector_norm(values, dtype=wide)])


def real_parts(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real and imaginary parts, another one as it is.

    Clipping and noise are for real numbers: a complex parameter counts as twice as many.
    """
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def like_parameter(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A gradient, or a stack of some, of its real and imaginary parts, as the parameter's own."""
    if not parameter.is_complex() or gradient.is_complex():
        return gradient
    return torch.complex(gradient[..., 0], gradient[..., 1])


def version_of(tensor: Tensor) -> int:
    """How often torch has seen it written to."""
    try:
        return tensor._version
    except RuntimeError:  # made in inference mode, where nothing is counted
        return 0


_version = attrgetter("_version")


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """The same of several, asked without a call of Python for each where that will do."""
    try:
        return [*map(_version, tensors)]
    except RuntimeError:
        return [*map(version_of, tensors)]


def writable(total: Tensor) -> Tensor:
    """``total``, or a copy of it if several of its entries share their memory."""
    strides = total.stride()
    shared = 0 in strides and any(
        size > 1 and not stride for size, stride in zip(total.shape, strides, strict=True)
    )
    return total.contiguous() if shared else total


def form(tensor: Tensor) -> Hashable:
    """What a tensor looks like but for its first dimension: rough sizes, their order in memory.

    Lengths of sequences may be others in every batch, and what is fastest for one is so for the
    next.
    """
    strides = tensor.stride()
    order = tuple(sorted(range(1, tensor.ndim), key=lambda dim: -strides[dim]))
    rests = [max(0, size.bit_length() - 2) for size in tensor.shape[1:]]
    rough = tuple(size >> r << r for size, r in zip(tensor.shape[1:], rests, strict=True))
    return rough, order, tensor.dtype  # of sizes the two leading bits


_HALF = frozenset({torch.float16, torch.bfloat16})


def is_half(tensor: Tensor) -> bool:
    """Whether its numbers are in half precision."""
    return tensor.dtype in _HALF


def to_float32(tensor: Tensor) -> Tensor:
    """Half-precision tensors as float32: norms and sums are never computed in half precision."""
    return tensor.float() if is_half(tensor) else tensor


def cover_rounding(squares: Tensor, magnitude: Tensor) -> Tensor:
    """Lengthen norms so small beside their parts that the sum's rounding errors count.

    A sample whose parts cancel gets a large weight, and so do the errors made when its parts are
    added up once more for the weighted sum. They are covered by counting them into the norm. (A
    materialized gradient is summed as it was measured.)
    """
    rounding = _ROUNDING_ERRORS * torch.finfo(squares.dtype).eps * magnitude
    is_small = squares < (_SMALL * magnitude).square()
    return torch.where(is_small, (squares.clamp_min(0).sqrt() + rounding).square(), squares)


def vector_norm(tensor: Tensor, order: float = 2, *, dim: int, keepdim: bool = False) -> Tensor:
    """Norms along one dimension."""
    norms: Tensor = torch.linalg.vector_norm(tensor, order, dim=dim, keepdim=keepdim)
    return norms


def scale_samples(tensor: Tensor, weights: Tensor) -> Tensor:
    """Multiply sample ``i`` of ``tensor[B, ...]`` by ``weights[i]``."""
    tensor = to_float32(tensor)
    return tensor * weights.to(tensor.dtype).view(-1, *[1] * (tensor.ndim - 1))


def power_of_two(sizes: Tensor) -> Tensor:
    """The largest power of two that does not exceed each size: 1 for zero, NaN if not finite."""
    mantissas = torch.frexp(sizes).mantissa
    return torch.where(sizes == 0, 1.0, sizes / (2 * mantissas))


def peaks_of(tensor: Tensor, dims: int) -> Tensor:
    """The largest absolute entry over all dimensions but the first ``dims``, which stay."""
    flat = tensor.reshape(*tensor.shape[:dims], -1) if tensor.numel() else None
    return tensor.new_zeros(tensor.shape[:dims]) if flat is None else flat.abs().amax(-1)


# Gradients of so many numbers are copied beside others: that takes less than to sum each by itself.
STACKED_FLOATS = 1 << 16
# So are factors, which are multiplied then.
STACKED_FACTOR_FLOATS = 1 << 14


class PlainNorms(StackedNorms):
    """Of norms that have been taken."""

    def _make(self, *tensors: Tensor) -> None:
        self.squares = tensors[0].square()


class DenseNorms(StackedNorms):
    """Norms of materialized gradients, which are summed together, too."""

    has_sums = True

    def _make(self, *tensors: Tensor) -> None:
        (self._grads,) = tensors
        self.squares = vector_norm(self._grads, dim=2).square()

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor]:
        sums = torch.bmm(weights.to(self._grads.dtype).unsqueeze(1), self._grads)
        return sums.squeeze(1).unbind()


class Dense(TensorFactor):
    """Materialized gradients ``[B, *shape]``."""

    def __init__(self, grads: Tensor) -> None:
        self.grads = to_float32(grads)
        self.batch = grads.shape[0]
        self.shape = grads.shape[1:]
        super().__init__(self.grads)

    def sq_norm(self) -> Tensor:
        return self._norms().square()

    def raw_norms(self) -> RawNorms:
        if self.grads.numel() <= STACKED_FLOATS and self.grads.is_contiguous():
            return RawNorms(self, (self.grads.view(self.batch, -1),), DenseNorms)
        return RawNorms(self, (self._norms(),), PlainNorms)

    def joined_norms(self, count: int) -> RawNorms | None:
        if self.grads.numel() > STACKED_FLOATS * count or not self.grads.is_contiguous():
            return None
        grads = self.grads.view(count, self.batch // count, -1)
        return RawNorms(self, (grads,), DenseNorms, joined=count)

    def _norms(self) -> Tensor:
        grads, _ = self._in_memory_order()
        return vector_norm(grads.reshape(self.batch, -1), dim=1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        grads, order = self._in_memory_order()
        total = torch.mv(grads.reshape(self.batch, -1).mT, weights.to(grads.dtype))
        total = total.view(grads.shape[1:])
        if order is None:
            return total
        return total.permute(sorted(range(len(order)), key=lambda place: order[place]))

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> Tensor:
        grads, order = self._in_memory_order()
        summed = total if order is None else total.permute(order)
        if not summed.is_contiguous() or total.dtype != grads.dtype:
            return super().add_weighted_sum(weights, total)
        flat = grads.reshape(self.batch, -1)
        summed.view(-1).addmv_(flat.mT, weights.to(grads.dtype))
        return total

    def materialize(self) -> Tensor:
        return self.grads

    def signature(self) -> Hashable:
        return Dense, form(self.grads)

    def _with(self, change: Callable[[Tensor], Tensor]) -> Dense:
        return Dense(change(self.grads))

    def merged(self, membership: Membership) -> Dense:
        return Dense(membership.sum(self.grads))

    def scaled(self, scales: Tensor) -> Dense:
        return Dense(scale_samples(self.grads, scales))

    def rescaled(self) -> tuple[Dense, Tensor]:
        scales = power_of_two(peaks_of(self.grads, 1))
        return Dense(self.grads / scales.view(-1, *[1] * len(self.shape))), scales

    def magnitude(self) -> Tensor:
        return self.sq_norm().sqrt()

    def sq_norm_cost(self) -> Cost:
        return Cost(2.0 * self.grads.numel(), 0.0)

    def materialize_cost(self) -> Cost:
        return Cost(0.0, 0.0)

    def _in_memory_order(self) -> tuple[Tensor, list[int] | None]:
        """With dimensions as they are laid out, so that flattening copies nothing; and which."""
        if self.grads.is_contiguous():
            return self.grads, None
        strides = self.grads.stride()
        order = sorted(range(len(self.shape)), key=lambda dim: -strides[dim + 1])
        return self.grads.permute(0, *(dim + 1 for dim in order)), order
