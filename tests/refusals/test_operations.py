"""Every use of a parameter is exact or refused: no operation runs with a wrong gradient.

One row per operation. A refusal must be quietgrad's own; where a rule is known to exist the
gradient must come out.
"""

import pytest
import torch
import torch.nn.functional as F

import quietgrad
from quietgrad.errors import UnsupportedOperationError

from .helpers import (
    FEATURES,
    Net,
    assert_exact,
    assert_exact_or_refused,
    assert_exact_steps,
    assert_refused,
    attach,
    samples,
    squares,
)

EXACT = {
    "matmul": lambda net, x: x @ net.matrix,
    "mv": lambda net, x: torch.mv(x, net.vector)[:, None],
    "einsum": lambda net, x: torch.einsum("bd,def->bef", x, net.cube),
    "bilinear": lambda net, x: F.bilinear(x, x, net.cube),
    "addmm": lambda net, x: torch.addmm(net.vector, x, net.matrix),
    "expanded bmm": lambda net, x: x[:, None] @ net.matrix.expand(len(x), -1, -1),
    "where": lambda net, x: torch.where(x > 0, x, net.vector),
    "clamp": lambda net, x: x.clamp(min=net.vector),
    "power": lambda net, x: (x.abs() + 1) ** net.vector,
    "base of a power": lambda net, x: net.vector.exp() ** x,
    "lerp": lambda net, x: torch.lerp(x, net.vector, 0.3),
    "lerp's weight": lambda net, x: torch.lerp(x, 2 * x, net.vector),
    "addcmul": lambda net, x: torch.addcmul(x, x, net.vector),
    "in place on data": lambda net, x: x.clone().mul_(net.scalar).add_(net.vector),
    "written by a mask": lambda net, x: written_by_mask(x, net.scalar),
    "row by index": lambda net, x: net.table[x.argmax(1)],
    "gathered": lambda net, x: net.vector.expand_as(x).gather(1, x.argsort(1)),
    "scattered": lambda net, x: torch.zeros_like(x).scatter(
        1, x.argsort(1), net.vector.expand_as(x)
    ),
    "concatenated": lambda net, x: torch.cat([x, net.vector.expand(len(x), -1)], 1),
    "prelu": lambda net, x: F.prelu(x, net.vector),
    "filter in frequency": lambda net, x: torch.fft.irfft(
        torch.fft.rfft(x) * torch.fft.rfft(net.vector), n=FEATURES
    ),
    "complex": lambda net, x: (torch.complex(x, x) * torch.complex(net.vector, net.vector)).abs(),
    "inverse": lambda net, x: x @ torch.linalg.inv(net.matrix),
    "matrix exponential": lambda net, x: x @ torch.matrix_exp(net.matrix),
    "singular vectors": lambda net, x: x @ torch.linalg.svd(net.matrix)[0],
    "standardized weight": lambda net, x: F.linear(
        x, (net.matrix - net.matrix.mean(1, keepdim=True)) / net.matrix.std(1, keepdim=True)
    ),
    "norm as a scale": lambda net, x: x * net.matrix.norm(),
    "triangle": lambda net, x: x @ net.matrix.tril(),
    "diagonal": lambda net, x: x @ torch.diag(net.vector),
    "sorted": lambda net, x: x * net.vector.sort().values,
    "unfolded": lambda net, x: F.linear(x[:, :2], net.vector.unfold(0, 2, 1)),
    "strided": lambda net, x: x * net.matrix.as_strided((FEATURES,), (1,)),
    "stacked": lambda net, x: F.linear(x, torch.stack([net.vector, 2 * net.vector])),
    "interpolated": lambda net, x: (
        x * F.interpolate(net.vector[None, None], size=FEATURES, mode="linear")[0, 0]
    ),
    "other type": lambda net, x: x * net.vector.float().double(),
    "detached": lambda net, x: net.first(x * net.vector.detach()),
    "data": lambda net, x: net.first(x * net.vector.data),
    "a number": lambda net, x: net.first(x * net.scalar.item()),
    "compared": lambda net, x: net.first(x) * (x > net.vector),
    "attention": lambda net, x: F.scaled_dot_product_attention(
        x[:, None], net.matrix.expand(len(x), -1, -1), net.matrix.expand(len(x), -1, -1)
    ),
    "convolution": lambda net, x: F.conv1d(x[:, None], net.cube[:, :1]),
    "layer norm": lambda net, x: F.layer_norm(x, (FEATURES,), net.vector, net.vector.exp()),
    "padded embedding of constants": lambda net, x: (
        x * F.embedding(torch.tensor([0, 1, 2]), net.table, padding_idx=0)[None][:, 0]
        + x * F.embedding(torch.tensor([0, 1, 2]), net.table, padding_idx=0)[None][:, 1]
    ),
    "cdist": lambda net, x: torch.cdist(x, net.table),
    "inner": lambda net, x: torch.inner(x, net.matrix),
    "tensordot": lambda net, x: torch.tensordot(x, net.matrix, dims=1),
    "addmv": lambda net, x: torch.addmv(x.sum(1), x, net.vector)[:, None],
    "multi_dot": lambda net, x: torch.linalg.multi_dot([x, net.matrix, net.matrix]),
    "vecdot": lambda net, x: torch.linalg.vecdot(x, net.vector)[:, None],
    "cross": lambda net, x: torch.linalg.cross(x, net.vector.expand_as(x)),
    "kron": lambda net, x: torch.kron(x, net.vector),
    "cosine": lambda net, x: F.cosine_similarity(x, net.vector, dim=1)[:, None],
    "distance": lambda net, x: F.pairwise_distance(x, net.vector)[:, None],
    "solve": lambda net, x: torch.linalg.solve(net.matrix, x.T).T,
    "grid_sample": lambda net, x: F.grid_sample(
        net.cube.expand(len(x), -1, -1, -1), x.tanh()[:, None, None, :2], align_corners=False
    ),
    "two indices": lambda net, x: net.matrix[x.argmax(1), x.argmin(1)][:, None],
    "column by index": lambda net, x: net.matrix[:, x.argmax(1)].T,
    "take": lambda net, x: torch.take(net.vector, x.argmax(1))[:, None],
    "written to a column": lambda net, x: written_to_column(x, net.vector[0]),
    "broadcast_tensors": lambda net, x: torch.mul(*torch.broadcast_tensors(x, net.vector)),
    "type": lambda net, x: x * net.vector.type(torch.float64),
}


