"""An ordinary `backward()` with an attached model is told for what it is, whenever it is called."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.errors import StrayGradientError

IMAGES, LABELS = torch.rand(40, 1, 4, 4), torch.arange(40) % 3
EPOCHS = 2
# One that a batch is a multiple of, one that divides it, and others.
SIZES = (1, 4, 7, 40)


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def convolution():
    inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten())
    return nn.Sequential(inner, nn.Linear(8, 3))


def dropout_mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, 3)
    )


@pytest.fixture(params=[linear, convolution, dropout_mlp], ids=lambda build: build.__name__)
def model(request):
    torch.manual_seed(0)
    return request.param()


def attached(model):
    return qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(IMAGES, LABELS),
        batch_size=16,
        epochs=EPOCHS,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=0,
    )


def assert_all_strays_are_told(model):
    for size in SIZES:
        with pytest.raises(StrayGradientError, match="backward\\(\\) was called directly"):
            F.cross_entropy(model(IMAGES[:size]), LABELS[:size]).backward()
        assert all(parameter.grad is None for parameter in model.parameters())


def test_before_between_and_after_epochs_and_training_goes_on(model):
    engine = attached(model)
    assert_all_strays_are_told(model)
    for _ in range(EPOCHS):
        for batch in engine.batches():
            for images, labels in batch:
                engine.backward(F.cross_entropy(model(images), labels, reduction="none"))
            engine.step()
        assert_all_strays_are_told(model)
    assert engine.steps_taken == engine.planned_steps


def test_inside_a_batch_before_and_after_the_engines_own(model):
    engine = attached(model)
    for batch in engine.batches():
        for images, labels in batch:
            with pytest.raises(StrayGradientError, match="was called directly"):
                F.cross_entropy(model(images), labels).backward()
            break
        break
    engine.discard_batch()
    for batch in engine.batches():
        for images, labels in batch:
            engine.backward(F.cross_entropy(model(images), labels, reduction="none"))
            assert_all_strays_are_told(model)
        engine.step()


def test_a_penalty_on_weights_is_still_told_for_what_it_is():
    class Penalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, images):
            return self.layer(images.flatten(1)), self.layer.weight.square().sum()

    model = Penalized()
    engine = attached(model)
    with pytest.raises(qg.errors.UnsupportedOperationError, match="on parameters alone"):
        for batch in engine.batches():
            for images, labels in batch:
                logits, penalty = model(images)
                engine.backward(F.cross_entropy(logits, labels, reduction="none") + penalty)
            engine.step()


@pytest.mark.parametrize("before_the_step", [True, False])
def test_losses_of_another_batch_are_refused(before_the_step):
    """Computed ahead, they belong to no recording: nothing of them may be taken for zero."""
    model, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = qg.PrivacyEngine(
        model, optimizer, TensorDataset(x, y), batch_size=8, sampling="full-batch",
        noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip

    def losses():
        return F.cross_entropy(model(x), y, reduction="none")

    for batch in engine.batches():
        for _ in batch:
            engine.backward(losses())
        ahead = losses() if before_the_step else None
        engine.step()
    ahead = losses() if ahead is None else ahead
    weights = model.weight.detach().clone()
    for batch in engine.batches():
        for _ in batch:
            with pytest.raises(StrayGradientError):
                engine.backward(ahead)
            break
        engine.discard_batch()
    assert torch.equal(model.weight, weights)
    assert engine.ledger.steps == 1
