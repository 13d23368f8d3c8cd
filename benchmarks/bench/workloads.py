"""Workloads by name, and those that need torch alone."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad._checks import unknown_name
from quietgrad.errors import MissingExtraError
from quietgrad.nn.models import gru_classifier, tanh_cnn_28

_PACKAGES = ("quietgrad", "torch", "numpy", "transformers", "peft", "opacus")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, and how busy it is now."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average_before": list(os.getloadavg()),
    }


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that matter; None for what is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Its name where Linux tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


Layout = Literal["default", "channels-last"]


def called(model: nn.Module, *inputs: Tensor) -> Tensor:
    """The predictions of a model that simply returns them."""
    predictions: Tensor = model(*inputs)
    return predictions


@dataclass(frozen=True)
class Workload:
    """A model and one physical batch. Always classification: peers need to know the criterion.

    Attributes:
        model: in training mode; what requires no gradient is frozen.
        inputs: what the model is called with, samples first.
        targets: classes, `[B]`, or `[B, T]` for one at every position.
        predict: calls a model, perhaps one that wraps `model`, and returns logits `[B, C, ...]`.
        has_images: whether the layout in memory can be chosen.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor
    predict: Callable[..., Tensor] = called
    has_images: bool = False

    def losses(self) -> Tensor:
        """One loss per sample, `[B]`."""
        predictions = self.predict(self.model, *self.inputs)
        losses = F.cross_entropy(predictions, self.targets, reduction="none")
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    @property
    def batch_size(self) -> int:
        """Number of samples in the physical batch."""
        return len(self.targets)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters to train."""
        return [each for each in self.model.parameters() if each.requires_grad]

    def on(self, device: str) -> Workload:
        """The same on a device. The model is moved in place."""
        if device == "cpu":
            return self
        inputs = tuple(each.to(device) for each in self.inputs)
        moved: nn.Module = self.model.to(device)
        return replace(self, model=moved, inputs=inputs, targets=self.targets.to(device))

    def in_layout(self, layout: Layout) -> Workload:
        """The same, with images and filters laid out so. The model is changed in place."""
        if layout == "default":
            return self
        model: Any = self.model
        channels_last: Any = {"memory_format": torch.channels_last}
        inputs = tuple(each.to(**channels_last) if each.ndim == 4 else each for each in self.inputs)
        return replace(self, model=model.to(**channels_last), inputs=inputs)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts worth trying."""
        return ("default", "channels-last") if self.has_images else ("default",)


_NORM_GROUPS = 16
_WIDTHS, _BLOCKS = (16, 32, 64), 3


class Block_resnet(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_NORM_GROUPS, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_NORM_GROUPS, out)
        self.shortcut: nn.Module = nn.Identity()
        if (width, stride) != (out, 1):
            projection = nn.Conv2d(width, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(_NORM_GROUPS, out))

    def forward(self, x: Tensor) -> Tensor:
        """As usual."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


def resnet20() -> nn.Module:
    """Stem, three stages of three blocks, mean, linear."""
    stem = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(_NORM_GROUPS, 16), nn.ReLU()
    blocks: list[nn.Module] = []
    width = 16
    for stage, out in enumerate(_WIDTHS):
        for block in range(_BLOCKS):
            stride = 2 if stage and not block else 1
            blocks.append(Block_resnet(width, out, stride))
            width = out
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ROBERTA_TOKENS, _GPT2_TOKENS = 128, 100


def vit(batch_size: int) -> Workload:
    """8x8 patches of 4x4 pixels, and the class token."""
    hf = _transformers()
    config = hf.ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_labels=10,
        **_NO_DROPOUT,
    )
    model, images = hf.ViTForImageClassification(config), torch.randn(batch_size, 3, 32, 32)
    labels = torch.randint(10, (batch_size,))
    return Workload(model.train(), (images,), labels, _logits, has_images=True)


def roberta(batch_size: int) -> Workload:
    """Classification of whole sequences: none is padded."""
    hf = _transformers()
    config = hf.RobertaConfig(num_hidden_layers=6, num_labels=2, **_NO_DROPOUT)
    model = hf.RobertaForSequenceClassification(config).train()
    # The first ids are special: one of them is padding, which shifts positions.
    tokens = torch.randint(4, config.vocab_size, (batch_size, _ROBERTA_TOKENS))
    return Workload(model, (tokens,), torch.randint(2, (batch_size,)), _logits)


def lora(batch_size: int) -> Workload:
    """Adapters and the classifier are trained, all else is frozen."""
    base = roberta(batch_size)
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise MissingExtraError("peft", "transformers") from error
    adapters = LoraConfig(r=8, target_modules=["query", "value"], task_type=TaskType.SEQ_CLS)
    model: Any = base.model
    adapted: nn.Module = get_peft_model(model, adapters)
    return Workload(adapted.train(), base.inputs, base.targets, _logits)


def gpt2(batch_size: int) -> Workload:
    """Next tokens, of sequences that are not padded."""
    hf = _transformers()
    config = hf.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    tokens = torch.randint(config.vocab_size, (batch_size, _GPT2_TOKENS))
    model = hf.GPT2LMHeadModel(config).train()
    return Workload(model, (tokens,), tokens[:, 1:], _next_tokens)


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    logits: Tensor = model(inputs).logits
    return logits


def _next_tokens(model: nn.Module, tokens: Tensor) -> Tensor:
    logits: Tensor = model(tokens).logits
    return logits[:, :-1].mT


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "transformers") from error
    return transformers


Make = Callable[[int], Workload]


@dataclass(frozen=True)
class Kind:
    """How a workload is made.

    Attributes:
        name: as it is asked for.
        description: for people: sizes, data.
        batch_size: of a physical batch, unless another one is asked for.
        make: with a batch size; a function at the top of a module, so that another process finds
            it too.
        device: where it runs.
    """

    name: str
    description: str
    batch_size: int
    make: Make
    device: str = "cpu"

    def build(self, batch_size: int | None = None) -> Workload:
        """A new one, always with the same weights and data."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make(batch_size or self.batch_size).on(self.device)


