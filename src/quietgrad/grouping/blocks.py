"""Finds the repeated blocks of a model: transformer blocks, residual blocks, stages.

A block is a child of an nn.ModuleList or nn.Sequential that shares its class with at least one
sibling and is more than a single layer. Containers are searched from the outside in, and what lies
inside a block is not searched, so stages win over the blocks they are made of.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.utils import parametrize

from quietgrad.grouping.kinds import kind_of

# A stack of other blocks counts if it is at least this large compared with the largest stack: that
# keeps a decoder beside its encoder, and leaves a small feature extractor or a pair of heads out.
_SUBSTANTIAL = 0.1


@dataclass(frozen=True)
class _Stack:
    """The blocks of one container."""

    paths: tuple[str, ...]
    kinds: frozenset[Hashable]
    size: int


def block_paths(model: nn.Module) -> tuple[str, ...]:
    """Module paths of the blocks in the order of the model; empty if nothing repeats."""
    stacks = list(_stacks(model, ""))
    if not stacks:
        return ()
    main = max(stacks, key=lambda stack: stack.size)
    chosen = (s for s in stacks if s.kinds & main.kinds or s.size >= _SUBSTANTIAL * main.size)
    return tuple(path for stack in chosen for path in stack.paths)


def _stacks(module: nn.Module, path: str) -> Iterator[_Stack]:
    """The stacks in a module, outermost only."""
    blocks = _repeated_children(module)
    if blocks:
        yield _Stack(
            paths=tuple(_join(path, name) for name in blocks),
            kinds=frozenset(_structure(block) for block in blocks.values()),
            size=sum(_size(block) for block in blocks.values()),
        )
    for name, child in module.named_children():
        if name not in blocks:
            yield from _stacks(child, _join(path, name))


def _repeated_children(module: nn.Module) -> dict[str, nn.Module]:
    """The children of a container that are blocks and occur at least twice."""
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return {}
    blocks = {name: child for name, child in module.named_children() if _is_block(child)}
    occurrences = Counter(_structure(block) for block in blocks.values())
    return {name: block for name, block in blocks.items() if occurrences[_structure(block)] > 1}


def _is_block(module: nn.Module) -> bool:
    """Whether a module is more than one layer: it has submodules, or is no known kind of layer."""
    if _size(module) == 0:
        return False
    submodules = {name for name, _ in module.named_children()} - {"parametrizations"}
    return bool(submodules) or kind_of(module) == "other"


def _structure(module: nn.Module) -> Hashable:
    """What two blocks must share to be alike: the class, or the contents of a plain container.

    Parametrized modules have a class of their own each, so the class they had before is taken.
    """
    cls = parametrize.type_before_parametrizations(module)
    if cls in (nn.Sequential, nn.ModuleList):
        return frozenset(_structure(child) for child in module.children() if _size(child))
    return cls


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
