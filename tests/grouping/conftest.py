import pytest

from quietgrad.grouping import styles


@pytest.fixture
def scratch_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of one test stay in it."""
    monkeypatch.setattr(styles, "_REGISTRY", dict(styles._REGISTRY))
