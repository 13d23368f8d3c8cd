"""How ranks would share a model, and what one of them would run: a copy with some weights."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quietgrad._checks import require_count
from quietgrad.grouping.blocks import block_paths, layout_of

DATA, SHARDED, COPIES, TENSOR, PIPELINE = (
    "data-parallel",
    "fsdp2",
    "hsdp",
    "tensor-parallel",
    "pipeline",
)
SCHEDULES = ("1f1b", "gpipe")
KNOWN = f"{DATA}, {SHARDED}, {COPIES}:RxS, {TENSOR}:N, {PIPELINE}:N or {PIPELINE}:N:gpipe"


@dataclass(frozen=True)
class Mode:
    """How so many ranks share the work.

    Attributes:
        kind: data-parallel, fsdp2, hsdp, tensor-parallel or pipeline.
        world: the number of ranks.
        parts: into how many the weights are cut: shards, parts of layers, or stages.
        schedule: of a pipeline.
    """

    kind: str
    world: int
    parts: int = 1
    schedule: str = ""

    @property
    def copies(self) -> int:
        """How many ranks hold the same weights."""
        return self.world // self.parts

    @property
    def is_sharded(self) -> bool:
        """Whether weights are gathered when a module runs."""
        return self.kind in (SHARDED, COPIES)

    @property
    def data_size(self) -> int:
        """How many ranks, or sets of them, have samples of their own."""
        return self.world if self.kind == DATA or self.is_sharded else self.copies

    @property
    def in_words(self) -> str:
        """For people."""
        copies = f", {self.copies} beside each other" if self.copies > 1 else ""
        if self.kind == DATA:
            return f"data parallel on {self.world} ranks"
        if self.kind == SHARDED:
            return f"FSDP2 on {self.world} ranks"
        if self.kind == COPIES:
            return f"HSDP on {self.world} ranks: {self.copies} copies, each on {self.parts} ranks"
        if self.kind == TENSOR:
            return f"tensor parallel on {self.parts} ranks{copies}"
        return f"a pipeline of {self.parts} stages ({self.schedule}){copies}"


def parse_mode(text: str, world: int) -> Mode:
    """A mode as it is written on the command line.

    Raises:
        ValueError: it is unknown, or does not fit the number of ranks.
    """
    world = require_count("world", world, at_least=1)
    kind, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind == DATA and not rest:
        return Mode(DATA, world)
    if kind == SHARDED and not rest:
        return Mode(SHARDED, world, world)
    if kind == COPIES and (found := re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", rest)):
        copies, parts = int(found[1]), int(found[2])
        if copies * parts != world:
            raise ValueError(
                f"mode={text!r} is {copies} copies on {parts} ranks each, and world={world}: "
                f"expected copies times ranks to be {world}"
            )
        return Mode(COPIES, world, parts)
    if kind in (TENSOR, PIPELINE):
        number, _, schedule = rest.partition(":")
        is_known = not schedule or (kind == PIPELINE and schedule in SCHEDULES)
        if number.isascii() and number.isdigit() and int(number) > 0 and is_known:
            parts = int(number)
            if world % parts:
                raise ValueError(
                    f"mode={text!r} needs {parts} ranks at a time, and world={world} is no "
                    "multiple of that: the ranks beside each other must all have as many"
                )
            return Mode(kind, world, parts, (schedule or "1f1b") if kind == PIPELINE else "")
    raise ValueError(f"mode={text!r} is unknown: expected {KNOWN}")


class Weight(NamedTuple):
    """A parameter of what a rank runs, whole.

    Attributes:
        name: in the model.
        shape: as the rank computes with it.
        itemsize: bytes of a number, as the optimizer holds it.
        is_trained: whether it gets a gradient.
        place: path of the block that it is in; empty for what is outside of all.
        is_cut: whether other ranks have other parts of it (tensor parallel).
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int
    is_trained: bool
    place: str
    is_cut: bool = False

    @property
    def numbers(self) -> int:
        """How many it has."""
        return torch.Size(self.shape).numel()

    @property
    def size(self) -> int:
        """Bytes, as the optimizer holds it."""
        return self.numbers * self.itemsize

    @property
    def sum_size(self) -> int:
        """Bytes of its clipped sum, which is never in half precision."""
        return self.numbers * max(self.itemsize, 4)

    def shard(self, parts: int) -> Weight:
        """The part of the first rank, which is the largest: rows of the first dimension."""
        if not self.shape:
            return self
        return self._replace(shape=(-(-self.shape[0] // parts), *self.shape[1:]))


def list_weights(model: nn.Module, cut: Sequence[str] = ()) -> list[Weight]:
    """The parameters of a model, each once."""
    blocks = block_paths(model)
    return [
        Weight(
            name,
            tuple(parameter.shape),
            parameter.element_size(),
            parameter.requires_grad,
            next((path for path in blocks if name.startswith(f"{path}.")), ""),
            name in cut,
        )
        for name, parameter in model.named_parameters()
    ]


# -- tensor parallelism ---------------------------------------------------------------------------

TensorPlan = Mapping[str, str]
"""Paths of layers, where * stands for any part of one, and "colwise" or "rowwise"."""

_STYLES = {
    "colwise": "colwise",
    "colwise_rep": "gathered",
    "colwise_gather_output": "gathered",
    "rowwise": "rowwise",
    "rowwise_rep": "rowwise",
    "embedding_rowwise": "rowwise",
}
_LAYERS = (nn.Linear, nn.Embedding)


def find_tensor_plan(model: nn.Module) -> TensorPlan:
    """The one that a model of transformers comes with."""
    config = getattr(model, "config", None)
    found: dict[str, str] = {}
    if isinstance(own := getattr(model, "_tp_plan", None), Mapping):
        found |= own
    base = getattr(config, "base_model_tp_plan", None)
    prefix = getattr(model, "base_model_prefix", "")
    if isinstance(base, Mapping):
        is_base = not prefix or not hasattr(model, prefix)
        found |= {name if is_base else f"{prefix}.{name}": style for name, style in base.items()}
    return found


class CutLayer(NamedTuple):
    """A layer whose weight is spread: ``style`` is colwise, gathered or rowwise."""

    path: str
    style: str
    is_embedding: bool


def cut_layers(model: nn.Module, plan: TensorPlan | None, parts: int) -> list[CutLayer]:
    """Leave a model on the meta device with the part of one rank; what was cut.

    Raises:
        ValueError: there is no plan, or it does not fit the model or the number of ranks.
    """
    given = find_tensor_plan(model) if plan is None else plan
    if not given:
        raise ValueError(
            f"{type(model).__name__} does not say which layers tensor parallelism spreads: pass "
            "qg.plan_ranks(..., tensor_plan={'blocks.*.up': 'colwise', 'blocks.*.down': 'rowwise'})"
            ", or choose another mode"
        )
    found: dict[str, CutLayer] = {}
    for pattern, style in given.items():
        named = [
            (path, module)
            for path, module in model.named_modules()
            if fnmatch.fnmatchcase(path, pattern) and isinstance(module, _LAYERS)
        ]
        if style not in _STYLES:
            if plan is not None:
                raise ValueError(
                    f"tensor_plan[{pattern!r}]={style!r} is not valid: expected 'colwise', whose "
                    "output is cut, 'rowwise', whose input is, or 'colwise_rep', whose output is "
                    "gathered"
                )
            continue
        if not named and plan is not None:
            raise ValueError(
                f"tensor_plan names {pattern!r}, and the model has no linear layer or embedding "
                "there"
            )
        for path, module in named:
            kind = _STYLES[style]
            is_embedding = isinstance(module, nn.Embedding)
            if is_embedding and kind == "colwise":
                kind = "gathered"  # its output is used whole
            found[path] = CutLayer(path, kind, is_embedding)
    if not found:
        raise ValueError(
            f"the plan of {type(model).__name__} names no linear layer or embedding that it has"
        )
    kept: dict[int, nn.Parameter] = {}
    for layer in found.values():
        _cut(model.get_submodule(layer.path), layer, parts, kept)
    return list(found.values())


def _cut(module: nn.Module, layer: CutLayer, parts: int, kept: dict[int, nn.Parameter]) -> None:
    """Its weight and bias, as this rank holds them; what is tied to another stays so."""
    by_rows = layer.style == "rowwise"
    weight: Any = module.weight
    dim = int(by_rows != layer.is_embedding)
    if weight.shape[dim] % parts and not (layer.is_embedding or layer.style == "gathered"):
        raise ValueError(
            f"{layer.path} is cut into {parts} parts along a dimension of {weight.shape[dim]}: "
            f"expected a multiple of {parts}"
        )
    for name, parameter in list(module.named_parameters(recurse=False)):
        along = dim if name == "weight" else 0
        if name == "bias" and (by_rows or layer.is_embedding):
            continue  # it is added once, to what is whole
        if id(parameter) not in kept:
            shape = list(parameter.shape)
            shape[along] = -(-shape[along] // parts)
            part = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
            kept[id(parameter)] = nn.Parameter(part, parameter.requires_grad)
        setattr(module, name, kept[id(parameter)])
    if layer.style == "gathered":
        module.register_forward_hook(lambda own, args, output: _gather(output, parts))


def _gather(output: Tensor, parts: int) -> Tensor:
    """As wide as the outputs of all ranks together."""
    return torch.cat([output] * parts, -1)


def cut_names(model: nn.Module, layers: Sequence[CutLayer]) -> list[str]:
    """The parameters of which other ranks have other parts."""
    parameters = {
        id(parameter)
        for layer in layers
        for name, parameter in model.get_submodule(layer.path).named_parameters(recurse=False)
        if name == "weight" or (layer.style != "rowwise" and not layer.is_embedding)
    }
    return [name for name, parameter in model.named_parameters() if id(parameter) in parameters]


# -- pipelines ------------------------------------------------------------------------------------


class StagePart(NamedTuple):
    """A stage: consecutive blocks, and what comes before the first or behind the last of them.

    Attributes:
        blocks: their paths.
        parameters: names.
    """

    blocks: tuple[str, ...]
    parameters: frozenset[str]


def untie(model: nn.Module) -> None:
    """Stages have parameters of their own: those that are tied become several."""
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in seen:
                own = nn.Parameter(torch.empty_like(parameter), parameter.requires_grad)
                setattr(module, name, own)
            seen.add(id(parameter))


def cut_stages(model: nn.Module, count: int) -> list[StagePart]:
    """The blocks of a model in so many runs of nearly equal length, the longer ones first.

    Raises:
        ValueError: it has no blocks, or fewer.
    """
    layout = layout_of(model)
    if layout is None:
        raise ValueError(
            f"{type(model).__name__} cannot be cut into stages: no nn.ModuleList or nn.Sequential "
            "of it holds blocks of one class. Choose another mode"
        )
    blocks = block_paths(model)
    if count > len(blocks):
        raise ValueError(
            f"mode='{PIPELINE}:{count}' cuts the model into {count} stages, and it has "
            f"{len(blocks)} blocks: expected at most as many stages"
        )
    short, longer = divmod(len(blocks), count)
    bounds = [stage * short + min(stage, longer) for stage in range(count + 1)]
    names = [name for name, _ in model.named_parameters()]
    last = max(i for i, name in enumerate(names) if _block_of(name, blocks) is not None)
    stage_of: dict[str, int] = {}
    current = 0
    for place, name in enumerate(names):
        block = _block_of(name, blocks)
        if block is not None:
            number = blocks.index(block)
            current = next(s for s in range(count) if bounds[s] <= number < bounds[s + 1])
        elif place > last:
            current = count - 1
        stage_of[name] = current
    return [
        StagePart(
            blocks[bounds[stage] : bounds[stage + 1]],
            frozenset(name for name, own in stage_of.items() if own == stage),
        )
        for stage in range(count)
    ]


def _block_of(name: str, blocks: Sequence[str]) -> str | None:
    return next((path for path in blocks if name.startswith(f"{path}.")), None)
