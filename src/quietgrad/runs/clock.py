"""What time it is, as run folders keep it."""

from datetime import UTC, datetime


def now() -> str:
    """UTC to the second, as ISO 8601 writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
