"""Arguments of the engine: each mistake is named, with the value and what was expected."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from quietgrad import PrivacyEngine, grouping

from .helpers import Net, samples

RIGHT = {"batch_size": 4, "delta": 1e-3, "noise_multiplier": 1.0}


def make(dataset=None, **options):
    model = Net(lambda net, x: net.last(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    given = {name: v for name, v in (RIGHT | options).items() if v is not Ellipsis}
    dataset = TensorDataset(samples(8)) if dataset is None else dataset
    return PrivacyEngine(model, optimizer, dataset, **given)


def test_the_right_ones():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"noise_schedule": 1.5}, TypeError, r"noise_schedule=1\.5 is float: expected a function"),
        ({"collate_fn": 3}, TypeError, "collate_fn=3 is int: expected a function"),
        ({"diagnostics": True}, TypeError, "diagnostics=True is bool: expected .*StepRecorder"),
        ({"ledger": 3}, TypeError, "ledger=3 is int: expected .*Ledger, a path, or None"),
        ({"accountant": []}, ValueError, r"unknown accountant \[\].*pld"),
        ({"noise": []}, ValueError, r"unknown noise \[\].*secure"),
        ({"radius": 10**400}, ValueError, "radius.*positive and finite.*beyond all floats"),
    ],
)
def test_a_value_of_another_kind(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


WRONG = [
    ({"batch_size": 0}, "batch_size=0"),
    ({"batch_size": -1}, "batch_size=-1"),
    ({"batch_size": 2.5}, r"batch_size=2\.5"),
    ({"batch_size": True}, "batch_size=True"),
    ({"batch_size": 9}, "batch_size=9.*8 samples"),
    ({"delta": 0.0}, r"delta=0\.0"),
    ({"delta": 1.0}, r"delta=1\.0"),
    ({"delta": -0.1}, r"delta=-0\.1"),
    ({"delta": float("nan")}, "delta=nan"),
    ({"noise_multiplier": 0.0}, r"noise_multiplier=0\.0.*> 0"),
    ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
    ({"noise_multiplier": float("inf")}, "noise_multiplier=inf"),
    ({"noise_multiplier": float("nan")}, "noise_multiplier=nan"),
    ({"noise_multiplier": "1"}, "noise_multiplier='1'"),
    ({"noise_multiplier": ...}, "either epsilon=.*noise_multiplier="),
    ({"epsilon": 1.0, "epochs": 1}, "not both"),
    ({"epsilon": 1.0, "noise_multiplier": ...}, "epochs"),
    ({"epsilon": 0.0, "epochs": 1, "noise_multiplier": ...}, r"epsilon=0\.0"),
    ({"epsilon": -2.0, "epochs": 1, "noise_multiplier": ...}, r"epsilon=-2\.0"),
    ({"epsilon": float("nan"), "epochs": 1, "noise_multiplier": ...}, "epsilon=nan"),
    ({"epochs": 0}, "epochs=0"),
    ({"epochs": 1.5}, r"epochs=1\.5"),
    ({"physical_batch_size": 0}, "physical_batch_size=0"),
    ({"clipping": "autos"}, "autos.*auto-s"),
    ({"grouping": "layerwise"}, "layerwise.*layer-wise"),
    ({"radius": 0.0}, "radius"),
    ({"radius": -1.0}, "radius"),
    ({"radius": float("inf")}, "radius"),
    ({"radius": 2.0, "grouping": grouping.AllLayer(radius=1.0)}, "given twice"),
    ({"strategy": "fast"}, "fast.*ghost"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_values(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**options)


@pytest.mark.parametrize("delta", [1 / 8, 0.5])
def test_a_delta_that_promises_nothing(delta):
    with pytest.warns(UserWarning, match=r"1/n"):
        make(delta=delta)


def test_delta_is_required():
    with pytest.raises(TypeError, match="delta"):
        make(delta=...)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(samples(8))


class SizedStream(Stream):
    def __len__(self):
        return 8


@pytest.mark.parametrize("dataset", [Stream(), SizedStream(), iter([1, 2])], ids=type)
def test_data_without_random_access(dataset):
    with pytest.raises(TypeError, match=r"__len__.*__getitem__"):
        make(dataset)


def test_a_loader_instead_of_data():
    """Its length counts batches, and its own sampler would be replaced behind the user's back."""
    loader = DataLoader(TensorDataset(samples(16)), batch_size=2, shuffle=True)
    with pytest.raises(TypeError, match=r"(?i)data ?set"):
        make(loader)


def test_an_empty_data_set():
    with pytest.raises(ValueError, match=r"empty|0 samples"):
        make(TensorDataset(samples(0)))


def test_a_list_is_data_enough():
    assert make(list(samples(8))).sample_rate == 0.5
