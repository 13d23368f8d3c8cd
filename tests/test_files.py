"""Files that are replaced as a whole."""

import os

import pytest

from quietgrad._files import remove_unfinished, replace_file


def test_a_link_at_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".a.json.new").symlink_to(victim)
    replace_file(tmp_path / "a.json", lambda stream: stream.write(b"new"))
    assert victim.read_text() == "mine"
    assert (tmp_path / "a.json").read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="modes")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_is_what_the_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        replace_file(tmp_path / "a.json", lambda stream: stream.write(b"new"))
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o666 & ~umask


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fail(stream):
        stream.write(b"half")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        replace_file(path, fail)
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
    assert path.read_bytes() == b"old"


def test_what_a_crash_left_can_be_removed_and_nothing_else_is(tmp_path):
    left = tmp_path / ".a[1].json.0123456789abcdef.new"
    kept = [tmp_path / name for name in ("a[1].json", ".a1.json.0123456789abcdef.new", ".a.new")]
    for path in (left, *kept):
        path.touch()
    remove_unfinished(tmp_path / "a[1].json")
    assert sorted(tmp_path.iterdir()) == sorted(kept)
