"""Warnings of dp-accounting that a user can do nothing about."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_absl() -> Iterator[None]:
    """Without its warning for every order of divergence that it leaves out: others remain."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
