"""Where the steps of a program get their parameters from: by label, so that equal labels share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

WIDTH = 4
"""Features of every position: each operation keeps them, so that any follows any other."""
LONGEST = 6
"""Positions are cut to this many after every step."""
WORDS = 7
"""Rows of every table."""


class Pool(nn.Module):
    """Parameters and layers, made when first asked for; the same label gives the same object.

    Any two operations with a square weight may thus share it, which ties them, and an operation
    that comes twice with one label is a reused layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors = nn.ParameterDict()
        self.layers = nn.ModuleDict()
        self._layout = ""

    def forward(self, body: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
        """Run ``body`` as a part of the model: so must be what checkpointing runs again."""
        return body(h)

    def tensor(self, label: str, *shape: int) -> Tensor:
        """A parameter of this shape."""
        name = "x".join(map(str, shape)) + label
        if name not in self.tensors:
            self.tensors[name] = nn.Parameter(0.6 * torch.randn(shape))
        return self.tensors[name]

    def square(self, label: str) -> Tensor:
        """A weight ``[WIDTH, WIDTH]``."""
        return self.tensor(label, WIDTH, WIDTH)

    def row(self, label: str) -> Tensor:
        """A bias, a scale or a token ``[WIDTH]``."""
        return self.tensor(label, WIDTH)

    @contextmanager
    def laid_out(self, layout: str) -> Iterator[None]:
        """Layers asked for in here are not those outside.

        A layer that is called in two layouts in one forward is refused; a weight may be used so.
        """
        before, self._layout = self._layout, layout
        try:
            yield
        finally:
            self._layout = before

    def layer(self, label: str, make: Callable[[], nn.Module]) -> nn.Module:
        """A layer of torch; one per label, kind and layout."""
        if (name := f"{make.__name__} {label} {self._layout}") not in self.layers:
            self.layers[name] = make()
        return self.layers[name]
