"""What a tensor is: a trainable parameter, a buffer, a constant, or data."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_, itemgetter, methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quietgrad.capture.call import ParameterTarget
from quietgrad.capture.compare import is_equal, is_same, leaves, parse_output, tensors_in
from quietgrad.capture.layout import counts_up
from quietgrad.distributed.sharding import are_local, local_of
from quietgrad.errors import TrainableSetError, UnsupportedOperationError
from quietgrad.factors.base import Stamp, Verdict, is_at_hand, version_of, versions_of

AtRest = Callable[[Tensor], Tensor]

_DIGESTED_AT_ONCE, _SUMMED_AT_ONCE = 2**26, 2**22  # bytes
_ODD = 0x1E3779B97F4A7C15  # of no pattern
_MOST_COMPARED = 2**16  # entries of a buffer; above, only its identity and torch's count of writes


class ParameterTable:
    """Names the model's parameters when they are used, as the modules hold them at that moment.

    Wrappers may swap the Parameter object under a name between forwards; what counts is the module
    attribute, so every answer is checked against it and the table is rebuilt when it is stale.

    Attributes:
        tree: tells when it is.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._canonical = _canonical_names(model)
        self.tree, self._seen = ModelTree(model), -1
        self._found: dict[str, nn.Parameter] = {}
        self._own_names: dict[int, str] = {}
        self._holders: dict[int, tuple[nn.Module, str, str]] = {}
        self._targets = {n: ParameterTarget(n, p.shape) for n, p in self.trainable().items()}

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by canonical name (a tied weight has its first name)."""
        if self._seen != (now := self.tree.look()):
            self._found, self._seen = {}, now
            _collect(self._model, "", self._found, set())
            # A module may have moved to another place with its parameters: it has another name.
            self._own_names = {id(parameter): name for name, parameter in self._found.items()}
            self._holders = {}
        return dict(self._found)

    def target(self, parameter: nn.Parameter) -> ParameterTarget:
        """The managed parameter behind a tensor seen in an operation."""
        holder = self._holders.get(id(parameter))
        if holder is not None and holder[0]._parameters.get(holder[1]) is parameter:
            known = self._targets.get(holder[2])  # as in nearly every call
            if known is not None:
                return known
        name = self._name_of(parameter) or self._refreshed_name_of(parameter)
        if name is None:
            raise UnsupportedOperationError(
                f"a trainable parameter of shape {tuple(parameter.shape)} that is not registered "
                "in the model was used in its forward: its gradient could not be clipped. Register "
                "it in the model (as a module attribute) or freeze it with requires_grad_(False)."
            )
        if name not in self._targets:
            raise TrainableSetError(
                f"parameter '{name}' was frozen when the model was attached and is trainable now. "
                "Attach again after changing requires_grad."
            )
        return self._targets[name]

    def knows(self, parameter: nn.Parameter) -> bool:
        """Whether a module of the model holds it."""
        name = self._name_of(parameter) or self._refreshed_name_of(parameter)
        return name is not None

    def describe(self, parameter: nn.Parameter) -> str:
        """A parameter's name, for messages."""
        name = self._name_of(parameter) or self._refreshed_name_of(parameter)
        return f"parameter '{name}'" if name else f"a parameter of shape {tuple(parameter.shape)}"

    def _name_of(self, parameter: nn.Parameter) -> str | None:
        holder = self._holders.get(id(parameter))
        if holder is None:
            return None
        module, attribute, name = holder
        # Asking the module itself takes far longer: it looks there last.
        if module._parameters.get(attribute) is parameter:
            return name
        return name if getattr(module, attribute, None) is parameter else None

    def _refreshed_name_of(self, parameter: nn.Parameter) -> str | None:
        holders: dict[int, tuple[nn.Module, str, str]] = {}
        for path, module in self._model.named_modules():
            for attribute, held in module._parameters.items():
                # One that is lent to another module (torch.func.functional_call) is its owner's.
                name = self._canonical.get(f"{path}.{attribute}".lstrip("."), "")
                if held is not None:
                    name = self._own_names.get(id(held), name)
                    holders.setdefault(id(held), (module, attribute, name))
        # Those of before are kept as long as they hold: sharded weights come and go.
        known = [(key, held) for key, held in self._holders.items() if key not in holders]
        self._holders = holders | dict(known[-len(holders) :])
        return self._name_of(parameter) or None


_is_trained = attrgetter("requires_grad")
_holders_of = itemgetter("_buffers", "_parameters", "_modules")  # in one call for each module


