"""Calls of a model that can be repeated, from the state they began with, with other samples.

A repeat runs in the capture as the call itself did: with gradients if it had them, from the same
random draws, attributes and buffers, in the same precision. Its backward pass begins with the
gradients that the losses sent to the call's outputs. So what it records can be compared with what
the call recorded, sample by sample.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quietgrad.capture.choice import new_generator
from quietgrad.capture.compare import (
    Node,
    coarsest_bits,
    leaves,
    parse_output,
    refuse_tangled,
    tensors_in,
)
from quietgrad.capture.draws import RandomState
from quietgrad.capture.layout import SiteKey, add_first_hook
from quietgrad.capture.model_state import (
    HeldValues,
    ModelState,
    compare_values,
    copy_values,
    mark_repeating,
)
from quietgrad.capture.owners import OwnedLayout, read_powers
from quietgrad.capture.samples import Arguments, Selection, copy_arguments, rebuild_arguments
from quietgrad.factors.base import Verdict, all_of, any_of, negated, send, verdict_of, version_of
from quietgrad.factors.membership import Membership

if TYPE_CHECKING:
    from quietgrad.capture.layout import OutputLayout
    from quietgrad.capture.outputs import Seed
    from quietgrad.capture.tape import Arrival, Tape, TargetFactor

Factors = dict[tuple["SiteKey", int], list["TargetFactor"] | None]
"""The factors at a site for its n-th gradient in a pass, one for each use; None if undecided."""


Sizes = tuple[tuple["SiteKey", torch.Size], ...]
"""Of what captured operations give, in the order in which they ran."""


@dataclass
class ModelCall:
    """One call of a model (or of a part of it, by the user), to be repeated with other samples.

    Attributes:
        model: the module that was called.
        args: what it was called with; copies if ``is_snapshot``.
        kwargs: likewise.
        random: the generators before the call.
        state: what the model held before the call; None unless ``is_snapshot``.
        with_gradients: whether they were enabled.
        outputs: where samples are in what it returned, by tensor.
        returned: what it returned.
        before: what the model held before it; None unless ``is_snapshot``.
        after: likewise after it.
        moved: the generators that it drew from.
        is_left: by attribute, whether the user has not changed it since.
        random_after: the generators after the call, if it drew from NumPy's or Python's.
        orders_rows: whether the graph behind it picks rows; a repeat may pick others.
        is_compiled: whether it did not run as it was written.
        sizes: of the captured operations in it.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomState
    state: ModelState | None
    with_gradients: bool
    autocast: list[tuple[str, torch.dtype, bool]]
    outputs: tuple[OutputLayout, ...] = ()
    returned: Node | None = None
    before: HeldValues | None = None
    after: HeldValues | None = None
    moved: frozenset[str] = frozenset()
    is_left: dict[str, Verdict] = field(default_factory=dict)
    random_after: RandomState | None = None
    orders_rows: bool = False
    is_compiled: bool = False
    sizes: Sizes = ()
    _edges: list[tuple[Any, int]] = field(default_factory=list)
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)
    _returned_versions: list[int] = field(default_factory=list)

    @staticmethod
    def begin(
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        devices: tuple[torch.device, ...],
        *,
        snapshot: bool,
    ) -> ModelCall:
        """A call that is about to be made; with a ``snapshot`` whatever it writes is known."""
        is_flat = not kwargs and not [part for part in args if not isinstance(part, Tensor)]
        if not is_flat:
            refuse_tangled((args, kwargs), "is called with")
        random = RandomState(devices, foreign=snapshot)
        state = ModelState(model) if snapshot else None
        found = args if is_flat else tensors_in((args, kwargs))
        given = [(t, version_of(t)) for t in found]
        if snapshot:
            args, kwargs = copy_arguments((args, kwargs))
        types = ("cpu", *{device.type for device in devices})
        precisions = [
            (each, torch.get_autocast_dtype(each), torch.is_autocast_enabled(each))
            for each in types
        ]
        with_gradients = torch.is_grad_enabled()
        call = ModelCall(
            model, args, kwargs, random, state, with_gradients, precisions, _versions=given
        )
        if state is not None:
            call.before = copy_values(model, state.held)
        return call

    @cached_property
    def bits(self) -> int:
        """Of the least precise type that it computes in: its weights', or that of autocast."""
        precisions = [
            torch.empty(0, dtype=d, device="cpu") for _, d, enabled in self.autocast if enabled
        ]
        return coarsest_bits([*self.model.parameters(), *precisions])

    def end(self, output: Any, layouts: Callable[[Tensor], OutputLayout]) -> None:
        """It returned this."""
        refuse_tangled(output, "returns", may_be_cyclic=True)
        self.returned = parse_output(output)
        tensors = list(leaves(self.returned))
        self.outputs = tuple(map(layouts, tensors))
        self._edges = [(tensor.grad_fn, tensor.output_nr) for tensor in tensors]
        self._returned_versions = [version_of(tensor) for tensor in tensors]
        self.moved = self.random.find_moved()
        self.random_after = RandomState() if self.moved - {"torch"} else None
        if self.state is not None:
            self.after = copy_values(self.model)
            assert self.before is not None
            if self.before.generators != self.after.generators:
                self.moved |= {"a generator in an attribute"}

    @property
    def arguments(self) -> list[Tensor]:
        """All tensors the model was called with."""
        return list(tensors_in((self.args, self.kwargs)))

    def was_given(self, tensor: Tensor) -> bool:
        """Whether it was called with this very tensor."""
        return any(given is tensor for given, _ in self._versions)

    def compare_kept(self, held: HeldValues | None) -> dict[str, Verdict]:
        """Whether attributes hold the same after another run, if they were not changed since."""
        if self.after is None or held is None:
            return {}
        verdicts = compare_values(self.after.values, held.values)
        left = self.is_left
        return {n: any_of((each, negated(left.get(n, True)))) for n, each in verdicts.items()}

    def note_transient(self) -> None:
        """What the user has taken out of the model since the call is not kept by it."""
        if self.after is not None:
            self.is_left = compare_values(self.after.values, copy_values(self.model).values)

    @property
    def ends(self) -> set[Any]:
        """The nodes of the graph that end at what it returned."""
        return {node for node, _ in self._edges if node is not None}

    def note_direct(self, edges: Collection[tuple[Any, int]]) -> None:
        """Of which of its outputs losses are made directly: those at these edges of the graph."""
        for output, edge in zip(self.outputs, self._edges, strict=True):
            output.is_direct = edge in edges

    @cached_property
    def leaves_traces(self) -> Verdict:
        """Whether the call changed what it was given or what the model holds, or drew elsewhere.

        Such a call can be repeated from a snapshot only.
        """
        has_written = any(version_of(tensor) != version for tensor, version in self._versions)
        if has_written or self.moved - {"torch"} or self.before is None or self.after is None:
            return has_written or bool(self.moved - {"torch"})
        are_kept = compare_values(self.before.values, self.after.values).values()
        return negated(all_of(are_kept))

    @property
    def recorded_outputs(self) -> Node | None:
        """What it returned; None if the user has written to it since."""
        assert self.returned is not None
        now = [version_of(tensor) for tensor in leaves(self.returned)]
        return self.returned if now == self._returned_versions else None

    @contextmanager
    def circumstances(self) -> Iterator[None]:
        """As when it was called: what the model held, generators, precision, gradients."""
        with ExitStack() as stack:
            if self.state is not None:
                self.state.restore()
            self.random.restore()
            for device, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled=enabled))
            stack.enter_context(torch.set_grad_enabled(self.with_gradients))
            stack.enter_context(mark_repeating())
            yield