def written_by_mask(x, value):
    y = x.clone()
    y[y > 0] = value
    return y


@pytest.mark.parametrize("name", EXACT)
def test_exact(name):
    assert_exact(Net(EXACT[name]), squares, samples(4))
    assert_exact(Net(EXACT[name]), squares, samples(3))


class Product(torch.autograd.Function):
    """``x * w`` with a derivative of its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class Noisy(torch.autograd.Function):
    """Draws for itself, so that running it again gives something else."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w + torch.rand_like(x)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


class Counted(torch.autograd.Function):
    """Depends on how often it was called."""

    calls = 0

    @staticmethod
    def forward(ctx, x, w):
        Counted.calls += 1
        ctx.save_for_backward(x, w)
        return x * w * Counted.calls

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


EITHER = {
    "addbmm": lambda net, x: torch.addbmm(
        net.matrix[:1], x[:, None], net.matrix.expand(len(x), -1, -1)
    ).expand(len(x), -1),
    "maximum": lambda net, x: torch.max(x, net.vector),
    "row by row": lambda net, x: torch.stack([row * net.vector for row in x]),
    "layer row by row": lambda net, x: torch.stack([net.first(row) for row in x]),
    "masked_fill": lambda net, x: x.masked_fill(x > 0, net.scalar),
    "masked_scatter": lambda net, x: x.masked_scatter(x > 0, net.vector.expand_as(x)),
    "index_put": lambda net, x: x.index_put((torch.zeros(1, dtype=torch.long),), net.vector),
    "class weights": lambda net, x: F.cross_entropy(
        x, x.argmax(1), weight=net.vector.exp(), reduction="none"
    )[:, None],
    "meshgrid": lambda net, x: x * torch.meshgrid(net.vector, net.vector, indexing="ij")[0][0],
    "several at once": lambda net, x: x * torch._foreach_mul([net.vector, net.table], 2.0)[0],
    "several with data": lambda net, x: torch._foreach_mul([x, x], [net.vector, net.vector])[0],
    "aten": lambda net, x: torch.ops.aten.mm(x, net.matrix),
    "aten on a derived tensor": lambda net, x: torch.ops.aten.mul.Tensor(x, 2 * net.vector),
    "aten linear": lambda net, x: torch.ops.aten.linear(x, net.matrix, net.vector),
    "native norm": lambda net, x: torch.native_layer_norm(
        x, (FEATURES,), net.vector, net.vector, 1e-5
    )[0],
    "conv_tbc": lambda net, x: torch.conv_tbc(x[None], net.cube[:1], net.vector)[0],
    "samples as channels": lambda net, x: F.conv1d(
        x.view(1, -1, 1), net.vector.view(-1, 1, 1).repeat(len(x), 1, 1), groups=x.numel()
    ).view_as(x),
    "bucketize": lambda net, x: torch.bucketize(x, net.vector.sort().values) * net.first(x),
    "numpy": lambda net, x: net.first(x * float(net.vector.detach().numpy()[0])),
    "new_tensor": lambda net, x: net.first(x) * net.vector.new_tensor([1.0, 2.0, 3.0]),
    "as constants": lambda net, x: net.first(x) * torch.tensor(net.vector.tolist()).double(),
}


def written_to_column(x, value):
    y = x.clone()
    y[:, 0] = value
    return y


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", EITHER)
def test_exact_or_refused(name):
    for count in (4, 3, 1):
        assert_exact_or_refused(Net(EITHER[name]), squares, samples(count))