class ModelTree:
    """Where a model holds tensors and modules, compared with where it did: that is done often.

    What is derived from it holds as long as :meth:`look` gives the same number. As a context, in
    which nothing of the user's runs, it looks once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._number, self._is_known = model, 0, False
        self._note()

    def look(self) -> int:
        """How often the model was found changed."""
        if not (self._is_known or self._is_unchanged()):
            self._note()
            self._number += 1
        return self._number

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All parameters and buffers, as they were last looked at."""
        return self._tensors

    def __enter__(self) -> None:
        self.look()
        self._is_known = True

    def __exit__(self, *_: object) -> None:
        self._is_known = False

    def _note(self) -> None:
        self._modules = [*self._model.modules()]
        self._kinds, self._attributes = [*map(type, self._modules)], [*map(vars, self._modules)]
        self._holders = self._find_holders()
        self._held = [each for holder in self._holders for each in holder.values()]
        self._names, self._sizes = [*chain.from_iterable(self._holders)], [*map(len, self._holders)]
        self._tensors = [each for each in self._held if isinstance(each, Tensor)]
        self._are_trained = [*map(_is_trained, self._tensors)]

    def _is_unchanged(self) -> bool:
        """Whether names, tensors, modules, their classes and what is trainable are those of then.

        ``fully_shard`` gives modules other classes.
        """
        holders = self._find_holders()
        # By identity: tensors are not to be compared by value. Equal sizes make the runs as long.
        return (
            self._are_trained == [*map(_is_trained, self._tensors)]
            and self._kinds == [*map(type, self._modules)]
            and all(map(is_, holders, self._holders))
            and self._sizes == [*map(len, holders)]
            and all(map(is_, chain.from_iterable(map(dict.values, holders)), self._held))
            and self._names == [*chain.from_iterable(holders)]
        )

    def _find_holders(self) -> list[dict[str, Any]]:
        """The dictionaries of the modules themselves, which may be replaced, too."""
        return [*chain.from_iterable(map(_holders_of, self._attributes))]


def _collect(
    module: nn.Module,
    prefix: str,
    found: dict[str, nn.Parameter],
    seen: set[int],
) -> None:
    """What ``named_parameters`` gives, in its order, in a fraction of the time."""
    seen.add(id(module))
    for attribute, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            if parameter.requires_grad:
                found[prefix + attribute] = parameter
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            _collect(child, f"{prefix}{name}.", found, seen)


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter -> the first name under which it is found."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


class _Place(NamedTuple):
    """Where a buffer or a parameter is registered."""

    module: nn.Module
    attribute: str
    path: str
    holder: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.path}.{self.attribute}" if self.path else self.attribute


@dataclass(frozen=True)
class _Seen:
    """A buffer as it was when the samples were handed out, or when a write was last approved."""

    place: _Place
    buffer: Tensor
    version: int
    value: Tensor | None
    content: int | Tensor | None

    @staticmethod
    def now(place: _Place, buffer: Tensor) -> _Seen:
        value = local_of(buffer.detach()).clone() if _is_compared(buffer) else None
        # A frozen weight may be written to with what it holds: parametrizations do that.
        is_weight = isinstance(buffer, nn.Parameter) and value is None and _address(buffer) != 0
        content = _digest(buffer) if is_weight else None
        return _Seen(place, buffer, _count_writes(buffer), value, content)

    @property
    def is_unchanged(self) -> bool:
        if self.value is not None:
            return bool(is_equal(self.value, local_of(self.buffer)))
        if self.version == _count_writes(self.buffer):
            return True
        return self._has_content(self.buffer)

    def is_content_of(self, other: Tensor) -> bool:
        """Whether another one, in its place, holds the same."""
        if self.value is not None:
            return _is_compared(other) and bool(is_equal(self.value, local_of(other.detach())))
        return self._has_content(other)

    def _has_content(self, other: Tensor) -> bool:
        return self.content is not None and bool(is_same(self.content, _digest(other)))

    def put_back(self) -> None:
        """Undo the change, where the value before it is known."""
        self.place.holder[self.place.attribute] = self.buffer
        if self.value is not None:
            with torch.no_grad():
                local_of(self.buffer).resize_(self.value.shape).copy_(self.value)


