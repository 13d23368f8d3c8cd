import pytest

from quietgrad import clipping


@pytest.fixture
def scratch_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of one test stay in it."""
    monkeypatch.setattr(clipping, "_REGISTRY", dict(clipping._REGISTRY))
