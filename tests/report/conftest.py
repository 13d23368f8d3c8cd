import pytest

from .helpers import copied, smoke, write_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run; nobody writes to it."""
    return write_run(tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it, to do with as one likes."""
    return copied(finished, tmp_path / "run")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Several runs of the train command; nobody writes to them."""
    place = tmp_path_factory.mktemp("runs")
    return {
        "digits": smoke(place / "digits", "digits"),
        "seeded": smoke(place / "seeded", "digits", "--seed", "1"),
        "eight": smoke(place / "eight", "digits", "--epsilon", "8"),
        "adult": smoke(place / "adult", "adult"),
    }
