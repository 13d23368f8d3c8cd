"""Attaching to a model: hooks that switch the capture on while the model's forward runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.attributes import find_values
from quietgrad.capture.call import Frame
from quietgrad.capture.choice import common_choices
from quietgrad.capture.collation import Collation
from quietgrad.capture.compare import agree_throughout, parse_output
from quietgrad.capture.compiled import Lent, Uncompiled, refuse_compiled_backward
from quietgrad.capture.draws import RandomState, find_devices, with_generators
from quietgrad.capture.graph import Graph
from quietgrad.capture.independence import RecordedCall, is_repeated_alike
from quietgrad.capture.layout import LayoutTable, OutputLayout
from quietgrad.capture.mode import CaptureMode
from quietgrad.capture.model_state import (
    AttributeWatch,
    ModelState,
    preserve_state,
)
from quietgrad.capture.operations import Interception
from quietgrad.capture.parameters import ParameterTable, Provenance, WeightWatch
from quietgrad.capture.refusals import (
    check_losses,
    check_module,
    check_replaced_buffers,
    check_scale,
    kept_data_refusal,
    note_if_exhausted,
    raw_data_refusal,
    refuse_escaped_gradients,
    refuse_foreign_gradients,
    refuse_hooks,
    refuse_unusable,
    refuse_wrapped_call,
)
from quietgrad.capture.repetition import ModelCall, Recapture
from quietgrad.capture.tape import Arrival, Sink, Tape, TapePhase
from quietgrad.capture.verification import Verifier
from quietgrad.distributed.world import World
from quietgrad.errors import (
    EngineStateError,
    QuietgradError,
    StrayGradientError,
    TrainableSetError,
)
from quietgrad.factors.base import Verdict, ignoring_autocast, without_autocast
from quietgrad.factors.membership import Membership

if TYPE_CHECKING:
    from quietgrad.capture.compilation import ModelCompiler


def remove_mode(unwanted: TorchFunctionMode) -> None:
    """Switch it off, however often it is on: an interrupt may have come at any moment."""
    if unwanted not in _get_current_function_mode_stack():
        return
    others = [_pop_mode() for _ in _get_current_function_mode_stack()]
    for mode in reversed(others):
        if mode is not unwanted:
            _push_mode(mode)


class Capture:
    """Per-sample gradients of a model, recorded by whatever backward pass it is asked for.

    The capture mode is entered in each module's own forward, not around the whole model, so that
    what activation checkpointing recomputes is captured too. ``when`` tells whether a forward is to
    be captured at all (the engine leaves evaluation alone). Unless ``thorough``, backward passes
    are not verified beyond what exactness needs.
    """

    def __init__(
        self,
        model: nn.Module,
        when: Callable[[], bool] = lambda: True,
        *,
        thorough: bool = True,
        world: World | None = None,
        backend: str | None = None,
    ) -> None:
        _refuse_attached(model)
        self._world = world or World()
        refuse_unusable(model, self._world)
        self.on_detach: Callable[[], None] = self.detach
        self.on_refusal: Callable[[QuietgradError], None] = lambda error: None
        self.on_verified: Callable[[int], None] = lambda samples: None
        self.parameters = ParameterTable(model)
        self._names = tuple(self.parameters.trainable())
        self._when = when
        self._layouts = LayoutTable()
        self._provenance = Provenance(model, self._world.at_rest, self.parameters.tree)
        held = (value for _, value in find_values(model) if isinstance(value, Tensor))
        self._provenance.note_held(held)
        self._tape = self._make_tape()
        self._mode = CaptureMode(self.parameters, lambda: self._tape, self.note_refusal)
        self._interception = Interception(self._mode.handle_hidden)
        self._uncompiled: Uncompiled | Lent = Uncompiled()
        self._model = self.model = model
        self._devices = find_devices(model)
        self.loss_scale = 1.0  # by which gradients come multiplied
        self._attributes, self._weights = (
            AttributeWatch(model),
            WeightWatch(self.parameters, self._world.at_rest),
        )
        self._written: list[tuple[str, Verdict]] = []  # asked of weights, and not yet read
        self.picks_rows = False  # whether the last backward pass met rows in any order
        self._is_capturing = self._is_paused = self._is_repeating = self._is_out = False
        self._call: ModelCall | None = None
        self._handled: BaseException | None = None
        self._verifier = Verifier(
            self.parameters.describe,
            self._repeating,
            self._refuse_kept_gradients,
            self._certify,
            self._world.moved_weights,
            saves_room=self._world.saves_room,
            thorough=thorough,
        )
        self.compiler: ModelCompiler | None = None
        self.plain_call: Callable[..., Any] = model._call_impl
        self._own_call = vars(model).get("_compiled_call_impl")
        if backend is not None:
            # By name: torch's compiler takes a second to load.
            compilation = import_module("quietgrad.capture.compilation")
            self.compiler = compilation.ModelCompiler(model, backend, self.parameters, self._mode)
            model._compiled_call_impl = _Route(self)
        self._handles: dict[nn.Module, tuple[RemovableHandle, RemovableHandle]] = {}
        for path, module in model.named_modules():
            hook = _Hook(self, path)
            self._handles[module] = (
                module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True),
                module.register_forward_hook(hook, with_kwargs=True, always_call=True),
            )

    def lend_stance(self) -> Uncompiled:
        """What holds the compiler's stance: from here on as long as the caller keeps it."""
        hold = Uncompiled()
        self._uncompiled = Lent(hold)
        return hold

    def _switch_off(self) -> None:
        remove_mode(self._mode)
        self._interception.stop()

    def detach(self) -> None:
        """Remove every hook: the model is as it was."""
        self.begin()
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()
        if isinstance(vars(self._model).get("_compiled_call_impl"), _Route):
            del self._model._compiled_call_impl
            if self._own_call is not None:
                self._model._compiled_call_impl = self._own_call

    def _stay_outermost(self, module: nn.Module) -> None:
        """What the user's hooks do is part of the forward, also of hooks that came later."""
        before, after = (handle.id for handle in self._handles[module])
        hooks = module._forward_pre_hooks
        if next(iter(hooks)) != before:
            others = {key: hook for key, hook in hooks.items() if key != before}
            own = hooks[before]
            hooks.clear()
            hooks.update({before: own} | others)
        if next(reversed(module._forward_hooks)) != after:
            module._forward_hooks[after] = module._forward_hooks.pop(after)

    def begin(
        self,
        batch: int | Membership | None = None,
        *,
        verify: bool = False,
        collation: Collation | None = None,
    ) -> None:
        """Begin a recording for so many samples; what ran before, interrupted too, is forgotten.

        Samples that consist of several records are told by their membership. None if no samples are
        out. With ``verify`` the coming backward pass first verifies that samples are independent,
        also as they were put together by ``collation``. Until :meth:`rest`, whatever torch.compile
        made runs as it was written.
        """
        self._switch_off()
        if batch is None:
            self._uncompiled.stop()
        else:
            self._uncompiled.start()
        if verify and self.compiler is not None:
            self.compiler.is_wanted = False
        membership = Membership(batch) if isinstance(batch, int) else batch
        self._begin(membership, verify=verify, collation=collation)

    def rest(self) -> None:
        """Nothing more will be captured of these samples: compiled code runs compiled again."""
        self._uncompiled.stop()

    def _begin(
        self, membership: Membership | None, *, verify: bool, collation: Collation | None
    ) -> None:
        self._is_capturing = self._is_paused = self._is_repeating = False
        if membership is None:
            self._weights.end()
        self._is_out = membership is not None
        self._call = None
        self._mode.frames.clear()
        self._tape.close()
        self._provenance.forget_dead()
        self._provenance.watch.begin()
        self._attributes.begin(looking=verify)
        self._tape = self._make_tape(membership, verify=verify)
        self._tape.collation, self._tape.scale = collation, self.loss_scale

    @ignoring_autocast
    def backward(self, losses: Tensor, sink: Sink, *, scale: float = 1.0) -> None:
        """One backward pass of ``scale * loss_scale * losses[B]``; factors go to ``sink``.

        Where this is to be verified, or an operation has not been seen before, probes first
        establish which rows belong to which sample, and that samples are independent.
        """
        tape, collation = self._tape, self._tape.collation
        self._check_losses(losses, scale)
        self._world.require_same_losses(losses)
        try:
            graph, is_wanted = self._look_at(losses)
            source = self._world.common_choices()
            vote = self._world.vote_on_passes
            choices = nullcontext() if source is None else common_choices(source, vote)
            with self._world.verifying(is_wanted=is_wanted), choices:
                whole = self._verify(losses, graph)
                if whole is not None and scale == 1.0:
                    tape.collect_recorded(whole, sink)
                else:
                    tape.collect(losses, sink, scale)
            self._world.rest()
            self._refuse_escaped()
        except BaseException:
            self._drop_gradients()
            raise
        finally:
            self._switch_off()
            self._begin(tape.membership, verify=tape.verify, collation=collation)

    def _check_losses(self, losses: Tensor, scale: float = 1.0) -> None:
        """Refuse what cannot be back-propagated here; the call can be made again, rightly."""
        membership = self._tape.membership
        noun = "sample" if membership.records == membership.samples else "record"
        check_losses(losses, membership.records, noun)
        refuse_compiled_backward()
        check_scale(losses, scale * self._tape.scale)
        if not self._when():
            raise StrayGradientError(
                "the model is in eval mode: its forward was not captured, and nothing was "
                "accumulated. Call model.train() before computing the losses."
            )

    def _look_at(self, losses: Tensor) -> tuple[Graph, bool]:
        """The graph behind the losses, and whether other ranks have to take part in verifying."""
        with self.parameters.tree:
            trained = self.check_trainable_set()
            refuse_foreign_gradients({n: self._world.at_rest(p) for n, p in trained.items()})
            self._refuse_written_buffers()
        graph = self._verifier.summarize(self._tape, losses)
        is_asked = self._world.has_collectives  # others want to know
        return graph, is_asked and self._verifier.wants_passes(self._tape, graph)

    def _verify(self, losses: Tensor, graph: Graph) -> list[Arrival] | None:
        """Refuse what mixes samples; the gradients of all losses, if they were verified."""
        tape = self._tape
        self._refuse_kept_data(tape)
        self._attributes.begin_backward()
        whole = self._verifier.verify(tape, losses, graph)
        if (name := self._find_asked()) is not None:
            raise raw_data_refusal(name)
        self.picks_rows = tape.selects_rows or tape.has_owned_rows()
        if tape.phase is not TapePhase.FORWARD:  # verification writes buffers, and puts them back
            self._provenance.watch.begin()
        if whole is not None and self._verifier.is_decisive:
            self.on_verified(tape.membership.samples)
        return whole

    def _refuse_escaped(self) -> None:
        """What a backward pass wrote besides what was clipped."""
        with self.parameters.tree:
            self._refuse_written_buffers()
            refuse_escaped_gradients(self.parameters.trainable())

    def _drop_gradients(self) -> None:
        for parameter in self.parameters.trainable().values():
            parameter.grad = None

    # -- several recordings at once -------------------------------------------------------------

    def begin_flight(
        self,
        batch: int,
        *,
        verify: bool = False,
        collation: Collation | None = None,
        is_of_one: bool = False,
    ) -> None:
        """Begin one of several recordings, of which others were set aside before.

        If it ``is_of_one`` sample, of which all others are copies, nothing can be told of mixing.
        """
        self._begin(Membership(batch), verify=verify, collation=collation)
        self._tape.is_of_one |= is_of_one

    @ignoring_autocast
    def set_aside(self, losses: Tensor) -> Tape:
        """Verify the recording under way, as :meth:`backward` does, and hand it out.

        Its backward pass comes later, in :meth:`landing`. ``losses`` may stand for others that only
        another process knows: they must depend on all that the model returned.
        """
        tape = self._tape
        self._check_losses(losses)
        try:
            graph, _ = self._look_at(losses)
            self._verify(losses, graph)
        except BaseException:
            self._drop_gradients()
            raise
        for tensor in (tensor for call in tape.calls for tensor in call.arguments):
            tensor.grad = None  # what reentrant checkpointing left there
        tape.calls.clear()
        self._tape = self._make_tape()
        return tape

    @contextmanager
    def landing(self, tape: Tape, sink: Sink) -> Iterator[None]:
        """In here somebody runs the backward pass of a recording that was set aside, once."""
        refuse_foreign_gradients(self.check_trainable_set())
        self._tape = tape
        try:
            with without_autocast(), tape.collecting(sink):
                yield
            self._refuse_escaped()
        except BaseException:
            self._drop_gradients()
            raise
        finally:
            tape.close()
            self._switch_off()
            self._tape = self._make_tape()

    def _make_tape(self, membership: Membership | None = None, *, verify: bool = False) -> Tape:
        return Tape(self._layouts, self._provenance, membership or Membership(1), verify=verify)

    @property
    def records(self) -> int:
        """How many are out: of samples that may consist of several."""
        return self._tape.membership.records

    def tell_owners(self) -> Tensor:
        """Whose each of them is, to be handed to the model."""
        if not self._is_out:
            raise EngineStateError(
                "no records are out: ask for their owners inside of 'for x, y in batch', before "
                "engine.backward()."
            )
        return self._tape.membership.tell()

    def operations(self) -> dict[str, tuple[str, ...]]:
        """For every parameter the operations that used it since :meth:`begin`."""
        return self._tape.operations()

    def arguments(self) -> list[Tensor]:
        """All tensors that the model was called with since :meth:`begin`."""
        return [tensor for call in self._tape.calls for tensor in call.arguments]

    @property
    def is_verifying(self) -> bool:
        """Whether what is run now is looked at closely: at first always, then ever more rarely."""
        return self._tape.verify

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """The model runs without being captured and without gradients, and stays as it was."""
        with self.paused(), preserve_state(self._model):
            yield

    def check_trainable_set(self) -> dict[str, nn.Parameter]:
        """The trainable parameters; refuses to go on if one was frozen or unfrozen."""
        now = self.parameters.trainable()
        refuse_hooks(now)
        changed = sorted(set(now) ^ set(self._names))
        if changed:
            verb = "unfrozen" if changed[0] in now else "frozen"
            raise TrainableSetError(
                f"parameter '{changed[0]}' was {verb} after attaching ({len(changed)} changed in "
                "all). Noise and sensitivity were set up for the parameters that were trainable "
                "then: detach, change requires_grad, and attach again."
            )
        if (moved := self._weights.find_moved(now)) is not None:
            raise TrainableSetError(
                f"parameter '{moved[0]}' became '{moved[1]}' while the samples of a batch were out "
                "(its module was moved to another place): gradients of one batch are added up by "
                "name. Move modules between engine.step() and the next batch."
            )
        return now

    def begin_batch(self, *, thorough: bool) -> None:
        """A logical batch is handed out: weights are not to be written until its step.

        If its first micro-batch is watched ``thorough``ly, writes that torch does not count show.
        """
        self._devices = with_generators(self.parameters.tree.tensors)  # it may have been moved
        self._weights.begin()
        self._weights.watch(thorough=thorough)

    def continue_batch(self, *, thorough: bool) -> None:
        """Its next micro-batch is handed out, if nothing was written since."""
        self.require_unwritten(thorough=thorough)
        self._weights.watch(thorough=thorough)

    def require_intact(self) -> dict[str, nn.Parameter]:
        """The trainable parameters, if they are those of before and nothing was written."""
        with self.parameters.tree:
            trained = self.check_trainable_set()
            self.require_unwritten()
        return trained

    def require_unwritten(self, *, thorough: bool = True) -> None:
        """Refuse buffers and weights that were written while the samples of a batch were out."""
        self._refuse_written_buffers()
        self._refuse_written_weights(thorough=thorough)

    def begin_backward(self) -> None:
        """Refuse losses of weights that may be put back before anything else is compared."""
        if self._weights.is_thorough:
            self._refuse_written_weights(thorough=True, waiting=False)

    def _refuse_written_weights(self, *, thorough: bool, waiting: bool = True) -> None:
        """Without ``waiting``, what a device has to be asked is read after the verification."""
        name = self._weights.find_written(thorough=thorough and waiting)
        if not waiting:
            self._written = self._weights.ask_written()
            is_known = any(is_written is True for _, is_written in self._written)
            name = name or (self._find_asked() if is_known else None)
        if name is not None:
            raise raw_data_refusal(name)

    def _find_asked(self) -> str | None:
        """The name of a weight that had been written when it was asked for."""
        asked, self._written = self._written, []
        return next((name for name, is_written in asked if is_written), None)

    def note_refusal(self, error: QuietgradError) -> None:
        """Something was refused, also if the model catches it; not if it is only tried out."""
        if not self._is_repeating:
            self.on_refusal(error)

    def enter(self, path: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """A module's forward begins."""
        if self._is_paused:
            return
        frames = self._mode.frames
        outermost = not frames
        if outermost:
            self._handled = sys.exception()  # of whatever the model is called in
        frame = Frame(path)
        frames.append(frame)
        if frame.checkpoint is not None:
            self._tape.is_checkpointed = True
        has_gradients = torch.is_grad_enabled()
        if outermost and (has_gradients or self._is_out) and self._when():
            if self._world.size > 1:
                refuse_wrapped_call()
            self._stay_outermost(module)
            self._attributes.reset_known()  # an evaluation may have set them since
            self._record_call(module, args, kwargs)
            self._provenance.note_arguments((*args, *kwargs.values()), self._tape.batch)
            self._is_capturing = True
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._interception.start()
        if not has_gradients and self._when():
            # Perhaps a checkpointed segment that will run again inside the backward pass.
            self._tape.recomputes |= not outermost or _is_trainable(module)
        if self._is_capturing and isinstance(module, nn.SyncBatchNorm):
            check_module(module, path)

    def leave(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """A module's forward ended, or failed: then there is no output."""
        if output is None:
            note_if_exhausted(sys.exception(), self._tape.membership.records)
            self._world.explain(sys.exception())
        if self._is_paused:
            return
        frames = self._mode.frames
        if frames:
            frames.pop()
        captured = self._is_capturing
        if captured and not frames:
            self._switch_off()
            self._is_capturing = False
            failed = output is None and sys.exception() is not self._handled
            if failed and isinstance(sys.exception(), QuietgradError):
                self.rest()
            self._end_call(output, failed=failed)
        if captured and output is not None and module._buffers:
            check_replaced_buffers(module, self._tape)

    def _end_call(self, output: Any, *, failed: bool = False) -> None:
        call, self._call = self._call, None
        if call is not None and not failed:
            probe = self._tape.running_probe
            call.end(output, lambda tensor: OutputLayout(tensor, probe))
            self._tape.calls.append(call)

    def call(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call of the model from outside: compiled if that was seen to give the same."""
        model, compiler, tape = self._model, self.compiler, self._tape
        assert compiler is not None
        if compiler.is_trying and self._is_repeating:
            return compiler.try_call(tape, args, kwargs)
        is_captured = self._is_out and not (self._is_paused or self._is_repeating)
        if not is_captured or self._mode.frames or not self._when():
            run = self.plain_call if self._is_out or self._own_call is None else self._own_call
            return run(*args, **kwargs)
        if compiler.is_ready(tape):
            self._attributes.reset_known()
            self._record_call(model, args, kwargs)
            self._provenance.note_arguments((*args, *kwargs.values()), tape.batch)
            graph, output = compiler.run(tape, args, kwargs)
            if graph is not None:
                assert self._call is not None
                self._call.is_compiled, self._call.orders_rows = True, graph.orders_rows
                self._end_call(output)
                return output
            if self._call is not None:
                self._call.random.restore()
            self._call = None
        result: Any = self.plain_call(*args, **kwargs)
        return result

    @property
    def wants_certificate(self) -> bool:
        """Whether the next micro-batch is to be verified, so that it can be compiled."""
        return self.compiler is not None and self.compiler.is_wanted

    def _certify(self, recorded: RecordedCall, tape: Tape, number: int) -> None:
        """Compile a call that was verified as it ran, if it gives the same."""
        compiler, call = self.compiler, recorded.call
        if compiler is None or not compiler.may_try or call.is_compiled:
            return
        if call.model is not self._model or not call.with_gradients:
            if not any(each.model is self._model for each in tape.calls):
                compiler.give_up("the loop calls parts of the model, and not the model itself")
            return
        if tape.selects_rows or tape.has_owned_rows() or tape.recomputes or tape.is_checkpointed:
            compiler.give_up("its rows belong to samples in any order, or it computes some again")
        elif any(is_enabled for *_, is_enabled in call.autocast):
            compiler.give_up("autocast is on")
        elif call.leaves_traces:
            compiler.give_up("a call changes what the model holds, or draws outside of torch")
        else:
            sites = [site for site in tape.sites if site.uses and site.call == number]
            with compiler.trying(sites):
                is_alike = is_repeated_alike(recorded)
            compiler.conclude(is_alike=is_alike, orders_rows=call.orders_rows)

    def _record_call(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Unless it is a part that runs again inside a backward pass, or only repeated."""
        tape = self._tape
        if tape.phase is TapePhase.FORWARD and not self._is_repeating:
            snapshot = tape.verify or self._verifier.needs_snapshots
            self._call = ModelCall.begin(module, args, kwargs, self._devices, snapshot=snapshot)

    @contextmanager
    def _repeating(self) -> Iterator[Recapture]:
        """Calls may be repeated in here; the model and all generators stay as they were."""
        state, random = ModelState(self._model), RandomState(self._devices)
        try:
            yield self._recapture
        finally:
            state.restore()
            random.restore()

    @contextmanager
    def _recapture(self, membership: Membership) -> Iterator[Tape]:
        """What the model does in here is recorded on a tape of its own."""
        own = self._tape
        self._tape = self._make_tape(membership)
        self._is_repeating = True
        try:
            yield self._tape
        finally:
            self._switch_off()
            self._mode.frames.clear()
            self._tape.close()
            self._tape, self._is_capturing, self._is_repeating = own, False, False
            self._world.end_repeat()

    @contextmanager
    def paused(self, is_paused: bool = True) -> Iterator[None]:
        """The model runs without being captured; or, in such a block, it is captured again."""
        before, self._is_paused = self._is_paused, is_paused
        try:
            yield
        finally:
            self._is_paused = before

    def _refuse_kept_data(self, tape: Tape) -> None:
        """Attributes that do not count for the next forward are emptied."""
        self._attributes.reset_known()

        def find() -> str | None:
            return self._attributes.find_data(
                lambda tensor: tape.derived(tensor) is None and not tape.is_constant(tensor),
                numbers_were_read=tape.reads_numbers,
            )

        while (name := find()) is not None:
            # What is kept now and then only would be kept until the next verification.
            is_regular = not self._verifier.has_verified and self._attributes.can_reset(name)
            if not is_regular or self._remembers(name, tape):
                raise kept_data_refusal(name)
            self._attributes.reset(name)

    def _remembers(self, name: str, tape: Tape) -> bool:
        """Whether it counts for a forward what an attribute holds: None, or what was kept."""
        module, attribute = self._attributes.locate(name)
        kept = getattr(module, attribute)
        with self._repeating() as recapture:
            for call, value in product(tape.calls, (None, kept)):
                with call.circumstances(), recapture(tape.membership):
                    setattr(module, attribute, value)
                    try:
                        outputs = parse_output(call.model(*call.args, **call.kwargs))
                    except Exception:
                        return True
                    assert call.returned is not None
                    if not agree_throughout(call.returned, outputs):
                        return True
        return False

    def _refuse_kept_gradients(self) -> None:
        """What hooks kept while gradients were back-propagated."""
        self._refuse_written_buffers()
        name = self._attributes.find_gradients()
        if name is not None:
            raise kept_data_refusal(name)

    def _refuse_written_buffers(self) -> None:
        name = self._provenance.watch.find_changed(self._provenance.is_known_constant)
        if name is not None:
            raise raw_data_refusal(name)


class _Route:
    """Takes the calls of a model that is compiled; of a copy of it it does nothing."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._capture.plain_call(*args, **kwargs)
        return self._capture.call(args, kwargs)

    # Most modules leave it out of copies of themselves; a copy calls its own forward.
    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class _Hook:
    """Belongs to one attached model; a copy of the model gets hooks that do nothing."""

    def __init__(self, capture: Capture | None = None, path: str = "") -> None:
        self.capture, self._path = capture, path

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, *output: Any) -> None:
        # Compiled code runs without the hooks: an evaluation, for with samples out there is none.
        if torch.compiler.is_compiling() or self.capture is None:
            return
        try:
            if output:
                self.capture.leave(module, args, kwargs, *output)
            else:
                self.capture.enter(self._path, module, args, kwargs)
        except QuietgradError as error:
            self.capture.note_refusal(error)  # a model may catch it and go on
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return type(self)()

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return type(self), ()


_Enter = _Leave = _Hook  # their names in pickles of attached models that 0.1.0 wrote


def detach(model: nn.Module) -> None:
    """Detach whatever engine is attached to a model, also one that is no longer at hand."""
    for module in model.modules():
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, _Hook) and hook.capture is not None:
                hook.capture.on_detach()


def _is_trainable(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _refuse_attached(model: nn.Module) -> None:
    for path, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        if any(isinstance(hook, _Hook) and hook.capture is not None for hook in hooks):
            raise EngineStateError(
                f"{f'module {path!r}' if path else 'the model'} is already attached: two sets of "
                "clipping and noise on one model cannot both be right. Call detach() on the other "
                "engine first, or quietgrad.detach(model) if it is lost."
            )