def mlp(batch_size: int) -> Workload:
    """784-1024-1024-10."""
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    return Workload(model, (torch.randn(batch_size, 784),), _labels(batch_size))


def cnn(batch_size: int) -> Workload:
    """The tanh CNN of Tramer & Boneh, 26,010 parameters."""
    model = tanh_cnn_28()  # its weights are drawn first
    images = torch.randn(batch_size, 1, 28, 28)
    return Workload(model, (images,), _labels(batch_size), has_images=True)


def digits(batch_size: int) -> Workload:
    """The layers of the recipe of this name, 5,962 parameters: hardly any arithmetic."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    images = torch.randn(batch_size, 1, 8, 8)
    return Workload(model, (images,), _labels(batch_size), has_images=True)


def resnet(batch_size: int) -> Workload:
    """ResNet20 with GroupNorm, on images of CIFAR's size."""
    images = torch.randn(batch_size, 3, 32, 32)
    return Workload(resnet20(), (images,), _labels(batch_size), has_images=True)


def gru(batch_size: int) -> Workload:
    """Reviews cut to 128 words."""
    tokens = torch.randint(10_000, (batch_size, 128))
    model = gru_classifier(torch.randn(10_000, 100))
    return Workload(model, (tokens,), torch.randint(2, (batch_size,)))


def _labels(batch_size: int) -> Tensor:
    return torch.randint(10, (batch_size,))


_KINDS: dict[str, Kind] = {}


def names() -> tuple[str, ...]:
    """All workloads."""
    return tuple(_KINDS)


def resolve(name: str) -> Kind:
    """The workload of this name; ValueError, with the nearest one, if there is none."""
    if name not in _KINDS:
        raise unknown_name("workload", name, names())
    return _KINDS[name]


def register(kind: Kind) -> None:
    """Make a workload available by its name. Names cannot be replaced."""
    if kind.name in _KINDS:
        raise ValueError(f"workload {kind.name!r} exists already; register under another name")
    _KINDS[kind.name] = kind


for _kind in (
    Kind("mlp", "784-1024-1024-10", 256, mlp),
    Kind("cnn", "tanh CNN, 28x28", 512, cnn),
    Kind("resnet20", "GroupNorm (16 groups), 32x32", 64, resnet),
    Kind("vit", "6 layers x 384, 65 tokens", 32, vit),
    Kind("roberta", "6 layers x 768, 128 tokens", 8, roberta),
    Kind("gpt2", "stock 12 layers x 768, tied, 100 tokens", 4, gpt2),
    Kind("gru", "frozen 100-d words, GRU of 64, 128 tokens", 256, gru),
    Kind("lora", "roberta with rank-8 adapters on query and value", 8, lora),
    Kind("digits", "one 5x5 convolution and one linear layer, 8x8", 256, digits),
):
    register(_kind)


_TOKENS = (64, 128, 256, 512, 1024)
_WIDTH, _HEADS, _BLOCK_BATCH = 768, 12, 4
_BATCHES = tuple(1 << power for power in range(11))


@dataclass(frozen=True)
class Sweep:
    """A series of workloads.

    Attributes:
        name: as it is asked for.
        of: what grows, in words.
        kinds: the workloads.
        size: what has grown, of each.
    """

    name: str
    of: str
    kinds: Callable[[], list[Kind]]
    size: Callable[[Kind], int]


class Block_sweeps(nn.Module):
    """One encoder layer of torch, and a head on the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, activation="gelu", batch_first=True
        )
        self.head = nn.Linear(_WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.layer(x).mean(1))
        return logits


def block(batch_size: int, tokens: int) -> Workload:
    """A transformer block on so many tokens."""
    x = torch.randn(batch_size, tokens, _WIDTH)
    return Workload(Block_sweeps(), (x,), torch.randint(10, (batch_size,)))


def _token_kinds() -> list[Kind]:
    about = f"one transformer block of width {_WIDTH}"
    return [
        Kind(f"block-{count}", about, _BLOCK_BATCH, partial(block, tokens=count))
        for count in _TOKENS
    ]


def _batch_kinds() -> list[Kind]:
    return [replace(resolve(name), batch_size=size) for name in ("cnn", "mlp") for size in _BATCHES]


_SWEEPS = {
    "tokens": Sweep(
        "tokens", "tokens", _token_kinds, lambda kind: int(kind.name.rpartition("-")[2])
    ),
    "batch": Sweep("batch", "batch size", _batch_kinds, lambda kind: kind.batch_size),
}


def names_sweeps() -> tuple[str, ...]:
    """All sweeps."""
    return tuple(_SWEEPS)


def resolve_sweeps(name: str) -> Sweep:
    """The sweep of this name; ValueError if there is none."""
    if name not in _SWEEPS:
        raise unknown_name("sweep", name, names_sweeps())
    return _SWEEPS[name]
