"""Data as people have it: what has elements by number trains, the rest is told what to do."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.integrations.lightning_jobs import BATCH, ENGINE, agree, data, layers, weights
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

import quietgrad as qg
from quietgrad.errors import DataError

X, Y = (tensor.numpy() for tensor in data().tensors)


def hugging_face(form=None):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    columns = {"x": X.tolist(), "y": Y.tolist()}
    features = datasets.Features(
        {"x": datasets.Sequence(datasets.Value("float32")), "y": datasets.Value("int64")}
    )
    found = datasets.Dataset.from_dict(columns, features=features)
    return found.with_format(form) if form else found


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"x": list(X), "y": Y})


def numbers():
    return np.column_stack([X, Y]).astype(np.float32)


def memmap(folder):
    np.save(folder / "data.npy", numbers())
    return np.load(folder / "data.npy", mmap_mode="r")


class Rows(Dataset):
    """As people write it, with numbers of NumPy."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"x": X[index], "y": Y[index]}


def from_dict(batch):
    return batch["x"], batch["y"]


def from_pair(batch):
    return batch


def from_row(batch):
    return batch[:, :-1], batch[:, -1].long()


def as_tensors(samples):
    return {
        "x": torch.tensor([sample["x"] for sample in samples]),
        "y": torch.tensor([sample["y"] for sample in samples]),
    }


def shuffled_twice():
    there = np.random.default_rng(0).permutation(len(X))
    back = np.argsort(there)
    return hugging_face("torch").select(there).select(back)


KINDS = {
    "list of pairs": (lambda folder: list(zip(X, Y, strict=True)), from_pair, None),
    "list of dictionaries": (lambda folder: [Rows()[i] for i in range(len(X))], from_dict, None),
    "NumPy array": (lambda folder: numbers(), from_row, None),
    "NumPy memmap": (memmap, from_row, None),
    "tensor": (lambda folder: torch.tensor(numbers()), from_row, None),
    "own class": (lambda folder: Rows(), from_dict, None),
    "parts": (
        lambda folder: ConcatDataset([Subset(Rows(), range(9)), Subset(Rows(), range(9, len(X)))]),
        from_dict,
        None,
    ),
    "datasets, torch": (lambda folder: hugging_face("torch"), from_dict, None),
    "datasets, numpy": (lambda folder: hugging_face("numpy"), from_dict, None),
    "datasets, python": (lambda folder: hugging_face(), from_dict, as_tensors),
    "datasets, selected": (lambda folder: shuffled_twice(), from_dict, None),
    "datasets, mapped": (
        lambda folder: hugging_face("torch").map(lambda row: {"y": row["y"]}),
        from_dict,
        None,
    ),
    "datasets of a frame": (
        lambda folder: type(hugging_face()).from_pandas(frame()).with_format("torch"),
        from_dict,
        None,
    ),
    "frame as dictionaries": (lambda folder: frame().to_dict("records"), from_dict, None),
}


def train(dataset, read, collate_fn=None, **options):
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    given = ENGINE | {"batch_size": BATCH, "epochs": 1, "physical_batch_size": 4}
    given |= {"collate_fn": collate_fn} | options
    engine = qg.PrivacyEngine(model, optimizer, dataset, **given)
    for batch in engine.batches():
        for content in batch:
            x, y = read(content)
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
    return weights(model)


@pytest.fixture(scope="module")
def truth():
    return train(data(), from_pair)


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_as_tensors_do(kind, truth, tmp_path):
    make, read, collate_fn = KINDS[kind]
    agree(train(make(tmp_path), read, collate_fn), truth)


@pytest.mark.slow
def test_with_workers(truth):
    agree(train(hugging_face("torch"), from_dict, num_workers=2), truth)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def streamed():
    return hugging_face().to_iterable_dataset()


def splits():
    return pytest.importorskip("datasets").DatasetDict(train=hugging_face())


REFUSED = {
    "stream of torch": (Stream, r"^Stream is .*one after the other\. Pass list\(dataset\)"),
    "stream of datasets": (streamed, r"load_dataset without streaming=True"),
    "generator": (lambda: (each for each in [1, 2]), r"^generator .* in a list"),
    "splits": (splits, r"^DatasetDict .*it has splits\. Pass one of them, such as data\['train'\]"),
    "columns": (lambda: {"x": X, "y": Y}, r"^dict .*datasets\.Dataset\.from_dict\(columns\)"),
    "frame": (frame, r"^DataFrame .*frame\.to_dict\('records'\)"),
    "series": (lambda: frame()["y"], r"^Series .*frame\.to_numpy\(\)"),
    "table": (lambda: hugging_face().data.table, r"^Table .*frame"),
    "pair of arrays": (lambda: (X, Y), r"^tuple .*TensorDataset\(x, y\), or list\(zip\(x, y\)\)"),
    "text": (lambda: "data.csv", r"^str .*the samples themselves"),
    "set": (lambda: {1, 2}, r"^set .*the samples themselves"),
    "number": (lambda: torch.tensor(1.0), r"^Tensor .*the samples themselves"),
    "nothing": (lambda: None, r"^NoneType .*the samples themselves"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_elements_by_number_is_told_what_to_pass(kind):
    make, message = REFUSED[kind]
    with pytest.raises(TypeError, match=message):
        train(make(), from_pair)


def test_a_dictionary_of_numbered_samples_and_a_tuple_of_samples_are_data(truth):
    pairs = list(zip(X, Y, strict=True))
    agree(train(dict(enumerate(pairs)), from_pair), truth)
    agree(train(tuple(pairs), from_pair), truth)


def test_samples_that_cannot_be_put_together_are_told_so():
    lengths = [torch.ones(1 + i % 3) for i in range(12)]
    with pytest.raises(DataError, match=r"equal size.*Pass collate_fn=.*pads them to one length"):
        train(lengths, from_pair, batch_size=12)
    pandas = pytest.importorskip("pandas")
    frames = [pandas.DataFrame({"x": [1]})] * 12
    with pytest.raises(DataError, match=r"found <class 'pandas.*Pass collate_fn="):
        train(frames, from_pair, batch_size=12)
    with pytest.raises(DataError, match=r"data\.with_format\('torch'\)"):
        train([{"text": None}] * 12, from_pair, batch_size=12)
