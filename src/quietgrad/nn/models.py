"""Small convolutional networks with tanh, of Tramer and Boneh (ICLR 2021).

Bounded activations keep gradients small, which clipping rewards (Papernot et al. 2021).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from quietgrad._checks import require_count
from quietgrad.nn.standardization import standardized

_HIDDEN_28, _HIDDEN_32 = 32, 128
_WIDTHS_32 = 32, 64, 128


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
        nn.Linear(512, _HIDDEN_28),
        nn.Tanh(),
        nn.Linear(_HIDDEN_28, require_count("classes", classes, at_least=1)),
    )


def tanh_cnn_32(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """For images of 32x32 pixels; 550,570 parameters for ten classes and three channels.

    Args:
        classes: number of logits.
        channels: of the images.
    """
    layers: list[nn.Module] = []
    for width, out in pairwise((require_count("channels", channels, at_least=1), *_WIDTHS_32)):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(out, out, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(_WIDTHS_32[-1] * 4 * 4, _HIDDEN_32),
        nn.Tanh(),
        nn.Linear(_HIDDEN_32, require_count("classes", classes, at_least=1)),
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
    """Word vectors, a layer from their sequence to one state, and logits.

    Args:
        vectors: of the words, ``[words, dimensions]``.
        recurrent: from ``[B, T, dimensions]`` to ``[B, hidden]``.
        hidden: size of the state.
        classes: number of logits.
    """

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
    """The last state of `torch.nn.GRU`.

    Args:
        inputs: size of what is read in each step.
        hidden: size of the state.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True)

    def forward(self, sequences: Tensor) -> Tensor:
        """Sequences ``[B, T, inputs]`` to states ``[B, hidden]``."""
        states: Tensor = self.gru(sequences)[0]
        return states[:, -1]


class StandardizedGRU(nn.Module):
    """The last state of a GRU whose two projections are standardized, each sample by itself.

    Args:
        inputs: size of what is read in each step.
        hidden: size of the state.
    """

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
