"""Bookmarks: a new loader goes on where another stopped."""

import io
import json

import pytest
import torch

from quietgrad.accounting.events import Passes
from quietgrad.sampling import BatchLoader, LogicalBatch, OwnSampler, names, resolve
from quietgrad.sampling import samplers as keys_module

from .helpers import Indices, content, drawn

POPULATION = 23
SEED = 5

# Every registered sampler is here, and the one with an option.
BATCH_SIZES = {"poisson": 5, "poisson:7": 5, "shuffled": 5, "full-batch": POPULATION}
EVERY = sorted({*names(), *BATCH_SIZES})


def loader_for(name, *, batch_size=None, **options):
    draws = resolve(name).bind(POPULATION, batch_size or BATCH_SIZES[name])
    return BatchLoader(Indices(POPULATION), draws, **options)


def own_loader(batches=((0, 1), (2, 3), (4,))):
    draws = OwnSampler(batches, Passes(3)).bind(POPULATION, 2)
    return BatchLoader(Indices(POPULATION), draws)


def walk(loader, steps):
    """Finish so many steps, over as many passes as it takes; their contents and the last batch."""
    contents = []
    while True:
        for batch in loader:
            contents.append(content(batch))
            if len(contents) == steps:
                return contents, batch


def through_files(bookmark):
    """As a checkpoint keeps it: plain data, by JSON as well as by torch's careful loader."""
    file = io.BytesIO()
    torch.save(json.loads(json.dumps(bookmark)), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture
def keys(monkeypatch):
    """All keys that passes are given, in order."""
    made = []

    def recorded(seed, number):
        made.append(keys_module.pass_key(seed, number))
        return made[-1]

    monkeypatch.setattr("quietgrad.sampling.loader.pass_key", recorded)
    return made


@pytest.mark.parametrize("name", EVERY)
def test_with_a_seed_going_on_anywhere_equals_never_stopping(name):
    length = len(loader_for(name))
    whole, _ = walk(loader_for(name, seed=SEED), 3 * length)
    for done in range(1, 2 * length + 1):
        first = loader_for(name, seed=SEED)
        before, last = walk(first, done)
        second = loader_for(name, seed=SEED)
        assert second.go_to(through_files(first.bookmark(last)))
        after, _ = walk(second, 3 * length - done)
        assert before + after == whole


@pytest.mark.parametrize("name", EVERY)
def test_batches_of_a_continued_pass_know_their_place(name):
    loader = loader_for(name)
    length = len(loader)
    _, last = walk(loader, length + 1)
    again = loader_for(name)
    again.go_to(loader.bookmark(last))
    places = []
    for _ in range(2):
        for batch in again:
            batch.discard()
            places.append(divmod(batch.pass_number * length + batch.step, length))
    # Twice a whole pass if the first stopped at the end of one, as full batches always do.
    begin = length + 1
    assert places == [divmod(i, length) for i in range(begin, begin + len(places))]
    assert len(places) == (2 * length - 1 if length > 1 else 2)


@pytest.mark.parametrize("name", ["poisson", "poisson:7"])
def test_without_a_seed_poisson_goes_on_with_fresh_draws(name):
    loader = loader_for(name)
    batches = iter(loader)
    first = next(batches)
    first.discard()
    bookmark = loader.bookmark(first)
    rest = [content(batch) for batch in batches]
    again = loader_for(name)
    assert again.go_to(bookmark)
    fresh = drawn(again)
    assert len(fresh) == len(rest) == len(loader) - 1
    assert fresh != rest
    assert len(drawn(again)) == len(loader)


def test_without_a_seed_shuffled_batches_go_on_with_the_same_permutation():
    for done in range(1, 5):
        loader = loader_for("shuffled")
        before, last = walk(loader, done)
        again = loader_for("shuffled")
        assert again.go_to(through_files(loader.bookmark(last)))
        after = drawn(again)
        together = [i for batch in before + after for i in batch]
        assert sorted(together) == list(range(POPULATION))
        assert sorted(i for batch in drawn(again) for i in batch) == list(range(POPULATION))


def test_a_saved_permutation_comes_before_the_seed():
    """Or a sample could take part twice in the pass."""
    loader = loader_for("shuffled", seed=1)
    before, last = walk(loader, 2)
    again = loader_for("shuffled", seed=2)
    again.go_to(loader.bookmark(last))
    together = [i for batch in before + drawn(again) for i in batch]
    assert sorted(together) == list(range(POPULATION))


@pytest.mark.parametrize("seed", [None, SEED])
@pytest.mark.parametrize("name", ["poisson", "poisson:7"])
def test_the_key_of_a_poisson_pass_is_in_no_bookmark(name, seed, keys):
    loader = loader_for(name, seed=seed)
    bookmarks = [loader.bookmark(None)]
    for _ in range(2):
        for batch in loader:
            batch.discard()
            bookmarks += [loader.bookmark(None), loader.bookmark(batch)]
    assert len(keys) == 2
    assert all(bookmark["key"] is None for bookmark in bookmarks)
    written = json.dumps(bookmarks)
    assert not any(str(key) in written for key in keys)
    # Nor is it left lying about in the loader.
    assert not any(str(key) in str(vars(loader)) for key in keys)


def test_the_key_of_a_permutation_is(keys):
    """The sibling of the test above: it would find a key."""
    loader = loader_for("shuffled")
    _, last = walk(loader, 1)
    assert loader.bookmark(last)["key"] == keys[0]
    assert str(keys[0]) in str(vars(loader))


@pytest.mark.parametrize("name", EVERY)
def test_at_the_end_of_a_pass_is_the_beginning_of_the_next(name):
    loader = loader_for(name)
    _, last = walk(loader, len(loader))
    place = {"pass": 1, "step": 0, "key": None}
    assert loader.bookmark(last) == place | {"sampling": loader.draws.description}
    iter(loader)  # the next pass has begun, and nothing of it is done
    assert loader.bookmark(last) == place | {"sampling": loader.draws.description}


def place_of(bookmark):
    return bookmark["pass"], bookmark["step"]


def test_before_anything_is_done():
    loader = loader_for("shuffled")
    assert place_of(loader.bookmark(None)) == (0, 0)
    next(iter(loader))
    assert place_of(loader.bookmark(None)) == (0, 0)


def test_a_bookmark_of_a_bookmark_is_the_same():
    loader = loader_for("shuffled")
    _, last = walk(loader, 7)
    bookmark = loader.bookmark(last)
    assert place_of(bookmark) == (1, 2)
    again = loader_for("shuffled")
    again.go_to(bookmark)
    assert again.bookmark(None) == bookmark
    next(iter(again))
    assert again.bookmark(None) == bookmark


def test_a_pass_left_for_the_next_is_not_gone_back_to():
    loader = loader_for("poisson")
    _, last = walk(loader, 2)
    next(iter(loader))
    assert place_of(loader.bookmark(last)) == (1, 0)


def test_a_batch_of_another_loader_is_refused():
    loader = loader_for("poisson")
    stranger = LogicalBatch([], iter([]), pass_number=3, step=0)
    with pytest.raises(ValueError, match="not from this loader"):
        loader.bookmark(stranger)
    next(iter(loader))
    with pytest.raises(ValueError, match="not from this loader"):
        loader.bookmark(stranger)


def test_an_own_sampler_begins_a_new_pass():
    loader = own_loader()
    _, last = walk(loader, 2)
    bookmark = loader.bookmark(last)
    assert place_of(bookmark) == (0, 2)
    again = own_loader()
    assert not again.go_to(bookmark)
    batches = list(again.draws.indices(0, 0))
    first = next(iter(again))
    assert (first.pass_number, first.step) == (1, 0)
    assert content(first) == batches[0] == [0, 1]


def test_an_own_sampler_goes_on_between_passes():
    loader = own_loader()
    _, last = walk(loader, 3)
    again = own_loader()
    assert again.go_to(loader.bookmark(last))
    assert next(iter(again)).pass_number == 1


GOOD = {"pass": 2, "step": 1, "key": 7, "sampling": "shuffled, 23 samples in batches of 5"}


def without(field):
    return {name: value for name, value in GOOD.items() if name != field}


@pytest.mark.parametrize(
    ("bookmark", "message"),
    [
        *((without(field), "not a bookmark") for field in GOOD),
        (GOOD | {"more": 1}, "not a bookmark"),
        (None, "not a bookmark"),
        ([("pass", 0)], "not a bookmark"),
        (GOOD | {"pass": -1}, "pass=-1"),
        (GOOD | {"pass": None}, "pass=None"),
        (GOOD | {"step": -1}, "step=-1"),
        (GOOD | {"step": 5}, "step=5 is not valid: a pass has 5 steps"),
        (GOOD | {"step": 1.0}, "step=1.0"),
        (GOOD | {"key": None}, "key is not valid: expected the integer"),
        (GOOD | {"key": -1}, "key is not valid: expected the integer"),
        (GOOD | {"key": 2**256}, "key is not valid: expected the integer"),
        (GOOD | {"key": "7"}, "key is not valid: expected the integer"),
        (GOOD | {"key": True}, "key is not valid: expected the integer"),
        (GOOD | {"step": 0}, "key is not valid: no key"),
        (GOOD | {"sampling": None}, "of other batches"),
    ],
)
def test_bad_bookmarks_are_refused(bookmark, message):
    loader = loader_for("shuffled")
    assert loader.go_to(GOOD)
    with pytest.raises(ValueError, match=message):
        loader.go_to(bookmark)
    # What was refused changed nothing.
    assert loader.bookmark(None) == GOOD


def test_a_poisson_key_that_somebody_wrote_down_is_refused():
    loader = loader_for("poisson")
    bookmark = {"pass": 0, "step": 1, "key": 7, "sampling": loader.draws.description}
    with pytest.raises(ValueError, match="no key"):
        loader.go_to(bookmark)


@pytest.mark.parametrize("other", [("shuffled", 4), ("poisson", 5), ("poisson:7", 5)])
def test_in_the_middle_of_a_pass_the_sampling_must_be_the_same(other):
    """The permutation cut in other batches would take some samples twice."""
    name, batch_size = other
    with pytest.raises(
        ValueError, match=r"expected '.*', got 'shuffled, 23 samples in batches of 5"
    ):
        loader_for(name, batch_size=batch_size).go_to(GOOD)


@pytest.mark.parametrize("name", EVERY)
def test_between_passes_it_may_change(name):
    loader = loader_for(name)
    assert loader.go_to(GOOD | {"step": 0, "key": None})
    assert next(iter(loader)).pass_number == 2


def test_a_bookmark_can_be_gone_to_again():
    loader = loader_for("shuffled")
    loader.go_to(GOOD)
    once = drawn(loader)
    loader.go_to(GOOD)
    assert drawn(loader) == once


def test_a_loader_in_use_can_be_sent_elsewhere():
    loader = loader_for("shuffled")
    _, last = walk(loader, 2)
    loader.go_to(GOOD)
    assert loader.bookmark(None) == GOOD
    with pytest.raises(ValueError, match="not from this loader"):
        loader.bookmark(last)
    first = next(iter(loader))
    assert (first.pass_number, first.step) == (2, 1)
