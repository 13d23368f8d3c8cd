"""What happens to samples before the model sees them: some of it shows, some cannot."""

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.errors import LossError
from refusals.helpers import Net, attach, samples, squares, trainable

from .helpers import moved, train

X = samples(5)


def network():
    return Net(lambda net, x: net.last(net.first(x).tanh()))


def test_a_data_set_that_grows_is_sampled_as_it_was():
    """The rate was planned for so many samples; later ones take no part."""
    model, data = network(), list(X)
    optimizer = torch.optim.SGD(trainable(model), lr=1.0)
    options = {"batch_size": 5, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0}
    engine = qg.PrivacyEngine(model, optimizer, data, **options)
    data += list(100 * X)
    sizes = []
    for batch in engine.batches():
        for x in batch:
            sizes.append(len(x))
            assert x.abs().max() < 10
            engine.backward(squares(model, x))
        engine.step()
    assert sizes == [5]
    assert engine.sample_rate == 1.0


def test_a_data_set_that_shrinks_stops_before_anything_is_released():
    model, data = network(), list(X)
    optimizer = torch.optim.SGD(trainable(model), lr=1.0)
    options = {"batch_size": 5, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0}
    engine = qg.PrivacyEngine(model, optimizer, data, **options)
    data.pop()
    with pytest.raises(IndexError):
        for batch in engine.batches():
            for x in batch:
                engine.backward(squares(model, x))
    assert engine.steps_taken == 0


COLLATE = {
    "drops some": lambda rows: [torch.stack([x for (x,) in rows if x[0] > 0])],
    "pads with copies": lambda rows: [torch.stack([x for (x,) in [*rows, rows[0]]])],
    "cuts windows": lambda rows: [torch.stack([x for (x,) in rows for _ in range(2)])],
}


@pytest.mark.parametrize("name", COLLATE)
def test_collating_that_changes_the_number_of_samples(name):
    model = network()
    engine = attach(model, X, collate_fn=COLLATE[name])
    with pytest.raises(LossError, match="5 samples"):
        train(engine, model)


def test_an_element_that_is_in_the_data_twice_is_two_units():
    """The guarantee is per element: who is in it twice moves the sum twice as far."""
    model = nn.Linear(1, 1, bias=False).double()
    x = torch.ones(3, 1).double()
    whole, rest = (
        qg.clipped_sum(model, lambda rows=rows: model(rows)[:, 0]) for rows in (x, x[:1])
    )
    change = (whole.grads["weight"] - rest.grads["weight"]).norm().item()
    assert change == pytest.approx(2 / 1.01)
    assert moved(model, lambda m, x: m(x)[:, 0], x) <= 1


def before_the_model(prepare):
    return lambda m, x: squares(m, prepare(x))


UNSEEN = {
    "mixup": lambda x: 0.5 * x + 0.5 * x.roll(1, 0),
    "standardized by the batch": lambda x: (x - x.mean(0)) / x.std(0),
    "one sample in all rows": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_samples_mixed_before_the_model_are_not_seen(name):
    """In a data set, a collate function or the loop: the model only ever gets the result."""
    x = X.clone()
    x[0] *= -30
    assert moved(network(), before_the_model(UNSEEN[name]), x) > 1.2


def test_padding_to_the_longest_without_a_mask_is_not_seen():
    """The longest sample decides how much padding the others average in."""
    lengths = torch.tensor([1, 1, 1, 1, 4])
    tokens = samples(5, 4, 3)

    def losses(model, rows):
        rows = rows.flatten()
        keep = torch.arange(4) < lengths[rows, None]
        x = (tokens[rows] * keep[..., None])[:, : int(lengths[rows].max())]
        return squares(model, x)

    model = Net(lambda net, x: net.last(net.first(x).tanh().mean(1)))
    assert moved(model, losses, torch.arange(5)) > 1.2