@dataclass(frozen=True)
class Execution:
    """One run of a call.

    Attributes:
        selection: which sample of the call each of its samples is.
        outputs: what it returned.
        factors: of the gradients that arrived.
        strays: parameters at sites that were never probed, and whether gradients arrived there, so
            that nobody knows whose they are: then the run took another way than the call.
        inner: gradients of those arguments that require them, in order.
        held: what the model held after it; None if that is not compared.
        has_same_draws: whether NumPy's and Python's generators drew as much as in the call: then
            what they drew was for all samples together, or for as many.
        rows: whose the rows of its arguments are, if that was asked.
        is_alike: whether all operations were of the same sizes as in the call, so that kernels
            round alike.
    """

    selection: Selection
    outputs: Node
    factors: Factors
    strays: tuple[tuple[str, Verdict], ...] = ()
    inner: tuple[Tensor | None, ...] = ()
    held: HeldValues | None = None
    has_same_draws: bool = True
    rows: ArgumentRows | None = None
    is_alike: bool = True

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.selection.samples)

    @property
    def unknown(self) -> frozenset[str]:
        """The parameters with gradients that belong to nobody known."""
        return frozenset(name for name, is_touched in self.strays if is_touched)


class FactorRecorder:
    """Makes the factors of what arrives at sites in one pass.

    Args:
        tape: knows whose the rows are.
        is_probed: whether these gradients themselves were probed, and not those of a repeat.
        only: the samples that are asked for later; None for all.

    Attributes:
        factors: what it made.
        strays: the parameters at sites of which nobody knows whose the rows are, and whether there
            are gradients.
    """

    def __init__(self, tape: Tape, *, is_probed: bool = False, only: Tensor | None = None) -> None:
        self._only = only
        self.factors: Factors = {}
        self.strays: list[tuple[str, Verdict]] = []
        self._tape, self._is_probed = tape, is_probed
        self._counts: Counter[SiteKey] = Counter()

    def __call__(self, arrival: Arrival) -> list[TargetFactor]:
        """A gradient arrived; what was made of it."""
        key = arrival.site.key
        made = self._tape.factors_of(arrival, is_probed=self._is_probed)
        if made and self._only is not None:
            made = [each.only(self._only) for each in made]
        if made or made is None:
            self.factors[key, self._counts[key]] = made
        if not made:
            is_touched = verdict_of(arrival.grad.any())
            names = (name for use in arrival.site.uses for name in use.target.names)
            self.strays += [(name, is_touched) for name in names if is_touched is not False]
        self._counts[key] += 1
        return made or []


