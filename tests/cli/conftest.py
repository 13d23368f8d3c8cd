import pytest


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Runs that are given no folder make one in the current one."""
    monkeypatch.chdir(tmp_path)
