"""The recipe e2e, and which of its files it learns from."""

import pytest

from quietgrad.errors import DataError
from quietgrad.recipes import Places
from quietgrad.recipes.generation import _pairs

ROWS = "mr,ref\nx,one\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETGRAD_DATA", str(tmp_path))
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "testset_w_refs.csv").write_text("mr,ref\ny,two\n")
    return tmp_path / "e2e"


@pytest.mark.parametrize("by_option", [True, False])
def test_the_small_file_serves_where_the_large_one_is_not(root, by_option):
    places = Places(root if by_option else None, None)
    with pytest.raises(DataError, match=r"trainset\.csv is not in"):
        _pairs(places)
    (root / "devset.csv").write_text(ROWS)
    assert _pairs(places).train_meanings == ["x"]
    (root / "trainset.csv").write_text("mr,ref\nz,three\n")
    assert _pairs(places).train_meanings == ["z"]
    (root / "trainset.csv").write_text("meaning,ref\nz,three\n")
    with pytest.raises(DataError, match=r"trainset\.csv has no column mr"):
        _pairs(places)
