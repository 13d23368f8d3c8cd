"""Memory over a backward pass and its peak by number of groups, as `quietgrad.plan` predicts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from figures.panels import Color, Curve, Panel, Picture, Style
from quietgrad.nn.models import resnet9
from quietgrad.planning.planner import plan
from quietgrad.planning.result import Option, Plan

_MB = 1e6
_TOKENS, _WIDTH, _BLOCKS, _WORDS = 128, 64, 4, 100
_MOST_GROUPS = 8
Batch = tuple[Tensor, Tensor]


class _Transformer(nn.Module):
    """Blocks of attention over tokens, and a class for the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, _WIDTH)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    _WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(_BLOCKS)
            )
        )
        self.head = nn.Linear(_WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.blocks(self.embedding(tokens)).mean(1))
        return logits


def picture() -> Picture:
    """A convolutional network and a transformer, planned."""
    labels = torch.tensor([0, 1])
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 32, 32, generator=generator)
    tokens = torch.randint(_WORDS, (2, _TOKENS), generator=generator)
    planned = {
        "ResNet9 on 32x32 images": _planned(resnet9(), (images, labels)),
        f"Transformer of {_BLOCKS} blocks, {_TOKENS} tokens": _planned(
            _Transformer(), (tokens, labels)
        ),
    }
    return Picture(
        title="Group-wise clipping: memory of a backward pass, predicted",
        source="On the Efficacy of Group-wise Clipping, Figures 4 and 5",
        settings={"unit": "MB of tensors per sample", "most groups": _MOST_GROUPS},
        panels=(
            *(_over_turns(name, each) for name, each in planned.items()),
            *(_by_groups(each) for each in planned.values()),
        ),
    )


def _planned(model: nn.Module, batch: Batch) -> Plan:
    # A budget, so that the plan is the same on every machine.
    return plan(model.train(), batch, _losses, memory="100GB", max_groups=_MOST_GROUPS)


def _losses(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def _over_turns(name: str, found: Plan) -> Panel:
    shown: tuple[tuple[Option, str, Color, Style], ...] = (
        (found.best[0], "1 group", "vermillion", "solid"),
        (found.best[1], "2 groups", "blue", "dashed"),
        (found.best[-1], f"layer-wise ({found.best[-1].groups})", "green", "dotted"),
    )
    turns = tuple(float(turn) for turn in range(1, len(found.layers) + 1))
    curves = tuple(
        Curve(
            label,
            turns,
            tuple((found.memory_over_turns(option.starts) / _MB).tolist()),
            color,
            style,
        )
        for option, label, color, style in shown
    )
    return Panel(
        title=name,
        x_axis="layers back-propagated",
        y_axis="MB per sample",
        curves=curves,
        y_limits=(0.0, 1.08 * found.best[0].peak / _MB),
        x_ticks=(1, *range(5, len(turns) + 1, 5)),
    )


def _by_groups(found: Plan) -> Panel:
    highest, lowest = (pick(option.peak for option in found.best) / _MB for pick in (max, min))
    beside = 0.5 * len(found.layers), highest - 0.12 * (highest - lowest)  # where no line is
    return Panel(
        title="Highest peak (the axis does not begin at 0)",
        x_axis="groups",
        y_axis="MB per sample",
        curves=(
            _peaks("equally many layers", found.uniform, "grey", "dashed", beside),
            _peaks("best boundaries", found.best, "blue", "solid"),
        ),
        x_log=True,
        x_ticks=(1, 2, 4, 8, len(found.layers)),
    )


def _peaks(
    label: str,
    options: tuple[Option, ...],
    color: Color,
    style: Style,
    label_at: tuple[float, float] | None = None,
) -> Curve:
    groups = tuple(float(option.groups) for option in options)
    peaks = tuple(option.peak / _MB for option in options)
    return Curve(label, groups, peaks, color, style, label_at, marked=True)
