"""What a graph must not hold if it is to be compiled with sites in it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_leaves

from quietgrad.capture.operations import is_in_place, operation_name


class NotTraceableError(Exception):
    """Why a graph is not compiled: it runs as it was written."""


_MODULES = ("torch", "_operator", "operator", "math", "builtins")
_CONTEXTS = ("_enter_", "_exit_", "autocast", "_functorch", "vmap", "_dynamo")
_RANDOM = (
    "rand bernoulli dropout normal uniform multinomial exponential poisson geometric cauchy".split()
)


def refuse_unknown(node: fx.Node, source: fx.GraphModule) -> None:
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


def refuse_cut_rows(value: Any) -> None:
    """Where it depends on the number of samples how many rows there are: some may be left out."""
    for leaf in tree_leaves(value):
        sizes = leaf.shape if isinstance(leaf, Tensor) else [leaf]
        for size in sizes:
            kinds = type(size.node.expr).__name__ if isinstance(size, torch.SymInt) else ""
            if kinds in ("Min", "Max"):
                raise NotTraceableError("it takes a part of the samples")


def is_fixed(size: Any) -> bool:
    """Whether a size is a number, and no symbol."""
    return not isinstance(size, torch.SymInt)


def has_open_sizes(value: Any) -> bool:
    """Whether it is a tensor with a size that is not fixed."""
    return isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def writes_in_place(node: fx.Node) -> bool:
    """Whether an operation changes something in place."""
    if node.op not in ("call_method", "call_function"):
        return False
    name = node.target if isinstance(node.target, str) else operation_name(node.target)
    is_operator = getattr(node.target, "__module__", "") == "_operator" and name.startswith("i")
    is_flagged = bool(node.kwargs.get("inplace")) or node.kwargs.get("out") is not None
    named: Any = getattr(Tensor, name, None) if node.op == "call_method" else node.target
    is_plain = name == "setitem" or (named is not None and is_in_place(named))
    return is_flagged or is_plain or (is_operator and name not in ("is_", "index", "inv", "invert"))


def may_draw(node: fx.Node) -> bool:
    """Whether an operation may draw at random."""
    name = node.target if isinstance(node.target, str) else operation_name(node.target)
    return any(part in name for part in _RANDOM)


def refuse_values(make: Any) -> None:
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
