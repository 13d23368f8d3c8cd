import pytest

from .helpers import copied, write_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run; nobody writes to it."""
    return write_run(tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it, to do with as one likes."""
    return copied(finished, tmp_path / "run")
