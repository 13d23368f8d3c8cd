"""Networks of papers on private training, with the papers' numbers of parameters.

Tanh CNNs of Tramer and Boneh (ICLR 2021): bounded activations keep gradients small, which clipping
rewards (Papernot et al. 2021). ResNet9 of Klause, Ziller, Rueckert, Hammernik and Kaissis (2022).
ResNet20 and GRU of Xiao, Xiang, Wang and Devadas (IEEE S&P 2023), plain and enhanced. ResNet-18 for
public weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quietgrad._checks import require_count
from quietgrad.nn.standardization import Standardize, standardize_weights, standardized


def tanh_cnn_28(classes: int = 10, channels: int = 1) -> nn.Sequential:
    """For images of 28x28 pixels; 26,010 parameters for ten classes and one channel.

    Args:
        classes: number of logits.
        channels: of the images.
    """
    return nn.Sequential(
        nn.Conv2d(require_count("channels", channels, at_least=1), 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, require_count("classes", classes, at_least=1)),
    )


def tanh_cnn_32(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """For images of 32x32 pixels; 550,570 parameters for ten classes and three channels.

    Args:
        classes: number of logits.
        channels: of the images.
    """
    layers: list[nn.Module] = []
    for width, out in pairwise((require_count("channels", channels, at_least=1), 32, 64, 128)):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(out, out, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 128),
        nn.Tanh(),
        nn.Linear(128, require_count("classes", classes, at_least=1)),
    )


def gru_classifier(
    vectors: Tensor, *, hidden: int = 64, classes: int = 2, enhanced: bool = False
) -> GRUClassifier:
    """A classifier of token ids ``[B, T]``; 32,002 trained parameters for 100-d word vectors.

    Args:
        vectors: of the words, ``[words, dimensions]``. They are copied and not trained, and must
            be public: nothing protects what they were made from.
        hidden: size of the state.
        classes: number of logits.
        enhanced: standardize both projections before the gates, in every step.
    """
    if vectors.ndim != 2 or not vectors.is_floating_point():
        raise ValueError(
            f"vectors of shape {tuple(vectors.shape)} and {vectors.dtype} are not valid: expected "
            "one row of floating-point numbers for each word"
        )
    size = require_count("hidden", hidden, at_least=1)
    layer = StandardizedGRU if enhanced else LastOfGRU
    return GRUClassifier(vectors, layer(vectors.shape[1], size), size, classes)


class GRUClassifier(nn.Module):
    """Frozen word vectors, a layer from their sequence to one state, and logits."""

    def __init__(self, vectors: Tensor, recurrent: nn.Module, hidden: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(vectors.detach().clone(), freeze=True)
        self.recurrent = recurrent
        self.head = nn.Linear(hidden, require_count("classes", classes, at_least=1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids ``[B, T]`` to logits ``[B, classes]``."""
        logits: Tensor = self.head(self.recurrent(self.words(tokens)))
        return logits


class LastOfGRU(nn.Module):
    """The last state of `torch.nn.GRU`."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True)

    def forward(self, sequences: Tensor) -> Tensor:
        """Sequences ``[B, T, inputs]`` to states ``[B, hidden]``."""
        states: Tensor = self.gru(sequences)[0]
        return states[:, -1]


class StandardizedGRU(nn.Module):
    """The last state of a GRU whose two projections are standardized, each sample by itself."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(inputs, 3 * hidden)
        self.from_state = nn.Linear(hidden, 3 * hidden)

    def forward(self, sequences: Tensor) -> Tensor:
        """Sequences ``[B, T, inputs]`` to states ``[B, hidden]``."""
        projected = standardized(self.from_input(sequences))
        # Zeros with a row for each sample: a constant would be taken back through the first step
        # as a whole, sample by sample, which takes longer than all other steps together.
        state = (0 * sequences[:, 0, :1]).expand(-1, self.hidden)
        for step in projected.unbind(1):
            state = _gated(step, standardized(self.from_state(state)), state)
        return state


def _gated(from_input: Tensor, from_state: Tensor, state: Tensor) -> Tensor:
    """The next state. Reset, update and new parts lie in this order, as in `torch.nn.GRU`."""
    reset_x, update_x, new_x = from_input.chunk(3, -1)
    reset_h, update_h, new_h = from_state.chunk(3, -1)
    reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + reset * new_h)
    return (1 - update) * new + update * state


def _conv3x3(width: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, stride, padding=1, bias=False)


def resnet9(classes: int = 10, channels: int = 3, scale_norm: bool = False) -> nn.Sequential:
    """ResNet9 for images of at least 8x8 pixels; 2,447,946 parameters for ten classes.

    Args:
        classes: number of logits.
        channels: of the images; the parameters are counted for three.
        scale_norm: normalize after each residual addition, too; 768 parameters more.
    """
    require_count("channels", channels, at_least=1)
    require_count("classes", classes, at_least=1)
    return nn.Sequential(
        _conv_norm_mish(channels, 64),
        _conv_norm_mish(64, 128, nn.MaxPool2d(2)),
        Residual(128, scale_norm),
        _conv_norm_mish(128, 256, nn.MaxPool2d(2)),
        _conv_norm_mish(256, 256, nn.MaxPool2d(2)),
        Residual(256, scale_norm),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256 * 2 * 2, classes),
    )


