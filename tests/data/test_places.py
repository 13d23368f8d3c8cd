"""Which place a data set is taken from is noted, for runs that go on."""

from quietgrad.data import SOURCES, sources
from quietgrad.data.sources import note_place, noted_places


def test_folders_are_noted_without_links_and_packages_by_their_digest(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with noted_places() as noted:
        note_place("mnist", tmp_path / "link")
        note_place("mnist", None)
    assert noted[0] == str(tmp_path.resolve())
    assert noted[1].endswith(f"sha256:{SOURCES['mnist'].sha256}")


def test_outside_nothing_is_noted(tmp_path):
    note_place("mnist", tmp_path)
    with noted_places() as noted:
        pass
    assert noted == []
    assert sources._NOTED.get() is None
