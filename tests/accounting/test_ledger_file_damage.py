"""Files that were cut are recovered, files that were edited are refused."""

import json
import warnings

import pytest

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.errors import LedgerError

from .ledger_files import EVENTS, read, write

STEP = GaussianEvent(7.0, Poisson(0.1))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def refused(path, match):
    with warnings.catch_warnings(), pytest.raises(LedgerError, match=match):
        warnings.simplefilter("ignore")
        Ledger.open(path)


def test_a_cut_anywhere_loses_at_most_the_record_it_hits(path):
    whole = write(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        records = whole[:size].count(b"\n") - 1
        if records < 0:
            refused(path, "first line is missing")
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert read(path) == EVENTS[:records]
        said = [str(each.message) for each in caught if each.category is UserWarning]
        if whole[:size].endswith(b"\n"):
            assert said == []
        else:
            assert len(said) == 1
            assert f"its {records} whole records were recovered" in said[0]


def test_after_a_recovery_the_file_is_whole_again(path):
    long = EVENTS[1]
    path.write_bytes(write(path, [STEP, long])[:-1])
    with pytest.warns(UserWarning, match="1 whole records were recovered"):
        book = Ledger.open(path)
    book.record(STEP)
    book.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(path) == [GaussianEvent(7.0, Poisson(0.1), 2)]


def test_a_single_character_changed_anywhere_is_refused_with_its_line(path):
    whole = write(path)
    for place, byte in enumerate(whole[:-1]):
        number = whole[:place].count(b"\n") + 1
        other = byte ^ (1 if place % 2 else 32)
        path.write_bytes(whole[:place] + bytes([other]) + whole[place + 1 :])
        refused(path, rf"line {number}, was altered")


def test_a_changed_end_of_the_last_line_is_a_cut(path):
    whole = write(path)
    path.write_bytes(whole[:-1] + b"x")
    with pytest.warns(UserWarning, match="2 whole records were recovered"):
        assert read(path) == EVENTS[:2]


def lines_of(path):
    return write(path).splitlines(keepends=True)


@pytest.mark.parametrize("number", [2, 3])
def test_a_deleted_line_is_refused(path, number):
    lines = lines_of(path)
    del lines[number - 1]
    path.write_bytes(b"".join(lines))
    refused(path, f"line {number}, was altered: its hash does not match.*restore a copy")


def test_swapped_doubled_and_added_lines_are_refused(path):
    header, first, second, third = lines_of(path)
    for lines, number in [
        ([header, second, first, third], 2),
        ([header, first, first, second, third], 3),
        ([header, first, second, third, third], 5),
        ([header, header, first, second, third], 2),
        ([header, first, b"\n", second, third], 3),
        ([first, second, third], 1),
    ]:
        path.write_bytes(b"".join(lines))
        refused(path, f"line {number}, was altered")


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize(
    "edit",
    [
        lambda line: line.replace(b"{", b'{"extra":1,', 1),
        lambda line: line.replace(b"{", b'{"hash":1,', 1),
        lambda line: b" " + line,
        lambda line: line[:-1] + b"\r\n",
        lambda line: json.dumps(json.loads(line)).encode() + b"\n",
        lambda line: b"[" * 100_000 + b"\n",
        lambda line: b"\xff\xfe\n",
        lambda line: b"[1]\n",
        lambda line: b"{}\n",
    ],
)
def test_an_edited_line_is_refused(path, number, edit):
    lines = lines_of(path)
    lines[number - 1] = edit(lines[number - 1])
    path.write_bytes(b"".join(lines))
    without_heading = "|is not a quietgrad ledger" if number == 1 else ""
    refused(path, f"line {number}, was altered{without_heading}")


def test_a_number_spelled_otherwise_is_refused(path):
    whole = write(path)
    assert whole.count(b"1e-05") == 1
    path.write_bytes(whole.replace(b"1e-05", b"1E-05"))
    refused(path, "line 2, was altered")
