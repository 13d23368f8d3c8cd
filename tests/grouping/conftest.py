import pytest

from quietgrad.grouping import registry


@pytest.fixture
def scratch_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of one test stay in it."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