class BufferWatch:
    """Finds the buffers that were written by a route that no operation on tensors shows.

    Operations are judged while they run (``refusals``). This is for what goes around them:
    ``.data``, numpy, code that torch compiled, a forward without gradients. Torch counts the writes
    to a tensor; small buffers on the CPU are compared entry by entry too, since an array of numpy
    that shares their memory is not counted.
    """

    def __init__(self, model: nn.Module, at_rest: AtRest, tree: ModelTree) -> None:
        self._model, self._at_rest, self._tree = model, at_rest, tree
        self._found: list[tuple[_Place, Tensor]] = []
        self._found_at = -1
        self._seen: dict[tuple[nn.Module, str], _Seen] = {}
        self._names: dict[int, str] = {}

    def begin(self) -> None:
        """Samples are handed out: from here on, changes must be accounted for."""
        before, self._seen = self._seen, {}
        for place, buffer in self._held():
            key = place.module, place.attribute
            seen = before.get(key)
            if seen is None or seen.buffer is not buffer or not seen.is_unchanged:
                seen = _Seen.now(place, buffer)
            self._seen[key] = seen
        named = {_address(seen.buffer): seen.place.name for seen in self._seen.values()}
        self._names = {address: name for address, name in named.items() if address}

    def name_at(self, address: int) -> str | None:
        """The buffer whose memory begins there."""
        return self._names.get(address)

    @contextmanager
    def writing(self, written: Iterable[Tensor]) -> Iterator[None]:
        """A write that was judged happens in here. What went unseen before it stays in view."""
        addresses = {_address(tensor) for tensor in written} & set(self._names)
        approved = [
            key
            for key, seen in (self._seen.items() if addresses else ())
            if _address(seen.buffer) in addresses and seen.is_unchanged
        ]
        yield
        for key in approved:
            seen = self._seen[key]
            self._seen[key] = _Seen.now(seen.place, seen.buffer)

    def find_changed(self, is_constant: Callable[[Tensor], bool]) -> str | None:
        """The name of what was written or replaced unseen, and is put back; None if nothing was.

        Args:
            is_constant: tells whether a tensor is known to hold nothing of the samples: such a one
                may take the place of another.
        """
        first: str | None = None
        for place, buffer in self._held():
            seen = self._seen.get((place.module, place.attribute))
            if seen is not None and seen.buffer is buffer:
                fine = seen.is_unchanged
            else:
                fine = is_constant(buffer) or (seen is not None and seen.is_content_of(buffer))
            if not fine:
                first = first or place.name
                if seen is not None:
                    seen.put_back()
                else:
                    del place.holder[place.attribute]
        return first

    def _held(self) -> list[tuple[_Place, Tensor]]:
        if self._found_at != (now := self._tree.look()):
            self._found, self._found_at = [], now
            for path, module in self._model.named_modules():
                for holder in (module._buffers, module._parameters):
                    for attribute, held in holder.items():
                        # Weights in training are the user's to load: what data may write to them
                        # while a forward runs is judged there.
                        if held is not None and not held.requires_grad:
                            held = self._at_rest(held)
                            self._found.append((_Place(module, attribute, path, holder), held))
        return self._found


class WeightWatch:
    """Finds weights in training that are written while the samples of a batch are out.

    Between batches they are the user's to load.

    Attributes:
        is_thorough: whether writes to them in this micro-batch show that torch does not count.
    """

    def __init__(self, table: ParameterTable, at_rest: AtRest) -> None:
        self._table, self.is_thorough, self._at_rest = table, False, at_rest
        self._seen: dict[str, Tensor] = {}
        self._states: list[tuple[int, ...]] = []
        self._stamp: Stamp | None = None

    def begin(self) -> None:
        """A batch is handed out."""
        self._seen = {n: self._at_rest(w) for n, w in self._table.trainable().items()}
        self._states = _states_of([*self._seen.values()])
        self._stamp = None

    def watch(self, *, thorough: bool) -> None:
        """A micro-batch is handed out. If ``thorough``, writes that torch does not count show."""
        self.is_thorough = thorough
        if thorough and self._stamp is None:
            held = (local_of(weight.detach()) for weight in self._seen.values())
            self._stamp = Stamp(*held)
            self._stamp.seal()

    def find_written(self, *, thorough: bool = True) -> str | None:
        """The name of a weight that was written since; None if none was, or no batch is out.

        If not ``thorough``, only what torch counts is looked at.
        """
        states = _states_of([*self._seen.values()])
        if states != self._states:
            pairs = zip(self._seen, states, self._states, strict=True)
            return next(name for name, now, before in pairs if now != before)
        verdicts = self.ask_written() if thorough else []
        return next((name for name, is_written in verdicts if is_written), None)

    def find_moved(self, now: Mapping[str, nn.Parameter]) -> tuple[str, str] | None:
        """A name that a weight has lost since, and its name ``now``; None if all have theirs."""
        if not [name for name, weight in self._seen.items() if now.get(name) is not weight]:
            return None
        names = {id(weight): name for name, weight in now.items()}
        pairs = ((name, names.get(id(weight), name)) for name, weight in self._seen.items())
        return next(((before, after) for before, after in pairs if before != after), None)

    def ask_written(self) -> list[tuple[str, Verdict]]:
        """Of each weight, whether something else is in it by now."""
        contents = () if self._stamp is None else self._stamp.compare_contents()
        return list(zip(self._seen, contents, strict=False))

    def end(self) -> None:
        """The batch is over."""
        self._seen, self._states, self._stamp, self.is_thorough = {}, [], None, False


