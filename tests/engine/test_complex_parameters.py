"""Complex parameters train: noise on real and imaginary parts, resumed, checked and planned."""

from functools import partial

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.errors import TrainableSetError

pytestmark = pytest.mark.filterwarnings("ignore:.*protects nobody")

OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]


class Spectral(nn.Module):
    """A filter on the modes of what a linear layer gives, as Fourier layers have it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.unused = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x):
        modes = torch.fft.rfft(self.first(x)) * self.filter
        return self.last(torch.fft.irfft(modes, n=8))


class Constant(nn.Module):
    """Its gradients are zero, so that an update is nothing but noise."""

    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(20_000, dtype=torch.complex64))

    def forward(self, x):
        return 0 * x * self.values.real.sum()


def make(model, optimizer=torch.optim.Adam, **options):
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(12, 6), torch.arange(12) % 2)
    options = {"noise_multiplier": 1.0, "delta": 1e-5, "seed": 0} | options
    optimizer = optimizer(model.parameters(), lr=0.05)
    return qg.PrivacyEngine(model, optimizer, data, batch_size=6, **options)


def train(engine, model, epochs=2):
    for _ in range(epochs):
        for batch in engine.batches():
            for content in batch:
                engine.backward(lambda content=content: losses(model, content))
            engine.step()


def losses(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_spectral_model_trains(optimizer, grouping):
    model = Spectral()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(make(model, optimizer, grouping=grouping), model)
    for name in ("filter", "unused"):
        changed = model.get_parameter(name).detach() - before[name]
        assert changed.dtype == torch.complex64
        assert changed.real.abs().min() > 0
        assert changed.imag.abs().min() > 0


def test_noise_covers_both_parts():
    """Independent, and each of the deviation that is stated."""
    model = Constant()
    engine = qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        torch.utils.data.TensorDataset(torch.ones(4)),
        batch_size=4,
        sampling="full-batch",
        noise_multiplier=3.0,
        clipping="abadi",
        radius=2.0,
        delta=1e-5,
    )
    for batch in engine.batches():
        for (x,) in batch:
            engine.backward(model(x))
        engine.step()
    noise = 4 * torch.view_as_real(model.values.detach())
    torch.testing.assert_close(noise.std(0), torch.tensor([6.0, 6.0]), rtol=0.05, atol=0)
    assert abs(float(torch.corrcoef(noise.T)[0, 1])) < 0.05


@pytest.mark.parametrize("momentum", [None, qg.InnerOuter(length=2, inner=0.5)], ids=str)
def test_a_run_is_resumed(momentum):
    whole, part, again = Spectral(), Spectral(), Spectral()
    train(make(whole, torch.optim.SGD, momentum=momentum), whole, epochs=2)
    engine = make(part, torch.optim.SGD, momentum=momentum)
    train(engine, part, epochs=1)
    resumed = make(again, torch.optim.SGD, momentum=momentum)
    again.load_state_dict(part.state_dict())
    resumed.load_state_dict(engine.state_dict())
    train(resumed, again, epochs=1)
    for expected, found in zip(whole.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_check_and_plan():
    batch = torch.randn(8, 6), torch.arange(8) % 2
    report = qg.check(Spectral(), batch, losses)
    assert report.ok, str(report)
    assert qg.plan(Spectral(), batch, losses).recommended is not None


def test_a_parameter_without_entries():
    model = Spectral()
    model.none = nn.Parameter(torch.zeros(0, 4, dtype=torch.complex64))
    engine = make(model)
    train(engine, model)
    engine.detach()
    found = qg.clipped_sum(model, lambda: model(torch.randn(4, 6)).square().sum(1))
    assert found.grads["none"].shape == (0, 4)


def test_fused_optimizers_are_refused_at_once():
    model = Spectral()
    with pytest.raises(TrainableSetError, match=r"fused.*complex.*'filter'"):
        make(model, partial(torch.optim.SGD, fused=True))


def test_gradients_are_complex_to_their_reader():
    model, batch = Spectral(), (torch.randn(8, 6), torch.arange(8) % 2)
    found = qg.per_sample_grads(model, lambda: losses(model, batch))
    total = qg.clipped_sum(model, lambda: losses(model, batch))
    for name, parameter in model.named_parameters():
        assert found[name].dtype == total.grads[name].dtype == parameter.dtype
        assert found[name].shape[1:] == total.grads[name].shape == parameter.shape