class Residual(nn.Module):
    """Two convolutions of ResNet9 and a shortcut, the sum normalized or not."""

    def __init__(self, width: int, scale_norm: bool = False) -> None:
        super().__init__()
        self.branch = nn.Sequential(_conv_norm_mish(width, width), _conv_norm_mish(width, width))
        self.scale_norm = nn.GroupNorm(32, width) if scale_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``, of the same shape."""
        result: Tensor = self.scale_norm(self.branch(x) + x)
        return result


def _conv_norm_mish(width: int, out: int, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(_conv3x3(width, out), nn.GroupNorm(32, out), nn.Mish(), *more)


_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


def resnet18(
    classes: int = 1000, weights: Mapping[str, Tensor] | None = None, frozen: bool = False
) -> ResNet18:
    """ResNet-18; 11,689,512 parameters for a thousand classes.

    Args:
        classes: number of logits.
        weights: a state dict with all of its names, such as that of
            ``quietgrad.data.pretrained_weights("resnet18")``; None for random ones.
        frozen: for `ResNet18.features` alone: no parameter is trained, and the batch
            normalization keeps its statistics, whatever `train` is told.
    """
    model = ResNet18(require_count("classes", classes, at_least=1))
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    return model.freeze() if frozen else model


class ResNet18(nn.Module):
    """A stem, eight blocks in four stages, the mean over all places, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)
        self.is_frozen = False

    def features(self, x: Tensor) -> Tensor:
        """512 features of each image of ``[B, 3, H, W]``, as `imagenet_normalized` gives them."""
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            hidden = stage(hidden)
        pooled: Tensor = self.avgpool(hidden)
        return pooled.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, classes]``."""
        logits: Tensor = self.fc(self.features(x))
        return logits

    def freeze(self) -> ResNet18:
        """No more training, of parameters or of statistics."""
        self.is_frozen = True
        self.requires_grad_(False)
        return self.train(False)

    def train(self, mode: bool = True) -> ResNet18:
        """As usual, except that a frozen one stays in eval mode."""
        super().train(mode and not self.is_frozen)
        return self


def _stage(width: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(ResNet18Block(width, out, stride), ResNet18Block(out, out, 1))


class ResNet18Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(width, out, stride)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = _conv3x3(out, out)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or width != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``."""
        hidden = self.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(self.bn2(self.conv2(hidden)) + shortcut)
        return result


def imagenet_normalized(images: Tensor) -> Tensor:
    """Images of bytes ``[B, 3, H, W]``, normalized as the public weights expect them.

    Raises:
        ValueError: they are not images of bytes with three channels.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images are {images.dtype} {tuple(images.shape)}: expected torch.uint8 [B, 3, H, W]"
        )
    mean, std = (
        torch.tensor(constants, device=images.device).view(3, 1, 1)
        for constants in (_IMAGENET_MEAN, _IMAGENET_STD)
    )
    return (images.float() / 255 - mean) / std


def resnet20(classes: int = 10, channels: int = 3, enhanced: bool = False) -> nn.Sequential:
    """ResNet20 with GroupNorm (4 groups) and shortcuts that have no parameters.

    The plain one is that of He et al. (2016) with GroupNorm for BatchNorm and 269,722 parameters;
    the enhanced one has 270,266, both for ten classes and three channels.

    Args:
        classes: number of logits.
        channels: of the images.
        enhanced: normalization after ELU and without parameters of its own; standardized weights;
            256 standardized features (2x2 means) instead of 64 (one mean each).
    """
    first = _conv3x3(require_count("channels", channels, at_least=1), 16)
    last = require_count("classes", classes, at_least=1)
    widths = (16, *(out for out in (16, 32, 64) for _ in range(3)))
    layers: list[nn.Module]
    if enhanced:
        head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), Standardize(), nn.Linear(64 * 4, last)]
        layers = [nn.Sequential(first, nn.ELU(), _norm4(16, affine=False))]
        layers += [ResNet20Block(*pair, enhanced=True) for pair in pairwise(widths)]
        layers += head
    else:
        layers = [nn.Sequential(first, _norm4(16, affine=True), nn.ReLU())]
        layers += [ResNet20Block(*pair, enhanced=False) for pair in pairwise(widths)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, last)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    if enhanced:
        standardize_weights(model)
    return model


class ResNet20Block(nn.Module):
    """Two convolutions and a shortcut; enhanced, every activation is normalized after it."""

    def __init__(self, width: int, out: int, *, enhanced: bool) -> None:
        super().__init__()
        self.enhanced = enhanced
        self.conv1 = _conv3x3(width, out, stride=out // width)
        self.norm1 = _norm4(out, affine=not enhanced)
        self.conv2 = _conv3x3(out, out)
        self.norm2 = _norm4(out, affine=not enhanced)
        self.norm3 = _norm4(out, affine=False) if enhanced else nn.Identity()
        self.shortcut = nn.Identity() if width == out else Shortcut(out - width)
        self.activation = nn.ELU() if enhanced else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, width, H, W]``."""
        hidden = self.conv1(x)
        if self.enhanced:
            hidden = self.norm1(self.activation(hidden))
        else:
            hidden = self.activation(self.norm1(hidden))
        total = self.norm2(self.conv2(hidden)) + self.shortcut(x)
        result: Tensor = self.norm3(self.activation(total))
        return result


class Shortcut(nn.Module):
    """To half the size and more channels, without parameters: the new channels are zero."""

    def __init__(self, new: int) -> None:
        super().__init__()
        self.new = new

    def forward(self, x: Tensor) -> Tensor:
        """Every other pixel, half of the new channels on either side."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.new // 2, self.new // 2))


def _norm4(width: int, *, affine: bool) -> nn.GroupNorm:
    return nn.GroupNorm(4, width, affine=affine)
