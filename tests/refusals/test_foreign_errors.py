"""What would end in an error of torch or of Python: it works, or it is refused by name."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn, randn

import quietgrad as qg
from quietgrad.capture import Capture
from quietgrad.errors import QuietgradError, StrayGradientError, UnsupportedOperationError

from .helpers import assert_exact, squares

SAMPLES, STEPS = 4, 5


class Net(nn.Module):
    """Linear layers, a vector and a matrix, and a forward that is given."""

    def __init__(self, forward, **buffers):
        super().__init__()
        torch.manual_seed(0)
        self.key, self.value = nn.Linear(3, 3), nn.Linear(3, 3)
        self.vector, self.matrix = nn.Parameter(randn(3)), nn.Parameter(randn(3, 3))
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)
        self._forward = forward
        self.double()

    def forward(self, x):
        return self._forward(self, x)


def sequences():
    torch.manual_seed(1)
    return randn(SAMPLES, STEPS, 3, dtype=torch.float64)


def gated(net, x):
    """The recurrence of RWKV, whose outputs are written into a tensor step by step."""
    keys, values = net.key(x), net.value(x)
    output = torch.zeros_like(keys)
    above, below = torch.zeros_like(keys[:, 0]), torch.zeros_like(keys[:, 0])
    largest, decay = above - 1e38, -net.vector.exp()
    for step in range(x.shape[1]):
        key, value = keys[:, step], values[:, step]
        top = torch.maximum(largest, key + net.matrix[0])
        old, new = (largest - top).exp(), (key + net.matrix[0] - top).exp()
        output[:, step] = (old * above + new * value) / (old * below + new)
        top = torch.maximum(largest + decay, key)
        old, new = (largest + decay - top).exp(), (key - top).exp()
        above, below, largest = old * above + new * value, old * below + new, top
    return output


def copied(net, x):
    output, state = torch.empty_like(x), x.new_zeros(len(x), 3)
    keys, values = net.key(x), net.value(x)
    for step in range(x.shape[1]):
        state = state * net.vector.sigmoid() + keys[:, step] * values[:, step]
        output[:, step].copy_(state * net.vector)
    return output


def written_over(net, x):
    hidden = net.key(x).clone()
    for step in range(1, x.shape[1]):
        hidden[:, step] = hidden[:, step] + hidden[:, step - 1].clone() * net.vector
    return hidden


def state_space(net, x):
    inputs, state = net.key(x), x.new_zeros(len(x), 3, 3)
    outputs = torch.zeros_like(x)
    for step in range(x.shape[1]):
        state = state * net.matrix.sigmoid() + inputs[:, step, :, None] * net.vector
        outputs[:, step] = torch.einsum("bdn,n->bd", state, net.vector)
    return outputs


def added_to(net, x):
    total = torch.zeros_like(x)
    for step in range(x.shape[1]):
        total[:, step].add_(net.vector)
    return total + net.key(x)


RECURRENCES = (gated, copied, written_over, state_space, added_to)


@pytest.mark.parametrize("forward", RECURRENCES, ids=lambda forward: forward.__name__)
def test_recurrences_that_write_in_place(forward):
    assert_exact(Net(forward), squares, sequences())


def refused(forward, words, x=None, kind=UnsupportedOperationError, **buffers):
    net = Net(forward, **buffers)
    x = sequences() if x is None else x
    with pytest.raises(kind, match=words):
        qg.clipped_sum(net, lambda: squares(net, x))


def added_to_parts(net, x):
    total = torch.zeros(x.shape, dtype=x.dtype)
    for step in range(x.shape[1]):
        total[:, step].add_(net.vector)
    return total + net.key(x)


def built_by_rows(net, x):
    matrix = torch.zeros(3, 3, dtype=x.dtype)
    matrix[0], matrix[1] = net.vector, 2 * net.vector
    return net.key(x) @ matrix


def state_in_place(net, x):
    state = torch.zeros(len(x), 3, dtype=x.dtype)
    state.mul_(net.vector).add_(net.key(x)[:, 0])
    return state


@pytest.mark.parametrize("forward", [added_to_parts, built_by_rows, state_in_place])
def test_parameters_written_in_place(forward):
    assert_exact(Net(forward), squares, sequences())


# -- sparse and nested tensors -------------------------------------------------------------------

SPARSE = {
    "coo": lambda: torch.eye(3, dtype=torch.float64).mul(2).to_sparse(),
    "csr": lambda: torch.eye(3, dtype=torch.float64).mul(2).to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE.keys())
@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.key(x),
        lambda net, x: (net.graph @ net.key(x).reshape(-1, 3).T).T.reshape(x.shape),
        lambda net, x: net.key(x) @ net.graph.to_dense(),
        lambda net, x: net.key(x) @ (net.graph @ net.matrix),
    ],
    ids=["unused", "on-data", "made-dense", "on-a-parameter"],
)
def test_sparse_buffers(forward, make):
    assert_exact(Net(forward, graph=make()), squares, sequences())


def test_sparse_data():
    x = sequences()[:, 0].relu().to_sparse()
    refused(lambda net, x: F.linear(x, net.matrix), r"linear.*'matrix'.*sparse_coo.*to_dense", x)
    refused(lambda net, x: torch.sparse.mm(x, net.matrix), "mm.*'matrix'", x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors(layout):
    def ragged(x):
        return torch.nested.nested_tensor(
            [row[: 2 + i % 3] for i, row in enumerate(x)], layout=layout
        )

    def inside(net, x):
        return torch.nested.to_padded_tensor(net.key(ragged(x)), 0.0)

    words = "linear in module 'key'.*'key.weight'.*nested.*to_padded_tensor"
    refused(inside, words)
    net, x = Net(lambda net, x: torch.nested.to_padded_tensor(net.key(x), 0.0)), ragged(sequences())
    with pytest.raises(UnsupportedOperationError, match=words):
        qg.clipped_sum(net, lambda: squares(net, x))


# -- transforms of functions ---------------------------------------------------------------------

TRANSFORMS = {
    "vmap": lambda net, x: torch.vmap(lambda row: F.linear(row, net.matrix))(x),
    "vmap-of-a-layer": lambda net, x: torch.vmap(net.key)(x),
    "vmap-with-a-shared-argument": lambda net, x: torch.vmap(
        lambda row, matrix: row @ matrix, in_dims=(0, None)
    )(x, net.matrix),
    "vmap-of-a-sum": lambda net, x: torch.vmap(lambda row: row + net.vector)(x),
    "grad": lambda net, x: torch.func.grad(lambda z: (z @ net.matrix).square().sum())(x),
    "jacrev": lambda net, x: torch.vmap(torch.func.jacrev(lambda z: (z @ net.matrix).sin()))(
        x[:, 0]
    ),
    "jvp": lambda net, x: torch.func.jvp(lambda z: (z @ net.matrix).sin(), (x,), (x,))[1],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions_with_parameters(name):
    """A vmap over the samples is exact; others hide what becomes of them."""
    if name in ("grad", "jvp"):
        refused(TRANSFORMS[name], "(in the model's own forward|in module 'key').*torch.func")
    else:
        assert_exact(Net(TRANSFORMS[name]), squares, sequences())


def test_transforms_over_parameters():
    forward = lambda net, x: torch.vmap(lambda row: x @ row)(net.matrix).movedim(0, 1)  # noqa: E731
    refused(forward, "parameter 'matrix'", kind=QuietgradError)


def test_a_transform_of_data_alone():
    forward = lambda net, x: torch.vmap(lambda row: row.sin() * 2)(net.key(x))  # noqa: E731
    assert_exact(Net(forward), squares, sequences())


def test_a_forward_that_differentiates_itself():
    def forward(net, x):
        energy = net.key(x.requires_grad_()).square().sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]

    net = Net(forward)
    capture = Capture(net)
    try:
        capture.begin(SAMPLES)
        with pytest.raises(StrayGradientError, match=r"'key.weight'.*differentiates itself"):
            net(sequences())
    finally:
        capture.detach()


# -- what a model is called with -----------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    x: object
    other: object = None


def cyclic_list(x):
    parts = [x]
    parts.append(parts)
    return parts


def cyclic_dict(x):
    parts = {0: x}
    parts["all"] = [parts]
    return parts


def cyclic_pair(x):
    pair = Pair(x)
    pair.other = (pair,)
    return pair


def deep(x, levels=3000):
    for _ in range(levels):
        x = [x]
    return x


def first(parts):
    while not isinstance(parts, torch.Tensor):
        parts = parts.x if isinstance(parts, Pair) else parts[0]
    return parts


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (cyclic_list, "contains itself"),
        (cyclic_dict, "contains itself"),
        (cyclic_pair, "contains itself"),
        (deep, "more than 100 deep"),
    ],
    ids=["list", "dict", "object", "deep"],
)
def test_containers_that_cannot_be_gone_through(wrap, words):
    net = Net(lambda net, parts: net.key(first(parts)))
    parts = wrap(sequences())
    with pytest.raises(UnsupportedOperationError, match=f"is called with .*{words}"):
        qg.clipped_sum(net, lambda: squares(net, parts))


def test_containers_that_can():
    """A list in lists; and one that is in several places, but not in itself."""
    net, x = Net(lambda net, parts: net.key(first(parts))), sequences()
    shared = [x]
    for parts in (deep(x, 4), [shared, shared, (shared,)]):
        found = qg.clipped_sum(net, lambda parts=parts: squares(net, parts))
        expected = qg.clipped_sum(net, lambda: squares(net, x))
        torch.testing.assert_close(found.grads, expected.grads)


def test_what_is_returned():
    net = Net(lambda net, x: deep(net.key(x)))
    with pytest.raises(UnsupportedOperationError, match=r"returns .*more than 100 deep"):
        qg.clipped_sum(net, lambda: first(net(sequences())).flatten(1).sum(1))
    net = Net(lambda net, x: cyclic_list(net.key(x)))
    assert qg.clipped_sum(net, lambda: first(net(sequences())).flatten(1).sum(1)).nonfinite == 0


# -- samples of several parts --------------------------------------------------------------------


class Spoken(nn.Module):
    """Features take the places of placeholders (id 0), and are counted, as in audio models."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.features = nn.Embedding(9, 3), nn.Linear(4, 3)
        self.double()

    def forward(self, ids, features, mask):
        words, sounds, places = self.table(ids), self.features(features)[mask], ids == 0
        if int(places.sum()) != len(sounds):
            raise ValueError("the numbers of placeholders and of features differ")
        return words.masked_scatter(places.unsqueeze(-1).expand_as(words), sounds)


def test_ids_and_features_are_replaced_together():
    """Samples have different numbers of placeholders: one part alone would not fit another's."""
    model, counts = Spoken(), torch.tensor([1, 3, 2, 1])
    torch.manual_seed(1)
    ids = torch.randint(1, 9, (SAMPLES, 6)).where(torch.arange(6) >= counts[:, None], 0)
    features, mask = randn(SAMPLES, 3, 4).double(), torch.arange(3) < counts[:, None]
    losses = lambda: model(ids, features, mask).square().flatten(1).sum(1)  # noqa: E731
    found = qg.per_sample_grads(model, losses)
    expected = torch.autograd.grad(losses().sum(), [*model.parameters()])
    for grads, total in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(grads.sum(0), total)
