"""How thoroughly the tests look, and what they need not compute twice."""

import os
import signal
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import settings

from quietgrad import _progress
from quietgrad.accounting.accountants.pld import PLD

# Few examples, the same each time; `HYPOTHESIS_PROFILE=thorough` draws many, others each time.
settings.register_profile(
    "fast", max_examples=40, derandomize=True, database=None, deadline=None, print_blob=True
)
settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True)
# A shell that starts the tests in the background has interrupts ignored, which some tests need.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked ``every_nth(n)`` one case of n is fast, and the others are slow."""
    places: Counter[str] = Counter()
    for item in items:
        if (marker := item.get_closest_marker("every_nth")) is None:
            continue
        test = item.nodeid.split("[")[0]
        if places[test] % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        places[test] += 1


@pytest.fixture(autouse=True)
def no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints must not depend on how long it takes here."""
    monkeypatch.setattr(_progress, "FIRST", 1e6)


class Remembered:
    """A privacy profile that answers the same question only once."""

    def __init__(self, profile: Any) -> None:
        self.epsilon, self.delta = lru_cache(profile.epsilon), lru_cache(profile.delta)


compose = PLD.profile


@lru_cache(maxsize=256)
def composed(accountant: PLD, releases: frozenset, adjacency: Any, precision: Any) -> Remembered:
    return Remembered(compose(accountant, dict(releases), adjacency, precision=precision))


@pytest.fixture(autouse=True)
def remembered_profiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tests calibrate the same small run; only the tests of accounting need the work done."""
    if "accounting" in request.path.parts:
        return

    def profile(
        self: PLD, releases: Mapping[Any, int], adjacency: Any, *, precision: Any = "fine"
    ) -> Remembered:
        return composed(self, frozenset(releases.items()), adjacency, precision)

    monkeypatch.setattr(PLD, "profile", profile)
