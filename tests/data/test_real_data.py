"""The real data sets and weights, where they are: in the cache, or in $QUIETGRAD_DATA."""

import pytest
import torch

import quietgrad as qg
from quietgrad import data
from quietgrad.data.folders import own_folder
from quietgrad.data.soundness import known_tests


def here(name):
    """Skips where it is not: a test fetches nothing."""
    known = own_folder(name) or (data.cached_file(name) if name in data.SOURCES else None)
    if not known:
        pytest.skip(f"{name} is neither in the cache nor in $QUIETGRAD_DATA")


@pytest.mark.parametrize(
    ("name", "shape", "tests"),
    [
        ("mnist", (60_000, 1, 28, 28), 10_000),
        ("fashion-mnist", (60_000, 1, 28, 28), 10_000),
        ("cifar10", (50_000, 3, 32, 32), 10_000),
    ],
)
def test_images(name, shape, tests):
    here(name)
    pytest.importorskip("PIL")
    found = data.load(name)
    assert found.train_images.shape == shape
    assert found.test_images.shape == (tests, *shape[1:])
    assert len(found.train_labels.bincount()) == 10
    assert found.test_labels.shape == (tests,)


def test_imdb():
    here("imdb")
    found = data.load("imdb")
    if own_folder("imdb") is None:  # otherwise the split is the official one
        assert (len(found.train_texts), len(found.test_texts)) == (24_959, 25_041)
        assert not set(found.train_texts) & set(found.test_texts)
    assert int(found.train_labels.sum() + found.test_labels.sum()) == 25_000


def test_sst2():
    here("sst2")
    found = data.load("sst2")
    assert (len(found.train_texts), len(found.test_texts)) == (67_349, 872)
    assert int(found.test_labels.sum()) == 444


def test_e2e():
    here("e2e")
    found = data.load("e2e", train="devset")
    assert len(found.train_meanings) == 4_672
    assert (len(found.test_meanings), sum(map(len, found.test_references))) == (630, 4_693)


def test_wikitext_2():
    here("wikitext-2")
    found = data.load("wikitext-2")
    assert [len(part.split()) for part in (found.train, found.valid, found.test)] == [
        2_051_910,
        213_886,
        241_211,
    ]


def test_adult():
    here("adult")
    pytest.importorskip("pyarrow")
    found = data.load("adult")
    assert found.train_labels.bincount().tolist() == [24_720, 7_841]
    assert found.test_labels.bincount().tolist() == [12_435, 3_846]
    assert found.train_numbers.min() >= 0
    assert found.train_numbers.max() <= 1
    assert (found.train_categories < torch.tensor(found.category_sizes)).all()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("mnist", {}, (0, 10_000)),
        ("fashion-mnist", {}, (0, 10_000)),
        ("cifar10", {}, (0, 10_000)),
        ("adult", {}, (26, 16_281)),
        ("wikitext-2", {}, (266, 2_891)),
        ("sst2", {}, (0, 872)),
        ("e2e", {"train": "devset"}, (0, 4_693)),
    ],
)
def test_records_on_both_sides_are_few(name, options, expected):
    here(name)
    assert known_tests(data.load(name, **options)) == expected


def test_resnet18():
    here("resnet18")
    model = qg.nn.resnet18(weights=data.pretrained_weights("resnet18"), frozen=True)
    images = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
    features = model.features(qg.nn.imagenet_normalized(images))
    assert features.isfinite().all()
    assert not features.requires_grad


def test_minilm():
    here("minilm")
    transformers = pytest.importorskip("transformers")
    folder = data.pretrained_folder("minilm")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    assert sum(p.numel() for p in model.parameters()) == 22_713_216
    texts = ["a man is eating food", "someone eats a meal", "the stock market fell"]
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    means = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
    assert means[0] @ means[1] > 0.5 > means[0] @ means[2]