REFUSED = {
    "class weights": ("cross_entropy", EITHER["class weights"], "vector"),
    "sparse data": (
        "_sparse_mm",
        lambda net, x: torch.sparse.mm(x.to_sparse(), net.matrix),
        "matrix",
    ),
    "a draw": ("Noisy.apply", lambda net, x: Noisy.apply(x, net.vector), "vector"),
    "another result each time": (
        "Counted.apply",
        lambda net, x: Counted.apply(x, net.vector),
        "vector",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_operation_parameter_and_place(name):
    operation, forward, parameter = REFUSED[name]
    words = [operation, f"'{parameter}'", "the model's own forward"]
    assert_refused(Net(forward), squares, samples(4), error=UnsupportedOperationError, words=words)


def test_a_refusal_names_the_module():
    inner = Net(REFUSED["sparse data"][1])
    model = torch.nn.Sequential(torch.nn.Linear(3, 3).double(), inner)
    words = ["module '1'", "'1.matrix'", "sparse"]
    assert_refused(model, squares, samples(4), error=UnsupportedOperationError, words=words)


def test_frozen_parameters_may_be_used_in_any_way():
    """What the refusal advises: without a gradient there is nothing to clip."""
    model = Net(lambda net, x: net.last(x) + torch.cdist(x, net.table).sum(1, keepdim=True))
    model.table.requires_grad_(False)
    assert_exact(model, squares, samples(4))


def square_matrix(net):
    """A matrix that is written entry by entry, and may be of the size of a batch."""
    matrix = torch.zeros(FEATURES, FEATURES, dtype=torch.float64)
    matrix[0, 1:] = net.vector[1:]
    matrix[1, 2] = net.scalar
    return matrix - matrix.mT


def token_first(net, x):
    tokens = x.new_zeros(len(x), 2, FEATURES)
    tokens[:, 0] = net.vector
    tokens[:, 1] = net.first(x)
    return tokens


TRAINED = {
    "no rule": lambda net, x: torch.cdist(net.first(x), net.table),
    "no rule, samples second": lambda net, x: torch.cdist(x[None], net.table)[0],
    "a custom function": lambda net, x: Product.apply(net.first(x), net.vector),
    "selected columns": lambda net, x: net.matrix[:, x.argmax(1)].T * x,
    "written to zeros": token_first,
    "vmap": lambda net, x: torch.vmap(lambda row: net.first(row) * net.vector)(x),
    "stacked copies": lambda net, x: torch.stack([net.matrix] * len(x)) @ x[:, :, None],
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_with_batches_of_any_size_is_exact(name):
    x = samples(6)
    assert_exact_steps(Net(TRAINED[name]), lambda step: (x + step,), steps=6, count=6, batch_size=3)


@pytest.mark.parametrize("count", [2, 4, 5])
def test_a_matrix_of_parameters(count):
    assert_exact(Net(lambda net, x: x @ square_matrix(net)), squares, samples(count))


def test_a_matrix_of_parameters_of_the_size_of_a_batch_is_refused_or_known_from_others():
    model = Net(lambda net, x: x @ square_matrix(net))
    assert not assert_exact_or_refused(model, squares, samples(FEATURES))
    engine = attach(model, samples(8), physical_batch_size=5)
    sizes = []
    for (rows,) in next(engine.batches()):
        sizes.append(len(rows))
        engine.backward(squares(model, rows))
    assert sizes == [5, FEATURES]
    engine.step()


CHANGED_IN_PLACE = {
    "a derived weight": lambda net, x: F.linear(x, scaled_in_place(net.matrix.clone())),
    "an entry of it": lambda net, x: F.linear(x, with_zero_entry(net.matrix.clone())),
    "a view of it": lambda net, x: F.linear(x, with_zero_view(net.matrix.clone())),
    "by data": lambda net, x: x * net.vector.clone().add_(x[0]),
    "triangle": lambda net, x: x @ net.matrix.clone().tril_(),
    "the parameter": lambda net, x: x * net.vector.mul_(2),
}


def scaled_in_place(weight):
    weight *= 2
    return weight


def with_zero_entry(weight):
    weight[0] = 0
    return weight


def with_zero_view(weight):
    weight[0].zero_()
    return weight


@pytest.mark.parametrize("name", CHANGED_IN_PLACE)
def test_changes_in_place(name):
    assert_refused(
        Net(CHANGED_IN_PLACE[name]), squares, samples(4), words=["in place", "out-of-place"]
    )


def test_a_buffer_changed_after_it_was_used():
    """The gradient of ``vector * buffer`` needs the buffer as it was. Plain autograd refuses."""

    class Doubling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.vector = torch.nn.Parameter(torch.ones(3).double())
            self.register_buffer("scale", torch.ones(3).double())

        def forward(self, x):
            output = F.linear(x, torch.diag(self.vector * self.scale))
            self.scale.mul_(2)
            return output

    model, x = Doubling(), samples(4)
    with pytest.raises(UnsupportedOperationError, match="in place"):
        quietgrad.per_sample_grads(model, lambda: squares(model, x))