class ArgumentRows:
    """Finds out whose the rows of arguments are.

    Numbers are tapped, so that their gradients tell. Ids have none, but an operation that looks
    them up does.

    Attributes:
        found: by number among the tensors of the arguments.
        untold: numbers of those that are no ids, and whose rows have no gradients.
    """

    def __init__(self, tape: Tape) -> None:
        self.found: dict[int, OwnedLayout] = {}
        self.untold: set[int] = set()
        self._tape = tape
        self._sites: dict[int, int] = {}
        self._tensors: list[Tensor] = []

    def tap(self, arguments: Arguments) -> Arguments:
        """The arguments, as they are to be passed on."""

        def tap(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return None
            number = len(self._tensors)
            self._tensors.append(part)
            if not part.is_floating_point() or not part.ndim or part.requires_grad:
                return part
            key = SiteKey("", "argument", str(number), 0, "", part.ndim)
            site = self._tape.add_site(key, part.shape, range(min(2, part.ndim)), ())
            site.asks_owners = True
            self.untold.add(number)
            self._sites[id(site)] = number
            return self._tape.tap_output(part.clone(), site, ())

        return rebuild_arguments(arguments, tap)

    def read(self, arrivals: Sequence[Arrival]) -> None:
        """Gradients arrived, and rows have been told apart."""
        by_address = {t.data_ptr(): n for n, t in enumerate(self._tensors) if t.numel()}
        for arrival in arrivals:
            layout = self._tape.find_layout(arrival)
            if layout is None:
                continue
            rows = OwnedLayout.of(
                layout, arrival.grad.shape, arrival.grad.device, self._tape.membership
            )
            number = self._sites.get(id(arrival.site))
            if number is not None and rows.dims:
                self._note(number, rows)
            if arrival.site.reads is not None:
                ids, places = arrival.site.reads
                owners = rows.owners.flatten()[send(places, rows.owners.device)]
                self._note_tensor(by_address, ids, replace(rows, owners=owners, dims=(0,)))
            for saved in arrival.saved:
                self._note_tensor(by_address, saved, rows)

    def _note_tensor(self, numbers: dict[int, int], tensor: Tensor, rows: OwnedLayout) -> None:
        number = numbers.get(tensor.data_ptr(), -1)
        if number >= 0 and tensor.numel() == self._tensors[number].numel():
            self._note(number, rows.reshape(self._tensors[number].shape))

    def _note(self, number: int, rows: OwnedLayout | None) -> None:
        if rows is None or number in self.found:
            return
        owners = rows.owners.cpu()  # more than one thing is asked of them
        if bool((owners >= 0).any()):
            is_touched = torch.ones((), dtype=torch.bool, device="cpu")
            self.found[number] = replace(rows, owners=owners, is_touched=is_touched)
            self.untold.discard(number)


class Tremble:
    """Moves weights by a few times their rounding error, and each the same when asked again."""

    def __init__(self) -> None:
        self._seed = int(torch.randint(1 << 62, (), generator=new_generator(), device="cpu"))

    def __call__(self, name: str, values: Tensor) -> Tensor:
        """Other values of a weight."""
        if not values.is_floating_point():
            return values
        info = torch.finfo(values.dtype)
        generator = torch.Generator("cpu").manual_seed(self._seed ^ zlib.crc32(name.encode()))
        drawn = torch.randn(values.shape, generator=generator, device="cpu").to(values.device)
        size = info.eps * (1 if info.bits == 16 else _ROUNDINGS)
        return (values * (1 + size * drawn.double())).to(values.dtype)


_ROUNDINGS = 8

Recapture = Callable[[Membership], AbstractContextManager["Tape"]]
"""A tape of these records for what the model does inside."""
Seeds = Callable[[Node, "Tensor | None"], "list[Seed]"]
"""The outputs that the backward pass begins with, and their gradients, each sample's multiplied."""


def repeat(
    call: ModelCall,
    choose: Callable[[Any], Any],
    selection: Selection,
    seeds: Seeds | None,
    recapture: Recapture,
    mode: AbstractContextManager[Any] | None = None,
    *,
    hold: bool = False,
    only: Tensor | None = None,
    read_rows: bool = False,
) -> Execution:
    """Run a call with what ``choose`` makes of its arguments: these samples of it.

    Without ``seeds`` there is no backward pass; with ``only``, gradients of these of its samples
    are kept, and of no others; with ``hold``, what the model holds afterwards is copied; with
    ``read_rows`` it is found out whose the rows of its arguments are. Whoever calls this puts back
    the model's state and the generators afterwards.
    """
    args, kwargs = choose((call.args, call.kwargs))
    inner = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
    grads: tuple[Tensor | None, ...] = tuple(None for _ in inner)
    mode = mode or nullcontext()
    with call.circumstances(), recapture(selection.membership) as tape:
        argument_rows = ArgumentRows(tape)
        if read_rows:
            args, kwargs = argument_rows.tap((args, kwargs))
        with mode:
            outputs = parse_output(call.model(*args, **kwargs))
        has_same_draws = call.random_after is None or call.random_after.has_same_foreign()
        recorder = FactorRecorder(tape, only=only)
        if seeds is not None:
            with mode if tape.recomputes or tape.is_checkpointed else nullcontext():
                propagation = _Propagation(tape, outputs, seeds, inner, call.is_compiled)
                is_open = call.orders_rows or read_rows
                try:
                    grads = propagation.run(recorder, orders_rows=is_open)
                    argument_rows.read(propagation.arrivals if read_rows else ())
                finally:
                    propagation.forget()
        held = None
        if call.after is not None and (hold or call.moved - {"torch"}):
            held = copy_values(call.model)
            has_same_draws &= held.generators == call.after.generators
        strays = tuple(recorder.strays)
        is_alike = tape.list_sizes() == call.sizes
        found = recorder.factors, strays, grads, held, has_same_draws, argument_rows, is_alike
        return Execution(selection, outputs, *found)


class _Propagation:
    """The backward pass of a repeat, from the gradients that the losses sent to the outputs.

    One output may be computed from another. What the losses sent to either is known in all, so that
    it takes the place of what arrives there; unless it is ``direct``, what they sent to it itself.
    """

    def __init__(
        self, tape: Tape, outputs: Node, seeds: Seeds, inner: Sequence[Tensor], is_direct: bool
    ) -> None:
        self._tape, self._inner, self._is_direct = tape, inner, is_direct
        self._seeds = partial(seeds, outputs)
        self._gradients: dict[int, Tensor] = {}
        self._roots: list[Tensor] = []
        self.arrivals: list[Arrival] = []

    def run(
        self, observe: Callable[[Arrival], object], *, orders_rows: bool
    ) -> tuple[Tensor | None, ...]:
        """Let all that arrives be observed; returns the gradients of the inner leaves."""
        seeds = {id(seed.output): seed for seed in self._seeds(None) if seed.output.requires_grad}
        for output, _, is_before_hooks in () if self._is_direct else seeds.values():
            put = partial(self._put, id(output))
            if is_before_hooks:
                add_first_hook(output, put)
            else:
                output.register_hook(put)
        self._roots = [seed.output for seed in seeds.values()]
        if not seeds:
            return tuple(None for _ in self._inner)
        tape = self._tape
        tape.accept_ambiguity()
        if tape.batch == 1 or not (orders_rows or tape.has_owned_rows()):
            self._propagate(None, observe, self._inner)
            return tuple(tensor.grad for tensor in self._inner)
        arrivals = self.arrivals
        self._propagate(None, arrivals.append, self._inner, keep_graph=True)
        grads = tuple(tensor.grad for tensor in self._inner)
        read_powers(
            tape.layouts,
            tape.membership,
            arrivals,
            partial(self._propagate, keep_graph=True),
            learn=False,
        )
        for arrival in arrivals:
            observe(arrival)
        return grads

    def forget(self) -> None:
        """Let go of the outputs, whose hooks refer to this."""
        self._roots, self._gradients, self.arrivals = [], {}, []
        del self._seeds

    def _propagate(
        self,
        factors: Tensor | None,
        observe: Callable[[Arrival], object],
        leaves: Sequence[Tensor] = (),
        *,
        keep_graph: bool = False,
    ) -> None:
        """One pass, in which each sample's gradients are multiplied by its factor."""
        self._gradients = {id(seed.output): seed.gradient for seed in self._seeds(factors)}
        if self._is_direct:
            given = [self._gradients[id(root)] for root in self._roots]
        else:
            given = [torch.zeros_like(root) for root in self._roots]
        self._tape.propagate(self._roots, given, observe, leaves=leaves, keep_graph=keep_graph)

    def _put(self, output: int, _: Tensor) -> Tensor:
        return self._gradients[output]
