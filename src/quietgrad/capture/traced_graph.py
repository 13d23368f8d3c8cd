"""Rewrites a graph that Dynamo traced, so that it gives what capture records when it is compiled.

The rules of capture run on the operations of the graph as they do in a forward: every use of a
trainable parameter becomes a site. A tap follows it, which is the identity in the forward pass and
hands the gradient that arrives there to a *token* in the backward pass, an input of zeros that
takes no memory. Parameters enter as constants. What rules save are further outputs. What is
computed of parameters and constants alone is taken out of the graph, and is captured as ever.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.capture.call import MakeFactor
from quietgrad.capture.graph_builder import GraphBuilder
from quietgrad.capture.traceability import (
    NotTraceableError,
    has_open_sizes,
    may_draw,
    refuse_cut_rows,
    refuse_unknown,
    writes_in_place,
)
from quietgrad.errors import UnsupportedOperationError


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
        self._builder = GraphBuilder(self._graph, has_writes=any(map(writes_in_place, self._nodes)))
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
        refuse_unknown(node, self._source)
        value = node.meta.get("example_value")
        if node.op == "get_attr" and value is None:
            value = mode.from_tensor(operator.attrgetter(str(node.target))(self._source))
        refuse_cut_rows(value)
        inputs = node.all_input_nodes
        is_free = all(each in self._constant or each in self._managed for each in inputs)
        if node.target is torch._C._set_grad_enabled:
            self._has_gradients = bool(node.args[0])
            is_free = False
        elif any(each in self._managed or each in self._spread for each in inputs):
            if not self._has_gradients:
                raise NotTraceableError("a parameter is used without gradients")
            is_for_samples = node.target in ("expand", "broadcast_to") and has_open_sizes(value)
            if is_free and not writes_in_place(node) and not is_for_samples:
                self._managed.add(node)
                self._values[node] = value
            else:
                self._capture(node)
            return
        if is_free and not may_draw(node) and not writes_in_place(node):
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


def _call_method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)
