"""Rewrites a graph that Dynamo traced, so that it gives what capture records when it is compiled.

The rules of capture run on the operations of the graph as they do in a forward: every use of a
trainable parameter becomes a site. A tap follows it, which is the identity in the forward pass and
hands the gradient that arrives there to a *token* in the backward pass, an input of zeros that
takes no memory. Parameters enter as constants. What rules save are further outputs. What is
computed of parameters and constants alone is taken out of the graph, and is captured as ever.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.capture.call import Call, MakeFactor, Uses
from quietgrad.capture.operations import classify, find_rule, is_in_place, operation_name, variants
from quietgrad.capture.rules.normalization import plain_group_norm
from quietgrad.errors import UnsupportedOperationError


class NotTraceableError(Exception):
    """Why a graph is not compiled: it runs as it was written."""


class TracedUse(NamedTuple):
    """A managed tensor at a site: its place among the inputs, and how its factor is made.

    ``make`` is None where the tensor is broadcast: then it follows from the tensor itself.
    """

    place: int
    make: MakeFactor | None


@dataclass(frozen=True)
class TracedSite:
    """An operation on parameters, as ``Call.watch`` and ``Call.source`` are told of one.

    Attributes:
        operation: its name.
        uses: the managed tensors in it.
        dims: how many of the first dimensions may hold the samples; None if that follows.
        like: what has the shape and type of the gradient that arrives; sizes may be symbols.
        saved: what factors are made of, by place among all that is saved.
    """

    operation: str
    uses: tuple[TracedUse, ...]
    dims: int | None
    like: Tensor
    saved: tuple[int, ...]

    def is_fixed(self, parameters: Container[int]) -> bool:
        """Whether its uses are of parameters themselves, and the same in every call."""
        return all(use.place in parameters and use.make is not None for use in self.uses)


@dataclass(frozen=True)
class TracedGraph:
    """A graph to be compiled.

    Attributes:
        module: takes the inputs of Dynamo's graph, derived tensors, and tokens; gives its outputs,
            and what is saved.
        examples: of what it takes.
        parameters: the trainable parameters among its inputs, by place.
        symbols: the sizes among its inputs, likewise.
        prelude: makes the derived tensors; None if there are none.
        prelude_inputs: places of what it takes.
        sites: in the order in which they run.
        outputs: how many are given to the model.
        saved_inputs: places of the inputs that are saved, which come before saved outputs.
    """

    module: fx.GraphModule
    examples: list[Any]
    parameters: dict[int, nn.Parameter]
    symbols: dict[int, Any]
    prelude: fx.GraphModule | None
    prelude_inputs: list[int]
    sites: list[TracedSite]
    outputs: int
    saved_inputs: list[int]


class _Tap(torch.autograd.Function):
    """The identity, whose token gets the gradient, too. Where it is traced nothing is left."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, token: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


