"""Which pairs of data sets must look alike: the relation a privacy claim is about."""

from typing import Final, Literal, get_args

from quietgrad._checks import require_choice

Adjacency = Literal["add-remove-one", "replace-one", "zero-out-one"]
"""How two neighbouring data sets differ.

- `add-remove-one`: one has a sample more. The default, and what DP-SGD papers mean.
- `replace-one`: one sample is exchanged for another; the number of samples is public. A sum of
  clipped gradients moves up to twice as far, so the same noise gives a larger epsilon.
- `zero-out-one`: one sample is exchanged for one without a gradient; the number is public.
"""

ADD_REMOVE: Final = "add-remove-one"
REPLACE: Final = "replace-one"
ZERO_OUT: Final = "zero-out-one"

ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)


def require_adjacency(value: object) -> Adjacency:
    """The relation of this name."""
    return require_choice("adjacency", value, ADJACENCIES)


def largest_move(adjacency: Adjacency) -> float:
    """How far a neighbour moves an unsampled sum, in units of one sample's largest gradient."""
    return 2.0 if adjacency == REPLACE else 1.0
