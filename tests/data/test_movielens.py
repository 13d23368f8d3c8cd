"""MovieLens-100k: people are held out whole, and nothing is computed from rows."""

import pytest
import torch

from quietgrad import data
from quietgrad.data.movielens import GENRES, OCCUPATIONS, is_held_out
from quietgrad.errors import DataError, MissingExtraError

FLAGS = "|".join("1" if name in ("Animation", "Comedy") else "0" for name in GENRES)
ITEMS = f"1|Toy Story (1995)|01-Jan-1995||there|{FLAGS}\n1682|Café||||{FLAGS}\n"
USERS = "".join(f"{user}|24|{'MF'[user % 2]}|technician|85711\n" for user in range(1, 30))
RATINGS = "".join(f"{user}\t{1 + 1681 * (user % 2)}\t{1 + user % 5}\t0\n" for user in range(1, 30))


def folder_with(path, ratings=RATINGS, items=ITEMS, users=USERS):
    (path / "u.data").write_text(ratings)
    (path / "u.item").write_bytes(items.encode("latin-1"))
    (path / "u.user").write_text(users)
    return path


def test_movielens_in_a_folder(tmp_path):
    found = data.load("movielens", folder_with(tmp_path))
    assert isinstance(found, data.RatingData)
    train, test = found.train_users.tolist(), found.test_users.tolist()
    assert sorted([*train, *test]) == list(range(1, 30))
    assert all(is_held_out(user) for user in test)
    assert not any(is_held_out(user) for user in train)
    first = train[0]
    named = dict(zip(found.number_names, found.train_numbers[0].tolist(), strict=True))
    assert named["age"] == pytest.approx(0.24)
    assert named["year"] == pytest.approx(0.5 if first % 2 else 0.95)
    assert {name for name in GENRES if named[name]} == {"Animation", "Comedy"}
    gender, occupation, film = found.train_categories[0].tolist()
    assert (gender, film) == (first % 2, 1681 * (first % 2))
    assert OCCUPATIONS[occupation] == "technician"
    assert found.train_ratings[0] == 1 + first % 5
    assert found.category_sizes == (2, len(OCCUPATIONS), 1682)
    assert torch.equal(found.train_numbers, found.train_numbers.clamp(0, 1))


def test_a_person_is_read_the_same_whoever_else_is_there(tmp_path):
    every = data.load("movielens", folder_with(tmp_path))
    lines = RATINGS.splitlines(keepends=True)
    fewer = data.load("movielens", folder_with(tmp_path, ratings="".join(lines[::2])))
    for user in fewer.train_users.tolist():
        one = fewer.train_users.tolist().index(user)
        other = every.train_users.tolist().index(user)
        assert torch.equal(fewer.train_numbers[one], every.train_numbers[other])
        assert torch.equal(fewer.train_categories[one], every.train_categories[other])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ratings": "1\t1\t6\t0\n"}, "user 1 rates film 1 with 6"),
        ({"ratings": "99\t1\t3\t0\n"}, "user 99 rates film 1 with 3"),
        ({"ratings": "1\t7\t3\t0\n"}, "user 1 rates film 7 with 3"),
        ({"ratings": "1\t1\tgood\t0\n"}, "rating is 'good'"),
        ({"ratings": "1 1 3 0\n"}, "a row of 1 values: expected 4"),
        ({"users": USERS.replace("technician", "pirate")}, "'pirate' is not one of"),
        ({"users": USERS.replace("|24|", "|old|")}, "age is 'old'"),
        ({"items": ITEMS.replace("1682|", "1683|")}, "has a film 1683"),
        ({"items": ITEMS.replace("01-Jan-1995", "long ago")}, "the year of release is ' ago'"),
        ({"ratings": ""}, "has no training users"),
    ],
)
def test_wrong_files_are_refused(tmp_path, wrong, said):
    with pytest.raises(DataError, match=said):
        data.load("movielens", folder_with(tmp_path, **wrong))


def test_the_real_data():
    if data.cached_file("movielens") is None:
        pytest.skip("movielens was not fetched")
    try:
        found = data.load("movielens")
    except MissingExtraError:
        pytest.skip("pyarrow is not installed")
    train, test = set(found.train_users.tolist()), set(found.test_users.tolist())
    assert (len(found.train_users), len(found.test_users)) == (79_397, 20_603)
    assert (len(train), len(test), len(train & test)) == (753, 190, 0)
