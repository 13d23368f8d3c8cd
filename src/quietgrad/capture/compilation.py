"""A compiled forward in the place of a captured one, where it was seen to give the same.

Dynamo traces the model's call into one graph, ``traced_graph`` gives it sites, and a backend
compiles it. A graph is used only after it was *certified*: a micro-batch that ran as it was written
was verified, and the graph, run on the same samples from the same state, gave the same outputs and
the same gradients at the same sites. Until then, and wherever something cannot be compiled, the
model runs as it was written. A call that ran compiled is recorded and verified like any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import torch
from torch import Tensor, fx, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from quietgrad.capture.call import Frame, Use, use_of_source
from quietgrad.capture.compare import leaves, parse_output
from quietgrad.capture.compiled import UnguardedCode, traced_by_dynamo
from quietgrad.capture.graph_builder import make_token
from quietgrad.capture.joining import Joining
from quietgrad.capture.layout import SiteKey
from quietgrad.capture.tape import Site, Tape, TapePhase, apply_function
from quietgrad.capture.traceability import NotTraceableError
from quietgrad.capture.traced_graph import TracedGraph, TracedSite, rewrite
from quietgrad.errors import ChangedGradientError, QuietgradError
from quietgrad.factors.base import version_of

if TYPE_CHECKING:
    from quietgrad.capture.mode import CaptureMode
    from quietgrad.capture.parameters import ParameterTable

_NUMBERS = count()
_MOST_TRIALS = 8
_MOST_REMEMBERED = 1 << 10


class _UnusableError(Exception):
    """The graph at hand is not to be used for this call."""


class _Run:
    """One call that runs compiled.

    Attributes:
        expected: the sites of the same call as it was written, if this is a trial.
        graph: the one that ran.
        given: in a trial, ids of the tensors that it gave to the model.
        sizes: of the inputs, where they are not fixed.
    """

    def __init__(self, tape: Tape, expected: Sequence[Site] | None) -> None:
        self.tape, self.expected = tape, expected
        self.graph: CompiledGraph | None = None
        self.given: set[int] = set()
        self.sites: list[Site] = []
        self.sizes: tuple[int, ...] = ()
        self._saved: list[Tensor] = []
        self._versions: list[int] = []
        self._places: list[tuple[int, ...]] = []

    def keep(self, saved: list[Tensor], places: list[tuple[int, ...]]) -> None:
        """What factors are made of, by site."""
        self._saved, self._places = saved, places
        self._versions = [version_of(tensor) for tensor in saved]

    def receive(self, grads: Sequence[Tensor | None]) -> None:
        """Gradients arrived at all sites at once; the last one comes first, as in autograd."""
        if [version_of(tensor) for tensor in self._saved] != self._versions:
            raise ChangedGradientError(self.sites[0].names[0])
        assert self.graph is not None
        saved = [tuple(self._saved[place] for place in places) for places in self._places]
        self.graph.joining.receive(self.tape, self.sites, grads, saved, self.sizes)


class _Tokens(torch.autograd.Function):
    """The tokens of a call, of which all gradients come at once."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, run: _Run, likes: Any) -> tuple[Tensor, ...]:
        ctx.run, ctx.site = run, run.sites[0]
        ctx.set_materialize_grads(False)
        return tuple(make_token(*like) for like in likes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        ctx.run.receive(grads)
        return None, None, None


class CompiledGraph:
    """A graph that Dynamo calls with its inputs.

    Attributes:
        keys: the sites, as they are known where the model runs as it was written; None until it
            was tried.
        is_certified: whether it gave the same.
        orders_rows: whether it picks rows at all.
    """

    def __init__(self, traced: TracedGraph, function: Any, owner: ModelCompiler) -> None:
        self.traced, self.function = traced, function
        self._execute = WeakMethod(owner.execute)  # Dynamo keeps this where its code is called
        self.keys: list[SiteKey] | None = None
        self.is_certified = self.is_declined = self.orders_rows = False
        self.fixed: dict[int, tuple[list[Use], list[str], range]] = {}  # uses of parameters
        self.joining = Joining()
        self._likes: dict[tuple[int, ...], list[Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        """As Dynamo calls it."""
        execute = self._execute()
        assert execute is not None, "only the compiler's own function calls it"
        return execute(self, inputs)

    def sizes(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Those that are not fixed."""
        return tuple(int(inputs[place]) for place in self.traced.symbols)

    def likes(self, sizes: tuple[int, ...]) -> list[tuple[Any, torch.dtype, torch.device]]:
        """Shapes and types of gradients, for inputs of these sizes."""
        known = self._likes.get(sizes)
        if known is None:
            if len(self._likes) >= _MOST_REMEMBERED:
                self._likes.clear()
            values = dict(zip(self.traced.symbols.values(), sizes, strict=True))

            def evaluate(size: Any) -> int:
                is_open = isinstance(size, torch.SymInt)
                return int(size.node.expr.xreplace(values)) if is_open else int(size)

            known = [
                (torch.Size(map(evaluate, like.shape)), like.dtype, like.device)
                for like in (site.like for site in self.traced.sites)
            ]
            self._likes[sizes] = known
        return known


class ModelCompiler:
    """Takes the place of a model's call while it is attached.

    Args:
        model: what is compiled, as a whole.
        backend: of Dynamo, by name; one that is made of AOTAutograd.
        parameters: the trainable ones, and their names.
        mode: captures what is made of parameters alone.
        call: makes a call as it was written, or records one that :meth:`run` makes.

    Attributes:
        reason: why nothing is compiled any more; None if something is, or may be.
        is_wanted: whether a call could not run compiled for want of a certified graph.
    """

    def __init__(
        self, model: nn.Module, backend: str, parameters: ParameterTable, mode: CaptureMode
    ) -> None:
        self._model, self._backend, self._parameters, self._mode = model, backend, parameters, mode
        self.reason: str | None = None
        self.is_wanted = False
        self.graphs: list[CompiledGraph] = []
        self._run: _Run | None = None
        self._trials = self.calls = 0
        self._function: Any = None
        self._held: set[int] = set()
        self._unguarded = UnguardedCode()

    # -- calls -----------------------------------------------------------------------------------

    def is_ready(self, tape: Tape) -> bool:
        """Whether a call may run compiled now, if there is a graph for it."""
        if self.reason is not None or self._function is None or self._run is not None:
            return False
        if (changed := self._unguarded.find_changed()) is not None:
            self.give_up(f"a function of class {changed} was replaced after it was compiled")
            return False
        return _is_ordinary_call(tape) and not self._unguarded.has_hooks

    def run(
        self, tape: Tape, args: Any, kwargs: dict[str, Any]
    ) -> tuple[CompiledGraph | None, Any]:
        """The certified graph that did it, if there is one, and what the model returned."""
        run = _Run(tape, None)
        try:
            with self._running(run, "fail_on_recompile"):
                output = self._function(*args, **kwargs)
        except (QuietgradError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            tape.withdraw(run.sites)
            if run.graph is not None:
                self.give_up(f"compiled code failed ({_shorten(error)})")
            elif not isinstance(error, _UnusableError):  # no graph for arguments like these
                self.is_wanted = self.may_try
            return None, None
        if run.graph is None:
            self.give_up("the model ran without its graph")
        self.calls += 1
        return run.graph, output

    @contextmanager
    def _running(self, run: _Run, stance: Any) -> Iterator[None]:
        self._run = run
        try:
            with traced_by_dynamo(stance):
                yield
        finally:
            self._run = None

    @property
    def status(self) -> str:
        """Whether calls run compiled, or why they do not."""
        if self.reason is not None:
            return f"runs as it was written: {self.reason}"
        return "compiled" if any(g.is_certified for g in self.graphs) else "not compiled yet"

    @property
    def may_try(self) -> bool:
        """Whether another graph may be compiled."""
        return self.reason is None and self._trials < _MOST_TRIALS

    def conclude(self, *, is_alike: bool, orders_rows: bool) -> None:
        """The end of a trial."""
        graph, self.tried = self.tried, None
        if graph is None:
            self.give_up("it could not be tried")
        elif is_alike:
            graph.is_certified, graph.orders_rows = True, orders_rows
        else:
            graph.is_declined = True
            self.give_up(
                "compiled it gives something else: other draws (dropout in inductor may; "
                "compile='aot_eager' draws the same), or losses that are made of two outputs of "
                "which one is computed of the other (return only one of them)"
            )

    def give_up(self, reason: str) -> None:
        """From here on the model runs as it was written."""
        if self.reason is None:
            warnings.warn(f"compile=: the model runs as it was written: {reason}", stacklevel=2)
        self.reason, self.is_wanted = self.reason or reason, False

    # -- trials ----------------------------------------------------------------------------------

    @contextmanager
    def trying(self, expected: Sequence[Site]) -> Iterator[None]:
        """In it the model's call runs compiled, and may be compiled, to be certified."""
        self._expected: Sequence[Site] | None = expected
        try:
            with _settings():  # a backward pass is compiled when it first runs
                yield
        finally:
            self._expected = None

    _expected: Sequence[Site] | None = None

    @property
    def is_trying(self) -> bool:
        """Whether a call is to be tried compiled."""
        return self._expected is not None

    def try_call(self, tape: Tape, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call of a trial; what goes wrong in it is known."""
        self._trials += 1
        self.is_wanted = False
        run, batch = _Run(tape, self._expected), tape.batch
        self.tried: CompiledGraph | None = None
        if self._function is None:
            self._function = self._compile()
        self._held = {id(t) for t in (*self._model.parameters(), *self._model.buffers())}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in given:
            _mark_samples(tensor, batch)
        try:
            with self._running(run, "default"):
                output = self._function(*args, **kwargs)
        except Exception as error:
            self.give_up(_shorten(error))
            raise
        self._unguarded.note(self._model)
        if run.graph is None:
            self.give_up("nothing in it was traced")
            raise _UnusableError
        returned = {id(leaf) for leaf in leaves(parse_output(output))}
        if not run.given <= returned:
            self.give_up("it keeps tensors that it computed")
            raise _UnusableError
        self.tried = run.graph
        return output

    tried: CompiledGraph | None = None

    def _compile(self) -> Any:
        model: Any = self._model

        def call(*args: Any, **kwargs: Any) -> Any:
            return model._call_impl(*args, **kwargs)

        # Dynamo keeps what it compiled by code object, and limits its number; which sizes have
        # changed it keeps by its name.
        code = call.__code__.replace(co_name=f"call_{next(_NUMBERS)}")
        own = FunctionType(code, call.__globals__, code.co_name, (), call.__closure__)
        build = WeakMethod(self._build)  # torch keeps backends for good

        def backend(source: fx.GraphModule, examples: Sequence[Any]) -> CompiledGraph:
            found = build()
            assert found is not None, "only the compiler's own function is compiled by it"
            return found(source, examples)

        return torch.compile(own, backend=backend, fullgraph=True)

    def _build(self, source: fx.GraphModule, examples: Sequence[Any]) -> CompiledGraph:
        traced = rewrite(source, lambda tensor: id(tensor) in self._held)
        backend: Any = torch._dynamo.lookup_backend(self._backend)
        graph = CompiledGraph(traced, backend(traced.module, traced.examples), self)
        self.graphs.append(graph)
        return graph

    # -- inside of Dynamo's code -----------------------------------------------------------------

    def execute(self, graph: CompiledGraph, inputs: Sequence[Any]) -> Any:
        """Run a graph, and record its sites."""
        run, traced = self._run, graph.traced
        if run is None or graph.is_declined or not (graph.is_certified or run.expected is not None):
            self.is_wanted |= not graph.is_declined and self.may_try
            raise _UnusableError
        values = list(inputs)
        for place, parameter in traced.parameters.items():
            if inputs[place] is not parameter:
                self.give_up("another parameter is in the place of one that it was compiled for")
                raise _UnusableError
            values[place] = parameter.detach()
        run.graph = graph
        derived = self._derive(traced, inputs)
        values += [tensor.detach() for tensor in derived]
        run.sizes = graph.sizes(inputs)
        likes = graph.likes(run.sizes)
        self._add_sites(graph, [*inputs, *derived], likes)
        tokens: Any = apply_function(_Tokens, run.tape.token, run, likes)
        before = None if run.expected is None else _versions(inputs)
        outputs = graph.function(*values, *tokens)
        if before is not None and before != _versions(inputs):
            raise NotTraceableError("it writes to what it is given, or to a buffer")
        given = outputs[: traced.outputs]
        if run.expected is not None:
            run.given = {id(tensor) for tensor in given if isinstance(tensor, Tensor)}
        saved = [values[place].detach() for place in traced.saved_inputs] + [
            *outputs[traced.outputs :]
        ]
        run.keep(saved, [site.saved for site in traced.sites])
        run.tape.functions.add(graph)
        run.tape.keeping = _keeping
        return given

    def _derive(self, traced: TracedGraph, inputs: Sequence[Any]) -> Sequence[Tensor]:
        """What is computed of parameters and constants alone, captured as ever."""
        if traced.prelude is None:
            return ()
        frames = self._mode.frames
        frames.append(Frame(""))
        try:
            with self._mode:
                derived: Sequence[Tensor] = traced.prelude(
                    *(inputs[place] for place in traced.prelude_inputs)
                )
        finally:
            frames.pop()
        return derived

    def _add_sites(
        self, graph: CompiledGraph, managed: Sequence[Any], likes: Sequence[Any]
    ) -> None:
        run, traced = self._run, graph.traced
        assert run is not None
        keys = graph.keys or _match(run.expected or (), likes)
        for place, (site, key, like) in enumerate(zip(traced.sites, keys, likes, strict=True)):
            found = graph.fixed.get(place)
            if found is None:
                found = self._use_all(site, managed, like[0])
                if site.is_fixed(traced.parameters):
                    graph.fixed[place] = found
            uses, names, dims = found
            run.sites.append(run.tape.add_site(key, like[0], dims, uses, names))
        if graph.keys is None:
            _compare_names(run.sites, run.expected or ())
            graph.keys = keys

    def _use_all(
        self, site: TracedSite, managed: Sequence[Tensor], shape: torch.Size
    ) -> tuple[list[Use], list[str], range]:
        """The uses at a site, the names of what is used, and where samples may be."""
        uses, dims = list[Use](), site.dims
        assert self._run is not None
        for place, make in site.uses:
            tensor = managed[place]
            if make is None:
                tape = self._run.tape
                use, dims = use_of_source(tape, tensor, shape, self._target_of, dims)
                uses.append(use)
            else:
                uses.append(Use(self._target_of(tensor), make))
        return uses, [name for use in uses for name in use.target.names], range(dims or 0)

    def _target_of(self, tensor: Any) -> Any:
        if isinstance(tensor, nn.Parameter):
            return self._parameters.target(tensor)
        assert self._run is not None
        return self._run.tape.derived(tensor)


def _versions(inputs: Sequence[Any]) -> list[int]:
    return [version_of(each) for each in inputs if isinstance(each, Tensor)]


def _is_ordinary_call(tape: Tape) -> bool:
    return (
        tape.batch > 1
        and tape.phase is TapePhase.FORWARD
        and torch.is_grad_enabled()
        and not torch._C._is_any_autocast_enabled()
        and not torch._C._are_functorch_transforms_active()
        and not _get_current_function_mode_stack()
        and not _get_current_dispatch_mode_stack()
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    )


def _match(expected: Sequence[Site], likes: Sequence[Any]) -> list[SiteKey]:
    """The keys of sites as they were written, if those of the graph may be the same ones."""
    shapes = [site.shape for site in expected]
    if shapes != [shape for shape, *_ in likes]:
        raise NotTraceableError(
            f"its {len(likes)} operations on parameters are not the {len(shapes)} that ran as it "
            "was written"
        )
    return [site.key for site in expected]


def _compare_names(sites: Sequence[Site], expected: Sequence[Site]) -> None:
    for site, other in zip(sites, expected, strict=True):
        if site.names != other.names:
            raise NotTraceableError(f"{other.key} is on other parameters")


def _keeping() -> Any:
    return torch._functorch.config.patch(donated_buffer=False)


@contextmanager
def _settings() -> Iterator[None]:
    with _keeping():
        inductor = getattr(torch, "_inductor", None)
        if inductor is None:
            yield
            return
        import torch._inductor.config as config

        with config.patch(fallback_random=True):
            yield


def _mark_samples(tensor: Tensor, batch: int) -> None:
    """The dimension of the samples may have another size in the next call."""
    for dim, size in enumerate(tensor.shape[:2]):
        if size % batch == 0 and size:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
            return


def _shorten(error: Exception) -> str:
    error = getattr(error, "inner_exception", error)  # of a backend, such as ours
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
