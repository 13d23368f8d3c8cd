"""Groupings by the repeated blocks of a model: transformer blocks, residual blocks, stages.

A block is a child of an nn.ModuleList or nn.Sequential that shares its class with at least one
sibling and is more than a single layer. Containers are searched from the outside in, and what lies
inside a block is not searched, so stages win over the blocks they are made of.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn
from torch.nn.utils import parametrize

from quietgrad.grouping.base import Grouping, Partition, by_layer, kind_of, trainable

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


@dataclass(frozen=True)
class ParameterBlock:
    """A named run of trainable parameters; empty where all of them are frozen."""

    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class BlockLayout:
    """Trainable parameters before, in and after the blocks, in the order of named_parameters()."""

    stem: tuple[str, ...]
    blocks: tuple[ParameterBlock, ...]
    head: tuple[str, ...]


def layout_of(model: nn.Module) -> BlockLayout | None:
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
    return BlockLayout(
        _only(stem, keep),
        tuple(ParameterBlock(path, _only(inner, keep)) for path, inner in blocks.items()),
        _only(names[last + 1 :], keep),
    )


def _enclosing(parameter: str, paths: Iterable[str]) -> str | None:
    return next((path for path in paths if parameter.startswith(f"{path}.")), None)


def _only(names: Iterable[str], keep: set[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in keep)


@dataclass(frozen=True, kw_only=True)
class BlockWise(Grouping):
    """One group per block, named by its path; "stem" before the first and "head" after the last.

    Blocks are the children of one class in an nn.ModuleList or nn.Sequential; the outermost such
    containers count, and of several only those that are alike or of substantial size. Groups whose
    parameters are all frozen are left out.
    """

    def partition(self, model: nn.Module) -> Partition:
        """The stem, each block by its path, and the head."""
        layout = _require_layout(model, "block-wise")
        runs = (
            ParameterBlock("stem", layout.stem),
            *layout.blocks,
            ParameterBlock("head", layout.head),
        )
        return {run.name: run.parameters for run in runs if run.parameters}


@dataclass(frozen=True)
class Uniform(Grouping):
    """The blocks in `count` runs of nearly equal length; the longer runs come first.

    "On the Efficacy of Group-wise Clipping", section 5. The stem joins the first run and the head
    the last. Fully frozen blocks are not counted. A model without blocks is divided by its layers.
    """

    count: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.count, bool) or not isinstance(self.count, int):
            raise TypeError(f"Uniform needs a whole number of groups, got {self.count!r}")
        if self.count < 1:
            raise ValueError(f"Uniform needs at least one group, got {self.count}")

    def partition(self, model: nn.Module) -> Partition:
        """Runs named "blocks 0-3", or "layers 0-3" where no block repeats."""
        layout = layout_of(model)
        blocks = [block for block in layout.blocks if block.parameters] if layout else []
        if layout is None or not blocks:
            layout = BlockLayout((), _layers(model), ())
            return _runs(layout, _even_starts(len(layout.blocks), self.count, "layers"), "layers")
        layout = BlockLayout(layout.stem, tuple(blocks), layout.head)
        return _runs(layout, _even_starts(len(blocks), self.count, "blocks"), "blocks")


@dataclass(frozen=True)
class Boundaries(Grouping):
    """A new group starts at each of these blocks: Boundaries([2, 6]) is blocks 0-1, 2-5 and 6-end.

    "On the Efficacy of Group-wise Clipping", section 5, the non-uniform grouping. The stem joins
    the first group and the head the last. Indices count all blocks, frozen ones too; groups whose
    parameters are all frozen are left out.
    """

    starts: Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "starts", tuple(self.starts))
        if any(isinstance(start, bool) or not isinstance(start, int) for start in self.starts):
            raise TypeError(f"boundaries must be whole block indices, got {self.starts}")
        if not self.starts:
            raise ValueError("Boundaries needs at least one index; one single group is 'all-layer'")
        if any(left >= right for left, right in pairwise((0, *self.starts))):
            raise ValueError(
                f"boundaries must be positive and increasing, got {list(self.starts)}"
                " (block 0 always starts the first group)"
            )

    def partition(self, model: nn.Module) -> Partition:
        """Runs named "blocks 0-1" and so on."""
        layout = _require_layout(model, "Boundaries")
        count = len(layout.blocks)
        if self.starts[-1] >= count:
            raise ValueError(
                f"boundary {self.starts[-1]} lies outside the {count} blocks 0-{count - 1}"
                f" of {type(model).__name__}"
            )
        return _runs(layout, (0, *self.starts), "blocks")


def _runs(layout: BlockLayout, starts: Sequence[int], unit: str) -> Partition:
    """Merge blocks into runs that begin at `starts`; stem and head join the outer runs."""
    count = len(layout.blocks)
    partition = {}
    for start, end in pairwise((*starts, count)):
        inner = [name for block in layout.blocks[start:end] for name in block.parameters]
        stem = layout.stem if start == 0 else ()
        head = layout.head if end == count else ()
        if names := (*stem, *inner, *head):
            partition[f"{unit} {start}-{end - 1}"] = names
    return partition


def _even_starts(length: int, count: int, unit: str) -> tuple[int, ...]:
    """Where `count` runs of nearly equal length begin; the first length % count have one more."""
    if count > length:
        raise ValueError(f"cannot divide {length} {unit} into {count} groups")
    short, longer = divmod(length, count)
    return tuple(run * short + min(run, longer) for run in range(count))


def _layers(model: nn.Module) -> tuple[ParameterBlock, ...]:
    return tuple(ParameterBlock(path, tuple(names)) for path, names in by_layer(model).items())


def _require_layout(model: nn.Module, style: str) -> BlockLayout:
    layout = layout_of(model)
    if layout is None:
        raise ValueError(
            f"{style} grouping found no repeated blocks in {type(model).__name__}: no nn.ModuleList"
            " or nn.Sequential holds two modules of one class that have layers of their own; use"
            " 'layer-wise' or ByName instead"
        )
    return layout
