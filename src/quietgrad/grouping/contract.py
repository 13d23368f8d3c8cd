"""The one contract of every grouping."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from quietgrad.grouping.radii import Numbers, frozen_numbers, radii_of, require_positive, total

Partition = Mapping[str, Sequence[str]]
"""Group name -> names of its parameters, in order."""


@dataclass(frozen=True)
class Group:
    """Parameters whose joint per-sample gradient is clipped with one weight, at one radius."""

    name: str
    parameters: tuple[str, ...]
    radius: float

    def __post_init__(self) -> None:
        require_positive(self.radius, f"the radius of group {self.name!r}")
        if not self.parameters:
            raise ValueError(f"group {self.name!r} has no parameters")


@dataclass(frozen=True, kw_only=True)
class Grouping(ABC):
    """Splits a model's trainable parameters into groups, and the radius among them.

    A subclass is a frozen dataclass that implements `partition`; the radii follow from the fields:

    | given         | radius of group m                                                       |
    | ------------- | ----------------------------------------------------------------------- |
    | `radius` only | R_m = R/sqrt(M), as in "On the Efficacy of Group-wise Clipping"         |
    | `proportions` | R_m = R a_m/|a|: by theorems 1 and 2 of "Automatic Clipping" (App. B.3) |
    |               | scaling R then equals scaling the learning rate                         |
    | `radii`       | R_m as given, and `radius` becomes R = sqrt(sum R_m^2)                  |

    In every case sqrt(sum R_m^2) = R. `proportions` and `radii` hold one positive number per group,
    in the order of the groups or by group name.
    """

    radius: float = 1.0
    proportions: Numbers | None = None
    radii: Numbers | None = None

    def __post_init__(self) -> None:
        if self.proportions is not None and self.radii is not None:
            raise ValueError("give either proportions or radii, not both")
        for field in ("proportions", "radii"):
            if (numbers := getattr(self, field)) is not None:
                object.__setattr__(self, field, frozen_numbers(numbers, field))
        if self.radii is not None:
            object.__setattr__(self, "radius", total(self.radii, self.radius))
        require_positive(self.radius, "the radius")

    @abstractmethod
    def partition(self, model: nn.Module) -> Partition:
        """Group name -> parameter names; together every trainable parameter exactly once."""

    def groups(self, model: nn.Module) -> tuple[Group, ...]:
        """The groups of this model with their radii."""
        partition = self.partition(model)
        radii = radii_of(tuple(partition), self.radius, self.proportions, self.radii)
        return tuple(
            Group(name, tuple(parameters), radius)
            for (name, parameters), radius in zip(partition.items(), radii, strict=True)
        )