class _TapCopy(_Tap):
    """The same where something behind it may be changed in place."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, token: Tensor) -> Tensor:
        return output.clone()


class _TapValues(torch.autograd.Function):
    """The values of a parameter, broadcast; their gradient goes to the token and ends there."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor) -> Tensor:
        return values.expand(token.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


def tap(output: Tensor, token: Tensor) -> Tensor:
    """The output itself."""
    return _apply(_Tap, output, token)


def tap_copy(output: Tensor, token: Tensor) -> Tensor:
    """The output, which may be changed in place."""
    return _apply(_TapCopy, output, token)


def tap_values(values: Tensor, token: Tensor) -> Tensor:
    """A parameter's values in the shape of the token."""
    return _apply(_TapValues, values, token)


def _apply(function: Any, *args: Tensor) -> Tensor:
    result: Tensor = function.apply(*args)
    return result


def rewrite(source: fx.GraphModule, is_held: Callable[[Tensor], bool]) -> TracedGraph:
    """The graph with sites.

    Args:
        source: as Dynamo gives it to a backend.
        is_held: tells whether a tensor is a parameter or a buffer of the model.

    Raises:
        NotTraceableError: there is something in it that the rules, or this, do not know.
    """
    try:
        return _Rewriter(source, is_held).run()
    except UnsupportedOperationError as error:  # of a rule; as it was written it may be none
        raise NotTraceableError(str(error)) from error


class _Rewriter:
    """Copies a graph node by node, and lets rules make nodes in the place of what they know."""

    def __init__(self, source: fx.GraphModule, is_held: Callable[[Tensor], bool]) -> None:
        self._source, self._is_held = source, is_held
        self._nodes = list(source.graph.nodes)
        self._inputs = [node for node in self._nodes if node.op == "placeholder"]
        self._places = {node: place for place, node in enumerate(self._inputs)}
        self._parameters: dict[int, nn.Parameter] = {}
        self._symbols: dict[int, Any] = {}
        self._constant: set[fx.Node] = set()  # made of nothing that belongs to a sample
        self._managed: set[fx.Node] = set()  # parameters, and what is made of them alone
        self._spread: set[fx.Node] = set()  # the same, repeated as often as there are samples
        self._derived: dict[fx.Node, fx.Node] = {}  # those of them that meet data, as inputs
        self._new: dict[fx.Node, Any] = {}
        self._values: dict[fx.Node, Any] = {}
        self._graph = fx.Graph(source)
        self._builder = _Builder(self._graph, has_writes=any(map(_writes, self._nodes)))
        self._has_gradients = True

    def run(self) -> TracedGraph:
        values = [node.meta.get("example_value") for node in self._inputs]
        modes = [value.fake_mode for value in values if isinstance(value, FakeTensor)]
        if not modes:
            raise NotTraceableError("it computes with no tensors")
        mode: Any = modes[0]
        with mode, torch.enable_grad():
            for place, (node, value) in enumerate(zip(self._inputs, values, strict=True)):
                self._take(node, value, place)
            self._builder.end_inputs()
            for node in self._nodes:
                if node.op not in ("placeholder", "output"):
                    self._convert(node, mode)
        return self._finish()

    def _take(self, node: fx.Node, value: Any, place: int) -> None:
        origin = node.meta.get("grapharg")
        real = None if origin is None else origin.example
        if isinstance(value, Tensor):
            if not isinstance(value, FakeTensor) or value.is_complex() or value.is_nested:
                raise NotTraceableError(f"it is given a {type(value).__name__} of {value.dtype}")
            is_trained = isinstance(real, nn.Parameter) and real.requires_grad
            if is_trained and not (isinstance(real, Tensor) and self._is_held(real)):
                raise NotTraceableError("a parameter in it is none of the model's")
            if isinstance(real, nn.Parameter) and is_trained:
                self._parameters[place] = real
                self._managed.add(node)
                value = value.detach()
            elif isinstance(real, Tensor) and self._is_held(real):
                self._constant.add(node)
        elif isinstance(value, torch.SymInt):
            self._symbols[place] = value.node.expr
            self._constant.add(node)
        else:
            raise NotTraceableError(f"it is given a {type(value).__name__}")
        self._new[node] = self._builder.add_input(str(node.target), value)
        self._values[node] = value
        if node in self._managed:
            self._builder.manage(value, node)

    def _convert(self, node: fx.Node, mode: Any) -> None:
        _refuse_unknown(node, self._source)
        value = node.meta.get("example_value")
        if node.op == "get_attr" and value is None:
            value = mode.from_tensor(operator.attrgetter(str(node.target))(self._source))
        _refuse_cut_rows(value)
        inputs = node.all_input_nodes
        is_free = all(each in self._constant or each in self._managed for each in inputs)
        if node.target is torch._C._set_grad_enabled:
            self._has_gradients = bool(node.args[0])
            is_free = False
        elif any(each in self._managed or each in self._spread for each in inputs):
            if not self._has_gradients:
                raise NotTraceableError("a parameter is used without gradients")
            is_for_samples = node.target in ("expand", "broadcast_to") and _has_symbols(value)
            if is_free and not _writes(node) and not is_for_samples:
                self._managed.add(node)
                self._values[node] = value
            else:
                self._capture(node)
            return
        if is_free and not _draws(node) and not _writes(node):
            self._constant.add(node)
        new = self._graph.node_copy(node, lambda each: self._new[each])
        self._new[node], self._values[node] = new, value
        self._builder.note(new, value)

    def _capture(self, node: fx.Node) -> None:
        """Run the operation on stand-ins, so that its rule makes nodes."""
        for each in node.all_input_nodes:
            if each in self._managed and each not in self._new:
                self._add_derived(each)
        args = fx.node.map_arg(node.args, lambda each: self._values[each])
        kwargs = fx.node.map_arg(node.kwargs, lambda each: self._values[each])
        function: Any = node.target
        if node.op == "call_method":
            function = partial(_call_method, function)
        with self._builder:
            value = function(*args, **kwargs)
        self._values[node] = value
        if self._builder.is_spread(value):
            self._spread.add(node)
        else:
            self._new[node] = tree_map(self._builder.node_of, value)

    def _add_derived(self, node: fx.Node) -> None:
        """It becomes an input of the graph, and an output of the prelude."""
        value = self._values[node]
        if not isinstance(value, Tensor) or value.is_complex():
            raise NotTraceableError(f"{node.name} is computed of parameters in an unknown way")
        value = value.detach()
        new = self._builder.add_late_input(f"derived_{len(self._derived)}", value)
        self._derived[node] = self._new[node] = new
        self._values[node] = value
        self._builder.manage(value, node)

    def _finish(self) -> TracedGraph:
        builder, (output,) = self._builder, (n for n in self._nodes if n.op == "output")
        returned = tree_leaves(output.args[0], is_leaf=lambda leaf: isinstance(leaf, fx.Node))
        if any(each in self._managed or each in self._spread for each in output.all_input_nodes):
            raise NotTraceableError("it returns a parameter, or what is made of parameters alone")
        if not builder.sites:
            raise NotTraceableError("no trainable parameter is used in it")
        given = [self._new[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in returned]
        places = {self._new[node]: place for node, place in self._places.items()}
        own = {**self._places, **{n: len(places) + i for i, n in enumerate(self._derived)}}
        nodes = list(dict.fromkeys(node for site in builder.sites for node in site.saved))
        inner, outer = [n for n in nodes if n in places], [n for n in nodes if n not in places]
        order = {node: place for place, node in enumerate([*inner, *outer])}
        kept = [self._graph.call_method("detach", (node,)) for node in outer]
        self._graph.output((*given, *kept))
        self._graph.lint()
        module = fx.GraphModule(self._source, self._graph)
        taking = [node for node in module.graph.nodes if node.op == "placeholder"]
        examples = [_make_example(node.meta["example_value"]) for node in taking]
        sites = [
            TracedSite(
                site.operation,
                tuple(TracedUse(own[node], make) for node, make in site.uses),
                site.dims,
                site.like,
                tuple(order[node] for node in site.saved),
            )
            for site in builder.sites
        ]
        prelude, taken = self._extract_prelude()
        inputs = [places[node] for node in inner]
        return TracedGraph(
            module,
            examples,
            self._parameters,
            self._symbols,
            prelude,
            taken,
            sites,
            len(given),
            inputs,
        )

    def _extract_prelude(self) -> tuple[fx.GraphModule | None, list[int]]:
        """What makes the derived tensors, as a graph of its own, and the inputs it takes."""
        if not self._derived:
            return None, []
        needed, stack = set[fx.Node](), list(self._derived)
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack.extend(node.all_input_nodes)
        graph, copies = fx.Graph(self._source), dict[fx.Node, fx.Node]()
        for node in self._nodes:
            if node in needed:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in self._derived))
        taken = [place for node, place in self._places.items() if node in needed]
        return fx.GraphModule(self._source, graph), taken


