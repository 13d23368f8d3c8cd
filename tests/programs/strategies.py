"""Random programs, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from .program import COMBINATORS, MIXING, POINTWISE, POINTWISE_ONLY, SEQUENCES, Program, Step

# Few, so that weights are shared often.
_labels = st.sampled_from("ab")
LIKE_OTHER_SIZES = st.integers(2, 5)
"""Numbers of samples that features or positions may have too, or a multiple of them."""
UNLIKE_OTHER_SIZES = st.sampled_from([9, 11])
"""Numbers of samples that nothing else has, nor a multiple of them."""


def _operations(names: list[str]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.sampled_from(names), _labels)


_pointwise = _operations([*POINTWISE])
_any_operation = _operations([*POINTWISE, *SEQUENCES])
# Folding within a fold has no layout in which every sample's rows are in one place.
_NESTABLE = ("residual", "product", "twice", "both ways")


def _bodies(step: st.SearchStrategy[Step], most: int = 3) -> st.SearchStrategy[tuple[Step, ...]]:
    return st.lists(step, min_size=1, max_size=most).map(tuple)


@st.composite
def _combined(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from([*COMBINATORS]))
    if name in POINTWISE_ONLY:
        return Step(name, body=draw(_bodies(_pointwise)))
    inner = st.builds(
        Step, st.sampled_from(_NESTABLE), st.just(""), _bodies(_any_operation, most=2)
    )
    return Step(name, body=draw(_bodies(_any_operation | inner)))


@st.composite
def programs(draw: st.DrawFn, batch: st.SearchStrategy[int] = LIKE_OTHER_SIZES) -> Program:
    """Models of supported operations: branches, reuse, tying, broadcasting, folding."""
    return Program(
        steps=draw(_bodies(_any_operation | _combined(), most=5)),
        batch=draw(batch),
        length=draw(st.integers(1, 5)),
        words=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
    )


@st.composite
def mixing_programs(draw: st.DrawFn, batch: st.SearchStrategy[int]) -> Program:
    """A program with one operation across the batch somewhere between its steps."""
    plain = draw(programs(batch))
    place = draw(st.integers(0, len(plain.steps)))
    mix = Step(draw(st.sampled_from([*MIXING])))
    return Program(
        (*plain.steps[:place], mix, *plain.steps[place:]),
        plain.batch,
        plain.length,
        plain.words,
        plain.seed,
    )
