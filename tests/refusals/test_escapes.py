"""Ways around the capture: custom autograd, transforms, compilers, wrappers, subclasses.

Each is exact or refused; none may leave a gradient on a parameter or pass one by unclipped.
"""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad
from quietgrad.errors import QuietgradError, UnsupportedOperationError

from .helpers import (
    Net,
    assert_exact,
    assert_exact_or_refused,
    assert_exact_steps,
    assert_refused,
    assert_same_state,
    attach,
    one_by_one,
    only_batch,
    samples,
    squares,
    state,
)

X = samples(4)


class Scale(torch.autograd.Function):
    """``x * weight``, with a backward of its own."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


ESCAPES = {
    "autograd function": lambda net, x: net.last(Scale.apply(x, net.vector)),
    "autograd function on a derived tensor": lambda net, x: net.last(
        Scale.apply(x, 2 * net.vector)
    ),
    "no torch functions": lambda net, x: without_torch_function(net, x),
    "vmap over samples": lambda net, x: torch.vmap(lambda row: F.linear(row, net.matrix))(x),
    "vmap over a parameter": lambda net, x: torch.vmap(lambda w: x @ w)(net.matrix).T,
    "functional call": lambda net, x: torch.func.functional_call(
        net.last, dict(net.last.named_parameters()), (x,)
    ),
    "functional call on derived weights": lambda net, x: torch.func.functional_call(
        net.last, {"weight": 2 * net.last.weight, "bias": net.last.bias}, (x,)
    ),
    "functional call on a copy": lambda net, x: torch.func.functional_call(
        net.last, {n: p.clone() for n, p in net.last.named_parameters()}, (x,)
    ),
    "gradient within the forward": lambda net, x: inner_gradient(net, x),
    "jacobian within the forward": lambda net, x: torch.func.vmap(
        torch.func.grad(lambda row: (row * net.vector).sum().sin())
    )(x),
    "checkpoint": lambda net, x: torch.utils.checkpoint.checkpoint(
        lambda y: net.last(net.first(y)), x, use_reentrant=False
    ),
    "a copy of a layer": lambda net, x: net.first(x) + copy.deepcopy(net.first)(x),
    "parameters_to_vector": lambda net, x: x * nn.utils.parameters_to_vector([net.vector]),
    "through numpy": lambda net, x: net.first(x * torch.from_numpy(net.vector.detach().numpy())),
    "as_subclass": lambda net, x: x * net.vector.as_subclass(torch.Tensor),
    "clone of data": lambda net, x: net.first(x * net.vector.data.clone()),
}


def without_torch_function(net, x):
    with torch._C.DisableTorchFunction():
        return net.last(x)


def inner_gradient(net, x):
    x = x.detach().requires_grad_()
    (force,) = torch.autograd.grad((x * net.vector).sin().sum(), x, create_graph=True)
    return force


@pytest.mark.parametrize("name", ESCAPES)
def test_exact_or_refused(name):
    """Any error will do where torch itself gives up; a wrong gradient will not."""
    model = Net(ESCAPES[name])
    try:
        found = quietgrad.per_sample_grads(model, lambda: squares(model, X))
    except (RuntimeError, NotImplementedError):
        assert all(p.grad is None for p in model.parameters())
        return
    for parameter, expected in one_by_one(model, squares, X).items():
        torch.testing.assert_close(found[parameter], expected)


def test_what_autograd_reaches_is_refused():
    model = Net(ESCAPES["no torch functions"])
    assert_refused(model, squares, X, words=["'last.weight'", "ordinary gradient"])


HIDDEN = ["autograd function", "autograd function on a derived tensor", "vmap over samples"]


@pytest.mark.parametrize("name", HIDDEN)
def test_what_hides_from_a_mode_is_exact(name):
    assert_exact(Net(ESCAPES[name]), squares, X)


TRANSFORMED = {
    "over a parameter": ESCAPES["vmap over a parameter"],
    "over columns": lambda net, x: torch.vmap(lambda c: c[:, None] * net.vector, 1, 1)(x[:, :2]),
    "a gradient of all samples": lambda net, x: torch.func.grad(
        lambda y: (y * net.vector).sin().sum()
    )(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_that_are_not_over_the_samples_are_refused_by_name(name):
    parameter = "'matrix'" if name == "over a parameter" else "'vector'"
    assert_refused(Net(TRANSFORMED[name]), squares, X, words=["torch.func", parameter])


def test_a_vmap_over_as_many_columns_as_samples_is_refused():
    def forward(net, x):
        wide = torch.cat([x, x[:, :1]], 1)
        return torch.vmap(lambda column: column * net.scalar, 1, 1)(wide)

    assert_refused(Net(forward), squares, X, words=["samples are mixed", "'scalar'"])


def test_torch_is_as_it_was_after_a_forward_also_one_that_failed():
    apply, call = Scale.apply.__func__, torch.jit.ScriptFunction.__call__
    before = dict(vars(torch.autograd.function._SingleLevelFunction))
    model = Net(ESCAPES["autograd function"])
    quietgrad.per_sample_grads(model, lambda: squares(model, X))
    engine = attach(broken := Net(lambda net, x: net.first(x) / no_such_name), X)  # noqa: F821
    with pytest.raises(NameError):
        broken(*only_batch(engine))
    engine.detach()
    assert Scale.apply.__func__ is apply
    assert torch.jit.ScriptFunction.__call__ == call
    assert dict(vars(torch.autograd.function._SingleLevelFunction)) == before


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("place", ["1", ""], ids=["a part", "all"])
def test_a_script_is_refused_before_anything_is_attached(place):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    if place:
        model[1] = torch.jit.script(model[1])
    else:
        model = torch.jit.script(model)
    with pytest.raises(UnsupportedOperationError, match=r"ScriptModule.*before torch\.jit"):
        quietgrad.per_sample_grads(model, lambda: squares(model, X))
    assert not (place and model[0]._forward_pre_hooks)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_scripted_layers():
    """The interpreter runs out of sight; what autograd then reaches is refused."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).double()
    model[0] = torch.jit.trace(model[0], X)
    assert_exact_or_refused(model, squares, X)


