"""Options of inner-outer momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quietgrad._checks import require_choice, require_count, require_rate


@dataclass(frozen=True)
class InnerOuter:
    """Inner-outer momentum: Algorithm 2 of "... via Clipping Bias Reduction" (Xiao et al. 2023).

    What is clipped is not a sample's gradient but its inner momentum (eq. 13), the sum of that
    sample's gradients at the current and at past weights; it is clipped once, so the sensitivity
    stays what it was. After the noise, outer momentum (eq. 14) carries what was released before,
    which costs no privacy. A step costs as much as one without for each of the weights.

    The paper leaves three things open; what its equations say is the default of each.

    Args:
        length: K0 of the paper; 0 for no inner momentum.
        inner: gamma0, the weight of the gradient one step back; of two steps back its square.
        outer: gamma1; None for no outer momentum.
        length_counts: ``"past"``: the sum has K0 + 1 terms, as in eq. 13; ``"all"``: K0, as in the
            text.
        outer_means: ``"forgotten"``: 1 - gamma1 of the last momentum is carried on, as in eq. 14;
            ``"carried"``: gamma1 of it, as optimizers do.
        start: before there are K0 past weights, ``"available"``: only those that there are;
            ``"repeat"``: the first weights stand for the missing ones.
    """

    length: int = 2
    inner: float = 0.08
    outer: float | None = 0.9
    length_counts: Literal["past", "all"] = "past"
    outer_means: Literal["forgotten", "carried"] = "forgotten"
    start: Literal["available", "repeat"] = "available"

    def __post_init__(self) -> None:
        require_choice("length_counts", self.length_counts, ("past", "all"))
        require_choice("outer_means", self.outer_means, ("forgotten", "carried"))
        require_choice("start", self.start, ("available", "repeat"))
        require_count("length", self.length, at_least=0 if self.length_counts == "past" else 1)
        _require_weight("inner", self.inner, "of the gradient one step back")
        if self.outer is not None:
            self._require_outer(self.outer)

    @property
    def past(self) -> int:
        """How many past weights are kept."""
        return self.length if self.length_counts == "past" else self.length - 1

    @property
    def carried(self) -> float:
        """How much of the last outer momentum goes on."""
        if self.outer is None:
            return 0.0
        return 1 - self.outer if self.outer_means == "forgotten" else self.outer

    def _require_outer(self, outer: float) -> None:
        if self.outer_means == "forgotten":
            _require_weight("outer", outer, "the share of the momentum that is forgotten")
        elif isinstance(outer, bool) or not (isinstance(outer, int | float) and 0 <= outer < 1):
            raise ValueError(
                f"outer={outer!r}: expected a number in [0, 1), the share of the momentum that is "
                "carried on (outer_means='carried')"
            )


def _require_weight(name: str, value: object, meaning: str) -> None:
    try:
        require_rate(name, value)
    except ValueError:
        raise ValueError(
            f"{name}={value!r} is not valid: expected a weight in (0, 1], {meaning}"
        ) from None
