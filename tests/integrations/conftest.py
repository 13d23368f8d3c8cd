"""What the tests of frameworks share."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="session")
def imported_modules_are_kept() -> None:
    """A Trainer collects garbage when it begins, and need not go through the frameworks for it."""
    gc.collect()
    gc.freeze()
