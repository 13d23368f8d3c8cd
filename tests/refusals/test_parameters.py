"""Which parameters are trained: fixed when the engine is made, all clipped, all noised."""

from copy import deepcopy
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from quietgrad.errors import (
    QuietgradError,
    SampleMixingError,
    StrayGradientError,
    TrainableSetError,
    UnsupportedOperationError,
)

from .helpers import (
    Net,
    assert_exact,
    assert_exact_or_refused,
    assert_refused,
    assert_same_state,
    attach,
    only_batch,
    samples,
    squares,
    state,
    trainable,
)

X = samples(4)


def layers(net, x):
    return net.last(net.first(x))


@pytest.mark.parametrize("when", ["before backward", "before step"])
@pytest.mark.parametrize("verb", ["frozen", "unfrozen"])
def test_freezing_and_unfreezing_after_attaching(verb, when):
    model = Net(layers)
    model.first.requires_grad_(verb == "frozen")
    engine = attach(model, X)
    before = state(model)
    batch = next(engine.batches())
    (x,) = next(batch)
    if when == "before step":
        engine.backward(squares(model, x))
        assert next(batch, None) is None
    model.first.requires_grad_(verb == "unfrozen")
    with pytest.raises(TrainableSetError, match=r"first\.(bias|weight)") as caught:
        if when == "before step":
            engine.step()
        else:
            engine.backward(squares(model, x))
    assert "frozen" in str(caught.value)
    assert "attach" in str(caught.value)
    assert_same_state(model, before)
    assert engine.steps_taken == 0


def test_a_layer_replaced_or_added_after_attaching():
    for change in (replace_layer, add_layer, tie_weights):
        model = Net(layers)
        engine = attach(model, X)
        change(model)
        before = state(model)
        with pytest.raises(QuietgradError):
            engine.backward(squares(model, *only_batch(engine)))
            engine.step()
        assert_same_state(model, before)