@dataclass(frozen=True)
class _Built:
    """A site whose nodes are those of the new graph; those of managed tensors of the old one."""

    operation: str
    uses: list[tuple[fx.Node, MakeFactor | None]]
    dims: int | None
    like: Tensor
    saved: list[fx.Node]


class _Builder(TorchFunctionMode):
    """Makes a node of each operation that runs on stand-ins, and a site of each on parameters."""

    def __init__(self, graph: fx.Graph, *, has_writes: bool) -> None:
        super().__init__()
        self.sites: list[_Built] = []
        self._graph, self._tap = graph, tap_copy if has_writes else tap
        self._nodes: dict[int, tuple[Any, fx.Node]] = {}  # by stand-in, kept alive
        self._sizes: dict[Any, fx.Node] = {}  # by expression
        self._managed: dict[int, fx.Node] = {}
        self._spread: dict[int, Tensor] = {}  # what is repeated, by stand-in
        self._alive: list[Any] = []
        self._last_derived: Any = None
        self._last_input: Any = None

    # -- nodes -----------------------------------------------------------------------------------

    def add_input(self, name: str, value: Any) -> fx.Node:
        """An input of the new graph."""
        node = self._last_input = self._graph.placeholder(name)
        self.note(node, value)
        return node

    def end_inputs(self) -> None:
        """What is added from here on comes behind."""
        self._last_derived = self._last_input

    def add_late_input(self, name: str, value: Any, *, is_token: bool = False) -> fx.Node:
        """One of a derived tensor, behind all others of these; or a token, behind all inputs."""
        before = self._last_input if is_token else self._last_derived
        with self._graph.inserting_after(before):
            node = self._graph.placeholder(name)
        if is_token or before is self._last_input:
            self._last_input = node
        if not is_token:
            self._last_derived = node
        self.note(node, value)
        return node

    def manage(self, value: Tensor, node: fx.Node) -> None:
        """A stand-in is for a parameter, or for what was made of parameters."""
        self._managed[id(value)] = node

    def managed_node(self, value: Any) -> fx.Node | None:
        """The node of the old graph that a stand-in is for, if it is managed."""
        return self._managed.get(id(value))

    def is_spread(self, value: Any) -> bool:
        """Whether it is a parameter, repeated as often as there are samples."""
        return id(value) in self._spread

    def detached(self, tensor: Tensor) -> Tensor:
        """Another stand-in for a managed tensor, which is not managed."""
        with torch._C.DisableTorchFunction():
            values = tensor.detach()
        self.note(self.node_of(tensor), values)
        return values

    def note(self, node: fx.Node, value: Any) -> None:
        """A node gives this."""
        node.meta["example_value"] = value
        if isinstance(value, Tensor):
            self._nodes[id(value)] = value, node
        elif isinstance(value, torch.SymInt):
            self._sizes.setdefault(value.node.expr, node)

    def node_of(self, value: Any, beside: Sequence[Tensor] = ()) -> Any:
        """The node that gives a tensor, or a size that may be read from others."""
        if isinstance(value, Tensor):
            if id(value) not in self._nodes:
                raise NotTraceableError("a rule makes a tensor out of nothing")
            return self._nodes[id(value)][1]
        if not isinstance(value, torch.SymInt):
            return value
        for tensor in beside:
            for dim, size in enumerate(tensor.shape):
                open_size: Any = size
                if not _is_fixed(size) and open_size.node.expr == value.node.expr:
                    return self._graph.call_method("size", (self.node_of(tensor), dim))
        if value.node.expr not in self._sizes:
            raise NotTraceableError("a rule computes with sizes that are not fixed")
        return self._sizes[value.node.expr]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        operation = classify(func)
        if operation.is_metadata:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        managed = [tensor for tensor in tensors if id(tensor) in self._managed]
        is_like = operation.ignores_data and id(args[0]) not in self._managed
        if not managed or is_like:
            return self._record(func, args, kwargs, tensors)
        if func is Tensor.detach:
            return self.detached(args[0])
        if operation.is_expanding and managed == tensors and func not in _COPYING:
            return self._expand(func, args, kwargs)
        rule = _OWN_RULES.get(func) or find_rule(func)
        if rule is None or len(managed) == len(tensors):
            raise NotTraceableError(f"{operation_name(func)} on parameters is not compiled")
        with self:
            return rule(_TracedCall(self, func), *args, **kwargs)

    def _expand(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        """A parameter that gets a row for each sample: where that meets data, it is a site."""
        value: Tensor = func(*args, **kwargs)
        base = self._spread.get(id(args[0]), args[0])
        self._managed[id(value)], self._spread[id(value)] = self._managed[id(base)], base
        self._alive.append(value)
        return value

    def _record(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
    ) -> Any:
        name = operation_name(func)
        try:
            given = tree_map(partial(self.node_of, beside=tensors), (args, kwargs))
        except NotTraceableError as error:
            raise NotTraceableError(f"{name}: {error}") from None
        value = func(*args, **kwargs)
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__":
            node = self._graph.call_function(getattr, (given[0][0], owner))
        elif getattr(Tensor, name, None) is func:
            node = self._graph.call_method(name, *given)
        else:
            node = self._graph.call_function(func, *given)
        self.note(node, value)
        if isinstance(value, (tuple, list)):
            for place, each in enumerate(value):
                self.note(self._graph.call_function(operator.getitem, (node, place)), each)
        return value

    # -- sites -----------------------------------------------------------------------------------

    def watch(
        self, operation: str, output: Tensor, uses: Uses, saved: Sequence[Tensor], dims: int
    ) -> Tensor:
        """A site behind ``output``."""
        kept = [(node, make) for t, make in uses if (node := self.managed_node(t)) is not None]
        if not kept:
            return output
        for _, make in kept:
            _refuse_values(make)
        nodes = [self.node_of(tensor) for tensor in saved]
        own: list[tuple[fx.Node, MakeFactor | None]] = [*kept]
        return self._add_site(operation, own, dims, output, nodes, self._tap, self.node_of(output))

    def spread(
        self, operation: str, tensor: Tensor, shape: Sequence[Any], dims: int | None
    ) -> Tensor:
        """A site of a managed tensor that is broadcast."""
        node = self.managed_node(tensor)
        if node is None:
            raise NotTraceableError("a tensor is broadcast that was computed of parameters here")
        values = self.node_of(self._spread.get(id(tensor), tensor))
        with torch._C.DisableTorchFunction():
            like = tensor.detach().expand(tuple(shape))
        return self._add_site(operation, [(node, None)], dims, like, [], tap_values, values)

    def _add_site(
        self,
        operation: str,
        uses: list[tuple[fx.Node, MakeFactor | None]],
        dims: int | None,
        like: Tensor,
        saved: list[fx.Node],
        function: Callable[..., Any],
        tapped: fx.Node,
    ) -> Tensor:
        if like.is_complex():
            raise NotTraceableError("complex numbers are not compiled")
        with torch._C.DisableTorchFunction():
            token = make_token(like.shape, like.dtype, like.device).requires_grad_()
            result = like.detach().requires_grad_()
        node = self.add_late_input(f"token_{len(self.sites)}", token, is_token=True)
        self.note(self._graph.call_function(function, (tapped, node)), result)
        self.sites.append(_Built(operation, uses, dims, result, saved))
        return result


def make_token(shape: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take no memory."""
    return torch.zeros((), dtype=dtype, device=device).expand(tuple(shape))


class _TracedCall(Call):
    """What a rule sees of an operation in a graph."""

    def __init__(self, builder: _Builder, function: Callable[..., Any]) -> None:
        self.function, self.prefix, self._builder = function, "", builder
        self.recapture: Callable[[], AbstractContextManager[Any]] = lambda: builder

    def is_managed(self, value: Any) -> bool:
        """Whether it stands for a parameter or for what is made of parameters."""
        return self._builder.managed_node(value) is not None

    def value(self, tensor: Any) -> Any:
        """Another stand-in, which is not managed."""
        return self._builder.detached(tensor) if self.is_managed(tensor) else tensor

    def watch(
        self,
        output: Tensor,
        uses: Uses,
        *,
        saved: Sequence[Tensor] = (),
        dims: int,
        label: str = "",
        reads: tuple[Tensor, Tensor] | None = None,
        takes_complex: bool = False,
    ) -> Tensor:
        """See ``Call.watch``."""
        if reads is not None:
            raise NotTraceableError(f"{self.name} reads ids in bags")
        return self._builder.watch(self.prefix + self.name, output, uses, saved, dims)

    def site(self, uses: Uses, shape: torch.Size, *, dims: int, label: str = "") -> None:
        """No rule may make its own tap here."""

    def source(
        self, tensor: Tensor, shape: Sequence[int], label: str = "", dims: int | None = None
    ) -> Tensor:
        """See ``Call.source``."""
        return self._builder.spread(self.prefix + self.name, tensor, shape, dims)

    def choose(self, tensor: Tensor, index: Tensor) -> Tensor:
        """What data chooses is not known here."""
        raise NotTraceableError("data chooses an entry of a parameter")

    def own_copies(self, tensor: Any) -> Any:
        """What has one row for each sample would have a size that is not fixed."""
        return tensor

    def refuse(self, reason: str, remedy: str, *tensors: Any) -> UnsupportedOperationError:
        """What is said where a graph is not compiled."""
        return UnsupportedOperationError(f"{self.name}: {reason}")


def _make_example(value: Any) -> Any:
    """The same for the backend, whose stand-ins are others than those of Dynamo."""
    if not isinstance(value, FakeTensor):
        return value
    mode: Any = detect_fake_mode() or value.fake_mode
    with mode:
        made = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.fake_device
        )
        return made.requires_grad_(value.requires_grad)


_COPYING = frozenset(variants(["repeat", "tile"]))
_OWN_RULES = {F.group_norm: plain_group_norm, torch.group_norm: plain_group_norm}


def _call_method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


# -- what is not compiled ------------------------------------------------------------------------

_MODULES = ("torch", "_operator", "operator", "math", "builtins")
_CONTEXTS = ("_enter_", "_exit_", "autocast", "_functorch", "vmap", "_dynamo")
_RANDOM = (
    "rand bernoulli dropout normal uniform multinomial exponential poisson geometric cauchy".split()
)


def _refuse_unknown(node: fx.Node, source: fx.GraphModule) -> None:
    """Only torch's own operations, with nothing inside of them."""
    target, name = node.target, str(node.target)
    if node.op == "call_method":
        if getattr(Tensor, name, None) is None or name in (
            "item",
            "tolist",
            "numpy",
            "register_hook",
        ):
            raise NotTraceableError(f"it calls {name}")
        return
    if node.op == "get_attr":
        if not isinstance(operator.attrgetter(name)(source), Tensor):
            raise NotTraceableError("an operation in it has operations of its own (a checkpoint)")
        return
    if node.op != "call_function":
        raise NotTraceableError(f"it has a node {node.op}")
    if isinstance(target, OpOverload | OpOverloadPacket):
        is_known = str(target).startswith(("aten.", "aten::", "prims."))
    else:
        module = str(getattr(target, "__module__", None) or "torch")
        is_known = module.split(".")[0] in _MODULES and not any(c in module for c in _CONTEXTS)
    called = getattr(target, "__name__", name)
    is_context = any(part in called for part in _CONTEXTS)
    if not is_known or is_context or isinstance(target, torch._ops.HigherOrderOperator):
        raise NotTraceableError(f"it calls {called}, which is no plain operation of torch")


def _refuse_cut_rows(value: Any) -> None:
    """Where it depends on the number of samples how many rows there are: some may be left out."""
    for leaf in tree_leaves(value):
        sizes = leaf.shape if isinstance(leaf, Tensor) else [leaf]
        for size in sizes:
            kinds = type(size.node.expr).__name__ if isinstance(size, torch.SymInt) else ""
            if kinds in ("Min", "Max"):
                raise NotTraceableError("it takes a part of the samples")


def _is_fixed(size: Any) -> bool:
    return not isinstance(size, torch.SymInt)


def _has_symbols(value: Any) -> bool:
    return isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _writes(node: fx.Node) -> bool:
    """Whether an operation changes something in place."""
    if node.op not in ("call_method", "call_function"):
        return False
    name = node.target if isinstance(node.target, str) else operation_name(node.target)
    is_operator = getattr(node.target, "__module__", "") == "_operator" and name.startswith("i")
    is_flagged = bool(node.kwargs.get("inplace")) or node.kwargs.get("out") is not None
    named: Any = getattr(Tensor, name, None) if node.op == "call_method" else node.target
    is_plain = name == "setitem" or (named is not None and is_in_place(named))
    return is_flagged or is_plain or (is_operator and name not in ("is_", "index", "inv", "invert"))


def _draws(node: fx.Node) -> bool:
    """Whether an operation may draw at random."""
    name = node.target if isinstance(node.target, str) else operation_name(node.target)
    return any(part in name for part in _RANDOM)


def _refuse_values(make: Any) -> None:
    """Refuse a way to make a factor that holds tensors or sizes of this batch.

    A table is asked for its shape only, so that a stand-in without values will do.
    """
    for name, value in _list_held(make):
        if isinstance(value, torch.SymInt) or (isinstance(value, Tensor) and name != "table"):
            raise NotTraceableError("a factor is made of what belongs to one batch")


def _list_held(make: Any) -> Iterator[tuple[str, Any]]:
    held: list[tuple[str, Any]] = []
    if isinstance(make, partial):
        held = [("function", make.func), *(("", arg) for arg in make.args), *make.keywords.items()]
    elif isinstance(make, FunctionType):
        held = [("", cell.cell_contents) for cell in make.__closure__ or ()]
    elif isinstance(make, MethodType):
        held = [*vars(make.__self__).items()]
    elif isinstance(make, Iterable) and not isinstance(make, (str, Tensor)):
        held = [("", each) for each in make]
    for name, value in held:
        yield name, value
        yield from _list_held(value)
