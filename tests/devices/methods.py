"""Methods, diagnostics and plans on a device, and models on two of them, equal the CPU."""

import pytest
import torch
from tests.devices import pretend
from tests.devices.features import GROUPINGS, build, losses_of, move
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg

PLACES = ("cpu", pretend.NAME)
SAMPLES, CLASSES = 6, 3


@pytest.fixture(autouse=True)
def _same_noise():
    with pretend.noise_of_the_host():
        yield


def engine_of(model, data, **options):
    return qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        batch_size=len(data),
        sampling="full-batch",
        noise_multiplier=1.0,
        delta=1e-3,
        seed=1,
        **options,
    )


def assert_same(one, other):
    for here, there in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(here, there.cpu(), rtol=1e-4, atol=1e-5)


def images():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(SAMPLES, 3, 9, 9), torch.arange(SAMPLES) % CLASSES)


def mirrored(rows):
    """A view that is drawn from no generator: those of devices differ."""
    return rows.flip(-1)


def with_views(model, place):
    return qg.SelfAugmentation(mirrored, views=2, keep_original=True)


def beside_public_images(model, place):
    return qg.BatchClipping(torch.randn(9, 3, 9, 9), p=3, seed=3)


def normalized():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, CLASSES)
    )


@pytest.mark.filterwarnings("ignore:seed=", "ignore:.*cannot be repeated")
@pytest.mark.every_nth(2)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize(
    ("make", "method"),
    [(lambda: build("images")[0], with_views), (normalized, beside_public_images)],
    ids=["views", "batch clipping"],
)
def test_methods_train_as_on_the_cpu(make, method, grouping):
    trained = []
    for place in PLACES:
        model = move(make(), place)
        torch.manual_seed(2)
        own = method(model, place)
        engine = engine_of(model, images(), grouping=grouping)
        for _ in range(3):
            for batch in engine.batches():
                for x, y in batch:
                    losses = own.losses(model, x.to(place), y.to(place), F.cross_entropy)
                    engine.backward(losses)
                engine.step()
        if isinstance(own, qg.BatchClipping):
            labels = own.predict(model, images().tensors[0].to(place))
            assert labels.device.type == place
        trained.append(model)
    assert_same(*trained)


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("name", ["mlp", "gpt2", "attention", "images", "lora"])
def test_gradients_of_each_sample(name):
    model, x = build(name)
    found = []
    for place in PLACES:
        own, there = move(model, place), x.to(place)
        found.append(qg.per_sample_grads(own, lambda m=own, t=there: losses_of(m, t)))
    here, there = found
    assert set(here) == set(there)
    for key, grads in here.items():
        assert there[key].device.type == pretend.NAME
        torch.testing.assert_close(grads, there[key].cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "images", "attention"])
def test_diagnostics_measure_the_same(name):
    model, x = build(name)
    found = []
    for place in PLACES:
        own, there = move(model, place), x.to(place)
        closure = lambda m=own, t=there: losses_of(m, t)  # noqa: E731
        found.append(qg.diagnostics.measure(own, closure, averages=(1, 2)))
    here, there = found
    assert here.samples == there.samples
    assert here.norms.mean == pytest.approx(there.norms.mean, rel=1e-4)


@pytest.mark.filterwarnings("ignore:seed=", "ignore:.*NOT PRIVATE", "ignore:.*raw gradients")
def test_steps_are_recorded_on_a_device():
    histories = []
    for place in PLACES:
        model, x = build("mlp")
        model = move(model, place)
        recorder = qg.diagnostics.StepRecorder(every=1, averages=(1, 2))
        engine = engine_of(model, TensorDataset(x), diagnostics=recorder)
        for batch in engine.batches():
            for (own,) in batch:
                engine.backward(losses_of(model, own.to(place)))
            engine.step()
        histories.append(recorder.history)
    here, there = histories
    assert len(here) == len(there) == 1
    assert here[0].measurement.norms.mean == pytest.approx(
        there[0].measurement.norms.mean, rel=1e-4
    )


@pytest.mark.parametrize("name", ["mlp", "images", "attention"])
def test_plans_predict_the_same_tensors(name):
    model, x = build(name)
    plans = []
    for place in PLACES:
        own, there = move(model, place), x.to(place)
        plans.append(qg.plan(own, there, losses_of, memory="1GB", physical_batch_size=SAMPLES))
    here, there = plans
    assert here.grouping == there.grouping
    assert here.recommended.peak == pytest.approx(
        there.recommended.peak, rel=0.1, abs=1024
    )  # the CPU has other kernels for attention; on a device verdicts wait, of a few bytes each


class OnTwoDevices(nn.Module):
    """The first layer and the last are at two places; inputs go from one to the other."""

    def __init__(self, first, last):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, CLASSES)
        self.drop = nn.Dropout(0.0)
        self.first.to(first)
        self.last.to(last)

    def forward(self, x):
        hidden = self.drop(self.first(x.to(self.first.weight.device)).tanh())
        return self.last(hidden.to(self.last.weight.device))


# Not two pretend ones: torch's backward pass knows one device of a backend in Python.
SPLITS = [("cpu", pretend.NAME), (pretend.NAME, "cpu")]


@pytest.mark.filterwarnings("ignore:seed=")
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("clipping", ["abadi", "auto-s"])
@pytest.mark.parametrize(("first", "last"), SPLITS)
def test_a_model_on_two_devices(first, last, clipping, grouping):
    x, y = torch.randn(SAMPLES, 8), torch.arange(SAMPLES) % CLASSES
    trained = []
    for places in (("cpu", "cpu"), (first, last)):
        model = OnTwoDevices(*places)

        def losses(inputs, labels, model=model):
            outputs = model(inputs)
            return F.cross_entropy(outputs, labels.to(outputs.device), reduction="none")

        engine = engine_of(model, TensorDataset(x, y), clipping=clipping, grouping=grouping)
        for _ in range(3):
            for batch in engine.batches():
                for inputs, labels in batch:
                    engine.backward(losses(inputs, labels))
                engine.step()
        trained.append(model)
    assert_same(*trained)