def _is_compared(buffer: Tensor) -> bool:
    buffer = local_of(buffer)
    is_plain = buffer.layout is torch.strided and not buffer.is_quantized and not buffer.is_nested
    return is_plain and buffer.device.type == "cpu" and buffer.numel() <= _MOST_COMPARED


def _digest(tensor: Tensor) -> int | Tensor:
    """Of all bytes and their places: a sum would not notice entries that changed places.

    On a device it is made and stays there.
    """
    values = local_of(tensor.detach()).contiguous().flatten().view(torch.uint8)
    digest = 0
    if is_at_hand(values):
        for part in values.split(_DIGESTED_AT_ONCE):
            digest = zlib.crc32(part.numpy(), digest)
        return digest
    sums = [_sum_by_place(part) for part in values.split(_SUMMED_AT_ONCE)]
    return torch.stack(sums) if sums else values.long()


def _sum_by_place(values: Tensor) -> Tensor:
    """Every byte times an odd number of its own: two that change places give another sum."""
    factors = torch.arange(len(values), device=values.device).mul_(2).add_(1).mul_(_ODD)
    return factors.mul_(values).sum()


def _address(tensor: Tensor) -> int:
    """Where its memory begins; 0 if it has none of its own, as sparse, nested and mapped ones."""
    tensor = local_of(tensor)
    is_mapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    is_dense = tensor.layout is torch.strided and not tensor.is_nested and not is_mapped
    return tensor.untyped_storage().data_ptr() if is_dense else 0


_POINTER = methodcaller("data_ptr")  # also of subclasses, which may have their own


