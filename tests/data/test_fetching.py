"""Fetching: verified and kept, or nothing; a data set of one's own; what the commands say."""

import hashlib
import json
import sys
from unittest import mock

import pytest
from click.testing import CliRunner

from quietgrad import data
from quietgrad.cli import main
from quietgrad.data import cache as packages
from quietgrad.data.sources import SOURCES, Source
from quietgrad.errors import DataError

MADE = b"what a package holds"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made_source(monkeypatch, cache):
    digest = hashlib.sha256(MADE).hexdigest()
    source = Source("made", "pip", "made", "1.0", "made.whl", digest, 0.1, "a test")
    monkeypatch.setitem(SOURCES, "made", source)
    return source


def client(monkeypatch, script):
    """Instead of pip: a program of its own, run in the folder."""
    monkeypatch.setattr(packages, "_command", lambda *_: [sys.executable, "-c", script])


def writes(content):
    return f"open('made.whl', 'wb').write({content!r})"


def test_fetching_verifies_and_keeps(made_source, monkeypatch, cache):
    client(monkeypatch, writes(MADE))
    told = []
    path = data.fetch("made", told.append)
    assert path.read_bytes() == MADE
    assert any("0.1 MB" in line for line in told)
    client(monkeypatch, "raise SystemExit('fetched again')")
    assert data.fetch("made") == path
    assert [path.name for path in cache.iterdir()] == ["made.whl"]
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"sha256.*Delete it.*data fetch made"):
        data.fetch("made")


def test_progress_is_watched(made_source, monkeypatch, tmp_path):
    seen = tmp_path / "seen"
    # A minute is for a watch that is never told: the test fails then, it does not hang.
    wait = f"any(os.path.exists({str(seen)!r}) or time.sleep(0.01) for _ in range(6000))"
    client(monkeypatch, f"import os, time; {writes(MADE)}; {wait}")

    def watch(size):
        if size >= len(MADE):
            seen.touch()

    data.fetch("made", watch=watch)
    assert seen.exists()


def test_what_does_not_match_is_not_kept(made_source, monkeypatch, cache):
    client(monkeypatch, writes(b"other"))
    with pytest.raises(DataError, match="sha256"):
        data.fetch("made")
    assert not list(cache.iterdir())


def test_a_package_with_another_file(made_source, monkeypatch, cache):
    client(monkeypatch, "open('made.tar.gz', 'w')")
    with pytest.raises(DataError, match="has changed"):
        data.fetch("made")
    assert not list(cache.iterdir())


def test_what_the_client_says(made_source, monkeypatch, cache):
    client(monkeypatch, "import sys; print('ERROR: no such thing'); sys.exit(1)")
    with pytest.raises(DataError, match="ERROR: no such thing"):
        data.fetch("made")
    client(monkeypatch, "import sys; print('NewConnectionError: ...'); sys.exit(1)")
    with pytest.raises(DataError, match=r"reached no registry.*give a folder"):
        data.fetch("made")
    monkeypatch.setattr(packages, "_command", lambda *_: ["a-client-nobody-has"])
    with pytest.raises(DataError, match="not installed"):
        data.fetch("made")
    assert not list(cache.iterdir())


def test_an_interruption_ends_the_client_and_leaves_nothing(made_source, monkeypatch, cache):
    client(monkeypatch, f"{writes(MADE)}; import time; time.sleep(60)")

    def interrupt(size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.fetch("made", watch=interrupt)
    assert not list(cache.iterdir())


def test_clients_run_no_code_of_the_package(tmp_path):
    for name in SOURCES:
        command = packages._command(SOURCES[name], tmp_path)
        assert {"--only-binary=:all:", "--ignore-scripts"} & set(command)
        assert SOURCES[name].requirement in command


def test_a_cache_that_cannot_be_made(made_source, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="QUIETGRAD_CACHE"):
        data.fetch("made")


def run(*arguments):
    return CliRunner().invoke(main, ["data", *arguments], env={"COLUMNS": "80"})


def test_list_fits_eighty_columns(cache):
    result = run("list")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if str(cache) not in line]
    assert all(len(line) <= 80 for line in lines)  # a path is as long as it is
    for name in [*SOURCES, *data.FOLDERS]:
        assert name in result.stdout
    assert "train_32x32.mat" in result.stdout


def test_list_as_json(cache):
    entries = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in entries] == [*SOURCES, *data.FOLDERS]
    assert {entry["kind"] for entry in entries} == {"data", "weights", "folder"}


def test_fetch_tells_on_stderr_and_prints_the_path(made_source, monkeypatch, cache):
    client(monkeypatch, writes(MADE))
    result = run("fetch", "made")
    assert result.stdout.strip() == str(cache / "made.whl")
    assert "0.1 MB" in result.stderr
    entries = json.loads(run("fetch", "made", "--json").stdout)
    assert entries[0]["path"] == str(cache / "made.whl")


def test_fetch_all(made_source, monkeypatch, cache):
    client(monkeypatch, writes(MADE))
    # Unlike monkeypatch.delitem, it restores the order, too.
    with mock.patch.dict(SOURCES, {"made": SOURCES["made"]}, clear=True):
        for names in (["all"], ["made", "all"], ["all", "made"]):
            assert run("fetch", *names).stdout.strip() == str(cache / "made.whl")
        assert "Did you mean" in run("fetch", "mdae", "all").stderr


def test_list_tells_whole_files_from_damaged_ones(made_source, cache):
    def listed():
        entries = json.loads(run("list", "--json").stdout)
        return next(entry for entry in entries if entry["name"] == "made")

    assert (listed()["fetched"], listed()["damaged"], listed()["path"]) == (False, False, None)
    path = cache / "made.whl"
    cache.mkdir()
    path.write_bytes(MADE)
    assert (listed()["fetched"], listed()["damaged"]) == (True, False)
    assert "damaged" not in run("list").stdout
    path.write_bytes(MADE[:-1])
    assert (listed()["fetched"], listed()["damaged"]) == (False, True)
    assert listed()["path"] == str(path)
    said = run("list").stdout
    assert f"made is damaged: delete {path} and run `quietgrad data fetch made`" in said


@pytest.mark.parametrize(
    ("name", "said"), [("svhn", "QUIETGRAD_DATA/svhn"), ("imbd", "Did you mean 'imdb'")]
)
def test_what_cannot_be_fetched(cache, name, said):
    result = run("fetch", name)
    assert result.exit_code == 2
    assert said in result.stderr


def test_ones_own_folder_comes_before_the_cache(monkeypatch, tmp_path, cache):
    monkeypatch.setenv("QUIETGRAD_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataError, match="data fetch wikitext-2"):
        data.load("wikitext-2")
    with pytest.raises(DataError, match=r"e2e is in no package.*trainset.csv.*QUIETGRAD_DATA/e2e"):
        data.load("e2e")
    folder = tmp_path / "mine" / "wikitext-2"
    folder.mkdir(parents=True)
    for part in ("train", "valid", "test"):
        (folder / f"wiki.{part}.raw").write_text(part)
    assert data.load("wikitext-2") == data.RawText("train", "valid", "test")


def test_options_nobody_knows(tmp_path):
    with pytest.raises(ValueError, match=r"mnist does not take size: it takes no options"):
        data.load("mnist", tmp_path, size=3)
    with pytest.raises(ValueError, match=r"celeba does not take sise: it takes size, attribute"):
        data.load("celeba", tmp_path, sise=3)
