"""What a step adds to the weights: Gaussian noise of the promised size, everywhere, every time.

With SGD at learning rate 1 a step moves the weights by -(sum + noise) / batch_size. A loss whose
gradient is zero leaves the noise alone, so many weights and steps give many draws of it.
"""

import pytest
import torch
from scipy.stats import chi2, kstest
from torch import nn
from torch.utils.data import TensorDataset

from quietgrad import grouping

from .helpers import attach, flat

BATCH, SIGMA = 5, 0.7
_DOUBT = 1e-6  # the chance to reject noise of the right size


class Wide(nn.Module):
    """Many parameters: some used by a loss without gradient, some not used, some frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(40, 40)
        self.unused = nn.Linear(40, 40)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x):
        return self.used(x)


def draws(model, steps=4, **options):
    """What each step took from each trainable parameter: name -> ``[steps, numel]``."""
    dataset = TensorDataset(torch.randn(20, 40))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    given = {"batch_size": BATCH, "noise_multiplier": SIGMA} | options
    engine = attach(model, optimizer, dataset, **given)
    taken = {name: [] for name, p in model.named_parameters()}
    while engine.steps_taken < steps:
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward((0 * model(x)).sum(1))
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            engine.step()
            for name, p in model.named_parameters():
                taken[name].append((before[name] - p.detach()).flatten())
    return {name: torch.stack(rows).double() for name, rows in taken.items()}, engine


def is_std(values, expected):
    """Whether these draws could be Gaussian with mean 0 and this standard deviation."""
    count, ratio = values.numel(), float(values.square().sum()) / expected**2
    return chi2.ppf(_DOUBT / 2, count) < ratio < chi2.ppf(1 - _DOUBT / 2, count)


@pytest.mark.parametrize(
    ("options", "sensitivity"),
    [
        ({}, 1.0),
        ({"radius": 3.0}, 3.0),
        ({"clipping": "abadi", "radius": 0.2}, 0.2),
        ({"clipping": "psac", "grouping": "layer-wise"}, 1.0),
        ({"grouping": "param-wise", "radius": 2.0}, 2.0),
        ({"grouping": grouping.LayerWise(radii=(9.0, 12.0))}, 15.0),
        # Its bound is 1 in each of the two groups, whatever the radius.
        ({"clipping": "reparam", "grouping": "layer-wise", "radius": 5.0}, 2**0.5),
    ],
    ids=str,
)
def test_noise_has_the_promised_size_on_every_parameter(options, sensitivity):
    taken, engine = draws(Wide(), **options)
    assert engine.sensitivity == pytest.approx(sensitivity)
    expected = SIGMA * sensitivity / BATCH
    for name in ("used.weight", "used.bias", "unused.weight", "unused.bias"):
        assert is_std(taken[name], expected), name
    for wrong in (0.9, 1.1):
        assert not is_std(taken["unused.weight"], wrong * expected)


def test_noise_is_gaussian():
    taken, _ = draws(Wide())
    scaled = torch.cat([taken["used.weight"].flatten(), taken["unused.weight"].flatten()])
    assert kstest(scaled.numpy() * BATCH / SIGMA, "norm").pvalue > 1e-4


def test_frozen_parameters_get_none():
    taken, _ = draws(Wide())
    assert not taken["frozen.weight"].any()


def test_noise_differs_between_steps_and_between_parameters():
    taken, _ = draws(Wide())
    everything = torch.cat([taken["used.weight"], taken["unused.weight"]])
    correlations = torch.corrcoef(everything) - torch.eye(len(everything))
    assert correlations.abs().max() < 5 / taken["used.weight"].shape[1] ** 0.5


def test_without_a_seed_no_two_engines_share_noise_or_draws():
    dataset = TensorDataset(torch.arange(200.0))
    seen, noise = [], []
    for _ in range(2):
        model = nn.Linear(1, 30)
        nn.init.zeros_(model.weight)
        engine = attach(model, dataset=dataset, batch_size=100, seed=None)
        for batch in engine.batches():
            for (x,) in batch:
                seen.append(x)
                engine.backward((0 * model(x[:, None])).sum(1))
            engine.step()
            break
        noise.append(flat(model))
    assert not torch.equal(*(drawn(x) for x in seen))
    # Two independent draws may be close by chance, with a probability of about 1e-5 each.
    assert torch.isclose(*noise).sum() < 5


def drawn(x):
    """One entry per sample of the data set: 1 if it was drawn."""
    return torch.zeros(200).index_fill(0, x.long(), 1.0)


def test_half_precision_parameters_get_their_noise_before_rounding():
    """Were it drawn in bfloat16, it would take few values; rounded after scaling it takes many."""
    model = Wide().to(torch.bfloat16)
    dataset = TensorDataset(torch.randn(20, 40, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    engine = attach(model, optimizer, dataset, batch_size=BATCH)
    gradients = []
    optimizer.register_step_pre_hook(lambda *_: gradients.append(model.unused.weight.grad.float()))
    for batch in engine.batches():
        for (x,) in batch:
            engine.backward((0 * model(x)).sum(1))
        engine.step()
    gradients = torch.stack(gradients).double()
    assert is_std(gradients, 1 / BATCH)
    assert len(gradients.unique()) > 1000
