"""Makes nodes of operations on stand-ins for tensors, and sites where parameters are used.

A tap follows each such operation, which is the identity in the forward pass and hands the gradient
that arrives there to a token in the backward pass. Rules of capture run here as in a forward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.capture.call import Call, MakeFactor, Uses
from quietgrad.capture.operations import classify, find_rule, operation_name, variants
from quietgrad.capture.rules.normalization import plain_group_norm
from quietgrad.capture.traceability import NotTraceableError, is_fixed, refuse_values
from quietgrad.errors import UnsupportedOperationError


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


@dataclass(frozen=True)
class BuiltSite:
    """A site whose nodes are those of the new graph; those of managed tensors of the old one."""

    operation: str
    uses: list[tuple[fx.Node, MakeFactor | None]]
    dims: int | None
    like: Tensor
    saved: list[fx.Node]


class GraphBuilder(TorchFunctionMode):
    """Makes a node of each operation that runs on stand-ins, and a site of each on parameters."""

    def __init__(self, graph: fx.Graph, *, has_writes: bool) -> None:
        super().__init__()
        self.sites: list[BuiltSite] = []
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
                if not is_fixed(size) and open_size.node.expr == value.node.expr:
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
            refuse_values(make)
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
        self.sites.append(BuiltSite(operation, uses, dims, result, saved))
        return result


def make_token(shape: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take no memory."""
    return torch.zeros((), dtype=dtype, device=device).expand(tuple(shape))


class _TracedCall(Call):
    """What a rule sees of an operation in a graph."""

    def __init__(self, builder: GraphBuilder, function: Callable[..., Any]) -> None:
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


_COPYING = frozenset(variants(["repeat", "tile"]))
_OWN_RULES = {F.group_norm: plain_group_norm, torch.group_norm: plain_group_norm}