class Stack(nn.Module):
    """Layers of one shape, which may change places."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3)).double()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x

    def turn(self):
        self.layers = nn.ModuleList([*self.layers[1:], self.layers[0]])


def test_layers_that_change_places_between_steps_keep_their_gradients():
    model = Stack()
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    options = {"noise_multiplier": 1e-12, "clipping": "abadi", "radius": 1e3, "epochs": 4}
    engine = attach(model, X, optimizer=optimizer, **options)
    for batch in chain.from_iterable(engine.batches() for _ in range(3)):
        grads = torch.autograd.grad(squares(copy := deepcopy(model), X).sum(), [*copy.parameters()])
        expected = {id(p): g for p, g in zip(model.parameters(), grads, strict=True)}
        before = [weight.detach().clone() for weight in weights]
        for (x,) in batch:
            engine.backward(squares(model, x))
        engine.step()
        for weight, was in zip(weights, before, strict=True):
            moved = 0.1 * expected[id(weight)] / len(X)
            torch.testing.assert_close(was - weight.detach(), moved, rtol=1e-6, atol=1e-6)
        model.turn()


@pytest.mark.parametrize("when", ["before forward", "before backward", "before step"])
def test_layers_that_change_places_while_samples_are_out(when):
    model = Stack()
    engine = attach(model, X)
    batch = next(engine.batches())
    (x,) = next(batch)
    if when == "before forward":
        model.turn()
    losses = squares(model, x)
    if when == "before backward":
        model.turn()
    if when == "before step":
        engine.backward(losses)
        model.turn()
        assert next(batch, None) is None
    with pytest.raises(TrainableSetError, match=r"'layers\.\d\.weight' became 'layers"):
        engine.step() if when == "before step" else engine.backward(losses)


def replace_layer(model):
    model.last = nn.Linear(3, 2).double()


def add_layer(model):
    model.more = nn.Linear(3, 2).double()


def tie_weights(model):
    model.matrix = model.first.weight


def test_a_parameter_that_is_not_registered():
    hidden = [nn.Parameter(torch.ones(3).double())]
    model = Net(lambda net, x: net.last(x * hidden[0]))
    words = ["(3,)", "not registered", "Register", "requires_grad_(False)"]
    assert_refused(model, squares, X, error=UnsupportedOperationError, words=words)
    hidden[0].requires_grad_(False)
    assert_exact(model, squares, X)


def test_a_trainable_tensor_that_is_no_parameter():
    """Its gradient is never clipped, so it must not be in reach of the optimizer."""
    model = Net(layers)
    model.loose = torch.ones(3).double().requires_grad_()
    optimizer = torch.optim.SGD([*trainable(model), model.loose], lr=1.0)
    with pytest.raises(TrainableSetError, match=r"\(3,\).*not in the model"):
        attach(model, X, optimizer=optimizer)


OUTSIDE = {
    "a penalty on weights": (lambda m, x: squares(m, x) + m.matrix.norm(), "matrix"),
    "in the loss": (lambda m, x: squares(m, x) * m.vector.sum(), "vector"),
    "a head outside": (lambda m, x: F.linear(m(x), m.last.weight.T).square().sum(1), "last.weight"),
    "a functional call": (
        lambda m, x: F.linear(x, m.first.weight).square().sum(1),
        "first.weight",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_parameter_used_outside_of_the_forward(name):
    losses, parameter = OUTSIDE[name]
    words = [f"'{parameter}'", "outside", "forward"]
    assert_refused(Net(layers), losses, X, error=StrayGradientError, words=words)


def test_a_penalty_returned_by_the_model():
    class Penalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2).double()

        def forward(self, x):
            return self.linear(x), self.linear.weight.norm()

    def losses(model, x):
        output, penalty = model(x)
        return output.square().sum(1) + penalty

    words = ["'linear.weight'", "parameters alone", "weight_decay"]
    assert_refused(Penalized(), losses, X, error=UnsupportedOperationError, words=words)


def test_a_penalty_added_to_the_output_is_exact():
    """Broadcast over the samples in the forward, every sample has its own share of it."""
    assert_exact(Net(lambda net, x: net.last(x) + net.matrix.norm()), squares, X)


def test_forward_called_directly():
    """Parameters of the model itself are not captured then; those of its layers are."""
    words = ["'vector'", "model.forward(...)", "model(...)"]
    direct = lambda m, x: m.forward(x).square().sum(1)  # noqa: E731
    own = Net(lambda net, x: net.last(x * net.vector))
    assert_refused(own, direct, X, error=StrayGradientError, words=words)
    assert_exact_or_refused(Net(layers), direct, X)


def test_evaluation_mode():
    model = Net(layers)
    losses = lambda m, x: squares(m.eval(), x)  # noqa: E731
    assert_refused(model, losses, X, error=StrayGradientError, words=["eval", "model.train()"])


def test_lazy_modules():
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(TrainableSetError, match=r"'0\.weight'.*lazy.*forward"):
        attach(model, X)


def test_a_model_without_trainable_parameters():
    model = Net(layers).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="no trainable parameter"):
        attach(model, X, optimizer=optimizer)


TABLES = {
    "max_norm": {"max_norm": 0.1},
    "scale_grad_by_freq": {"scale_grad_by_freq": True},
    "sparse": {"sparse": True},
}


@pytest.mark.parametrize(
    ("kind", "trained"),
    [(nn.Embedding, True), (nn.Embedding, False), (nn.EmbeddingBag, True)],
)
@pytest.mark.parametrize("name", TABLES)
def test_options_of_tables(name, kind, trained):
    table = kind(9, 3, **TABLES[name]).double()
    table.weight.requires_grad_(trained)
    model = nn.Sequential(table, nn.Flatten(), nn.LazyLinear(2)).double()
    ids = torch.tensor([[0, 1], [1, 1], [2, 5], [1, 8]])
    model.eval()(ids)
    model.train()
    words = ["embedding", "'0'", name, "default"]
    assert_refused(model, squares, ids, error=UnsupportedOperationError, words=words)


def test_packed_sequences_whose_lengths_depend_on_the_place():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 3, batch_first=True).double()

        def forward(self, x):
            lengths = torch.tensor([2, 1, 1, 1])[: len(x)]
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.rnn(packed)[1][0]

    data = samples(4, 2, 3)
    assert_refused(Packed(), squares, data, error=SampleMixingError, words=["place"])