class Marked(torch.Tensor):
    """A tensor subclass that knows nothing of quietgrad."""


def test_parameters_of_a_subclass():
    model = Net(lambda net, x: net.last(x * net.marked))
    model.marked = nn.Parameter(torch.randn(3).double().as_subclass(Marked))
    try:
        found = quietgrad.per_sample_grads(model, lambda: squares(model, X))
    except QuietgradError:
        return
    expected = one_by_one(model, squares, X)
    torch.testing.assert_close(found["marked"].as_subclass(torch.Tensor), expected["marked"])


def test_a_parameter_written_through_data():
    """``parameter.data = ...`` in the forward does what it says, captured or not."""
    model = Net(lambda net, x: net.last(x * clamped(net)))
    expected = model.vector.detach().clamp(0, 0.1)
    quietgrad.per_sample_grads(model, lambda: squares(model, X))
    assert torch.equal(model.vector.detach(), expected)


def clamped(net):
    net.vector.data = net.vector.data.clamp(0, 0.1)
    return net.vector


def test_hooks_on_modules_see_no_raw_gradient_of_parameters():
    model = Net(lambda net, x: net.last(net.first(x)))
    engine = attach(model, X)
    before = state(model)
    (x,) = only_batch(engine)
    seen = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(seen.append)
    with pytest.raises(UnsupportedOperationError, match="gradient hook"):
        engine.backward(squares(model, x))
    assert not seen
    assert_same_state(model, before)


class Fused(nn.Module):
    """Multiplies two weights once and keeps the product for later batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = (nn.Parameter(torch.randn(3, 3).double()) for _ in range(2))
        self.product = None

    def forward(self, x):
        if self.product is None or not self.training:
            self.product = self.left @ self.right
        return x @ self.product


def test_a_derived_weight_kept_for_the_next_batch():
    """Its graph belongs to a pass that is over, and its values to weights that have changed."""
    draw = lambda step: (samples(4, seed=step),)  # noqa: E731
    with contextlib.suppress(RuntimeError):  # autograd may be the one to refuse
        assert_exact_steps(Fused(), draw, steps=3)


def test_cached_parametrizations():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).double()

    def losses(m, x):
        with nn.utils.parametrize.cached():
            return (m(x) * m(2 * x)).sum(1)

    assert_exact(model, losses, X)


def test_a_criterion_with_parameters_of_its_own():
    """They are in no engine's hands: their gradient is neither clipped nor noised."""
    model, centre = Net(lambda net, x: net.last(x)), nn.Parameter(torch.ones(2).double())
    losses = lambda m, x: (m(x) - centre).square().sum(1)  # noqa: E731
    assert_refused(model, losses, X)
    assert centre.grad is None


def test_data_that_requires_gradients_gets_none():
    """The backward pass ends at the captured operations: nothing else sees gradients."""
    model = Net(lambda net, x: net.last(net.first(x)))
    engine = attach(model, X)
    x = only_batch(engine)[0].requires_grad_()
    engine.backward(squares(model, x))
    engine.detach()
    assert x.grad is None
