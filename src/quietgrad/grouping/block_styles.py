"""Groupings along the repeated blocks of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from quietgrad.grouping.contract import Grouping, Partition
from quietgrad.grouping.layout import Block, Layout, layout_of
from quietgrad.grouping.parameters import by_layer


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
        runs = (Block("stem", layout.stem), *layout.blocks, Block("head", layout.head))
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
            layout = Layout((), _layers(model), ())
            return _runs(layout, _even_starts(len(layout.blocks), self.count, "layers"), "layers")
        layout = Layout(layout.stem, tuple(blocks), layout.head)
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


def _runs(layout: Layout, starts: Sequence[int], unit: str) -> Partition:
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


def _layers(model: nn.Module) -> tuple[Block, ...]:
    return tuple(Block(path, tuple(names)) for path, names in by_layer(model).items())


def _require_layout(model: nn.Module, style: str) -> Layout:
    layout = layout_of(model)
    if layout is None:
        raise ValueError(
            f"{style} grouping found no repeated blocks in {type(model).__name__}: no nn.ModuleList"
            " or nn.Sequential holds two modules of one class that have layers of their own; use"
            " 'layer-wise' or ByName instead"
        )
    return layout