def _states_of(weights: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """How often each, and what this rank holds of it, was written to, and where that begins."""
    held = weights if are_local(weights) else [*map(local_of, weights)]
    return [*zip(versions_of(weights), versions_of(held), map(_POINTER, held), strict=True)]


def _count_writes(tensor: Tensor) -> int:
    """To it, and to what this rank holds of it."""
    held = local_of(tensor)
    return version_of(tensor) + (0 if held is tensor else version_of(held))


class Provenance:
    """Tells constants from data, for the choice of a rule; exactness never depends on the answer.

    Constants are buffers, frozen weights, and what is made from them or from nothing (positions,
    masks). What is taken for a constant is pulled back through as part of a computation on
    parameters alone; what is taken for data is mapped to samples. Both are exact or refused, so an
    unlucky guess can cost time or a refusal, not privacy.

    Args:
        model: what holds them.
        at_rest: gives the shard of a weight that is gathered just now; anything else as it is.
        tree: of the model.

    Attributes:
        watch: finds writes to buffers that no operation shows.
        at_rest: as passed.
    """

    def __init__(self, model: nn.Module, at_rest: AtRest, tree: ModelTree) -> None:
        self.watch, self.at_rest = BufferWatch(model, at_rest, tree), at_rest
        self._model = model
        self._buffers = {id(buffer): buffer for buffer in model.buffers()}
        self._originals = {
            (module, attribute): (buffer, f"{path}.{attribute}" if path else attribute)
            for path, module in model.named_modules()
            for attribute, buffer in module._buffers.items()
        }
        held = [*model.named_buffers(), *model.named_parameters()]
        self._storages = {_address(t): name for name, t in held if t.numel() and _address(t)}
        self._seen: dict[int, tuple[weakref.ref[Tensor], bool]] = {}
        self._doubtful: dict[int, weakref.ref[Tensor]] = {}
        self._counting: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._held: dict[int, weakref.ref[Tensor]] = {}
        self._written: set[int] = set()

    def note_held(self, tensors: Iterable[Tensor]) -> None:
        """What the model held before it saw samples; it may be written to by any route later."""
        self._held = {id(t): weakref.ref(t) for t in tensors if not t.requires_grad}

    def note_written(self, tensors: Iterable[Tensor]) -> None:
        """These hold data now, and so does all that shares their memory."""
        for tensor in tensors:
            self.note([tensor, *(() if tensor._base is None else (tensor._base,))], constant=False)
            self._written.add(_address(tensor))

    def note(self, tensors: Iterable[Tensor], *, constant: bool) -> None:
        """Remember what tensors are, for as long as they live. Those with a graph are data."""
        for tensor in tensors:
            if not tensor.requires_grad:
                self._seen[id(tensor)] = weakref.ref(tensor), constant

    def note_counting(self, made: Tensor) -> None:
        """It was made as numbers of places, from zero: a device need not be asked whether it is."""
        self._counting[id(made)] = weakref.ref(made), version_of(made)

    def counts_up(self, tensor: Tensor) -> bool:
        """Whether it is known to be made of numbers of places, from zero."""
        made, version = self._counting.get(id(tensor), (None, 0))
        return made is not None and made() is tensor and version_of(tensor) == version

    def note_arguments(self, arguments: Any, batch: int) -> None:
        """What a model is called with is data, unless it is plainly shared by all samples.

        It may be either where no dimension has room for the samples: rows of all of them in any
        number, or a constant.
        """
        self._doubtful = {}
        for leaf in leaves(parse_output(arguments)):
            if self._noted(leaf) is None:
                self.note([leaf], constant=_is_shared(leaf, batch))
            if not _has_room(leaf, batch) and not leaf.requires_grad:
                self._doubtful[id(leaf)] = weakref.ref(leaf)
        # A list with one tensor for each sample is data, whatever the tensors' shapes.
        for part in arguments if isinstance(arguments, (tuple, list)) else ():
            if isinstance(part, (tuple, list)) and len(part) == batch > 1:
                self.note(tensors_in(part), constant=False)

    def is_constant(self, tensor: Tensor, batch: int) -> bool:
        """Whether ``tensor`` carries nothing of the ``batch`` samples, as far as is known."""
        if tensor.requires_grad:
            return False
        if isinstance(tensor, nn.Parameter) or self._buffers.get(id(tensor)) is tensor:
            return True
        noted = self._noted(tensor)
        held = self._held.get(id(tensor))
        if noted is None and held is not None and held() is tensor:
            return True
        # One that comes from nowhere was cached by the model, unless it has room for all samples.
        return not _has_room(tensor, batch) if noted is None else noted

    def is_constant_beside(self, tensor: Tensor, batch: int, shape: torch.Size | None) -> bool:
        """The same for a tensor that meets a parameter.

        One that may be either is a constant where it only scales or shifts the parameter's own
        entries, in arithmetic with something of this ``shape``.
        """
        reference = self._doubtful.get(id(tensor))
        if reference is None or reference() is not tensor or self._noted(tensor):
            return self.is_constant(tensor, batch)
        if shape is None:
            return False
        sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
        return tensor.ndim <= len(shape) and all(own in (1, other) for own, other in sizes)

    def is_known_constant(self, tensor: Tensor) -> bool:
        """Whether it was seen to be made of nothing that belongs to a sample."""
        if self._buffers.get(id(tensor)) is tensor:
            return True
        return self._noted(tensor) is True and _address(tensor) not in self._written

    def name_in_model(self, tensor: Any) -> str | None:
        """The buffer or parameter whose memory ``tensor`` shares."""
        if not isinstance(tensor, Tensor) or not tensor.numel():
            return None
        address = _address(tensor)
        found = self._storages.get(address) or self.watch.name_at(address)
        return found or self._name_of_gathered(address)

    def _name_of_gathered(self, address: int) -> str | None:
        """Weights that are gathered have other memory each time."""
        for name, parameter in self._model.named_parameters() if address else ():
            if self.at_rest(parameter) is parameter:
                break
            if _address(parameter) == address:
                return name
        return None

    def original(self, module: nn.Module, attribute: str) -> tuple[Tensor | None, str]:
        """A buffer as it was when the model was attached, and its name."""
        return self._originals.get((module, attribute), (None, attribute))

    def forget_dead(self) -> None:
        """Drop entries of tensors that are gone, when no samples are out any more."""
        self._written.clear()
        self._counting.clear()
        self._seen = {key: entry for key, entry in self._seen.items() if entry[0]() is not None}

    def _noted(self, tensor: Tensor) -> bool | None:
        reference, constant = self._seen.get(id(tensor), (None, False))
        return constant if reference is not None and reference() is tensor else None


def _is_shared(tensor: Tensor, batch: int) -> bool:
    if tensor.is_nested:
        return False
    if _has_room(tensor, batch):
        # Positions often come as a batch of one; data with one time step in front does not.
        one_row = tensor.ndim > 1 and tensor.shape[0] == 1 < batch
        return one_row and not tensor.is_floating_point()
    return tensor.numel() == 1 or counts_up(tensor)


def _has_room(tensor: Tensor, batch: int) -> bool:
    return batch == 1 or tensor.is_nested or any(size % batch == 0 for size in tensor.shape)
