"""The parameters of a model along its blocks: stem, blocks, head."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from quietgrad.grouping.blocks import block_paths
from quietgrad.grouping.parameters import trainable


@dataclass(frozen=True)
class Block:
    """A named run of trainable parameters; empty where all of them are frozen."""

    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Trainable parameters before, in and after the blocks, in the order of named_parameters()."""

    stem: tuple[str, ...]
    blocks: tuple[Block, ...]
    head: tuple[str, ...]


def layout_of(model: nn.Module) -> Layout | None:
    """Stem, blocks and head of a model, or None if no block repeats.

    What lies between two blocks (a down-sampling layer, the final norm of an encoder that a decoder
    follows) joins the block before it, so that every block stays one run of the model.
    """
    paths = block_paths(model)
    if not paths:
        return None
    names = [name for name, _ in model.named_parameters()]
    inside = {name: path for name in names if (path := _enclosing(name, paths)) is not None}
    # No parameter lies inside if all of them are tied to earlier names: then all is head.
    last = max((i for i, name in enumerate(names) if name in inside), default=-1)
    stem: list[str] = []
    blocks: dict[str, list[str]] = {path: [] for path in paths}
    current = stem
    for name in names[: last + 1]:
        current = blocks[inside[name]] if name in inside else current
        current.append(name)
    keep = set(trainable(model))
    return Layout(
        _only(stem, keep),
        tuple(Block(path, _only(inner, keep)) for path, inner in blocks.items()),
        _only(names[last + 1 :], keep),
    )


def _enclosing(parameter: str, paths: Iterable[str]) -> str | None:
    return next((path for path in paths if parameter.startswith(f"{path}.")), None)


def _only(names: Iterable[str], keep: set[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in keep)
