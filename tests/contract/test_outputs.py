"""A captured forward returns what torch returns: all outputs, with dropout, from the same seed.

The gradients of all samples add up to the ordinary gradient of the same losses, so what is clipped
are gradients of what was returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, rand, randint, randn
from torch.utils._pytree import tree_leaves

import quietgrad as qg
from quietgrad.capture import Capture

from .cases import CASES, precision
from .cases.table import B, Net, score

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")

TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-4}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)

Built = tuple[nn.Module, tuple[Any, ...]]
COMPOSITES: dict[str, Callable[[], Built]] = {}


def composite(name: str, forward: Callable[..., Any], inputs: Callable[[], Any], **parts: Any):
    """A model of ``parts``, each made by a function without arguments, and its inputs."""
    assert name not in COMPOSITES
    COMPOSITES[name] = lambda: (
        Net(forward, **{n: make() for n, make in parts.items()}),
        inputs(),
    )


def attend(name: str, forward: Callable[..., Any] | None = None, *shapes: Any, **options: Any):
    forward = forward or (lambda m, x: m.f(x, x, x))
    settings = {"dropout": 0.5, "batch_first": True} | options
    sizes = shapes or ((7, 6),)
    composite(
        f"attention-{name}",
        forward,
        lambda: tuple(randn(B, *size) for size in sizes),
        f=lambda: nn.MultiheadAttention(6, 2, **settings),
    )


def hidden(x: Tensor) -> Tensor:
    """Some keys that are masked, never the first."""
    return (x[..., 0] > 0.3) & (torch.arange(x.shape[1]) > 0)


CAUSAL = nn.Transformer.generate_square_subsequent_mask
attend("weights")
attend("weights-of-heads", lambda m, x: m.f(x, x, x, average_attn_weights=False))
attend("no-weights", lambda m, x: m.f(x, x, x, need_weights=False))
attend("without-dropout", lambda m, x: m.f(x, x, x), dropout=0.0)
attend("no-bias", bias=False)
for _weights in (True, False):
    _name = "weights" if _weights else "no-weights"

    def _with(forward, weights=_weights):
        return lambda m, *x: forward(lambda *a, **k: m.f(*a, need_weights=weights, **k), *x)

    attend(f"bias-kv-{_name}", _with(lambda f, x: f(x, x, x)), add_bias_kv=True)
    attend(f"zero-{_name}", _with(lambda f, x: f(x, x, x)), add_zero_attn=True)
    attend(
        f"padding-{_name}",
        _with(lambda f, x: f(x, x, x, key_padding_mask=hidden(x))),
    )
    attend(
        f"padding-float-{_name}",
        _with(lambda f, x: f(x, x, x, key_padding_mask=-2.0 * hidden(x).to(x))),
    )
    attend(f"causal-{_name}", _with(lambda f, x: f(x, x, x, attn_mask=CAUSAL(7))))
    attend(
        f"causal-hint-{_name}",
        _with(lambda f, x: f(x, x, x, attn_mask=CAUSAL(7), is_causal=True)),
    )
    attend(
        f"mask-of-heads-{_name}",
        _with(lambda f, x: f(x, x, x, attn_mask=randn(2 * len(x), 7, 7))),
    )
    attend(
        f"everything-{_name}",
        _with(lambda f, x: f(x, x, x, key_padding_mask=hidden(x), attn_mask=CAUSAL(7) != 0)),
        add_bias_kv=True,
        add_zero_attn=True,
    )
    attend(
        f"everything-hidden-{_name}",
        _with(
            lambda f, x: f(
                x, x, x, key_padding_mask=torch.arange(len(x))[:, None].eq(1) | hidden(x)
            )
        ),
        add_zero_attn=True,
    )
    attend(f"cross-{_name}", _with(lambda f, x, y: f(x, y, y)), (7, 6), (3, 6))
    attend(
        f"own-widths-{_name}",
        _with(lambda f, x, y, z: f(x, y, z)),
        (7, 6),
        (3, 5),
        (3, 2),
        kdim=5,
        vdim=2,
    )
    attend(
        f"sequence-first-{_name}",
        _with(lambda f, x: _turned(f(*[x.transpose(0, 1)] * 3))),
        batch_first=False,
    )
attend("mask-that-is-not-the-hint", lambda m, x: m.f(
    x, x, x, attn_mask=torch.zeros(7, 7), is_causal=True, need_weights=False
))  # fmt: skip


def _turned(outputs):
    return outputs[0].transpose(0, 1), outputs[1]


composite(
    "attention-trainable-mask",
    lambda m, x: m.f(x, x, x, attn_mask=m.mask),
    lambda: (randn(B, 7, 6),),
    f=lambda: nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True),
    mask=lambda: randn(7, 7),
)
for _weights in (True, False):
    composite(
        f"attention-everything-masked-{_weights}",
        lambda m, x, w=_weights: m.f(
            x, x, x, attn_mask=torch.arange(7)[:, None].eq(2).expand(7, 7), need_weights=w
        )[0].nan_to_num(),
        lambda: (randn(B, 7, 6),),
        f=lambda: nn.MultiheadAttention(6, 2, batch_first=True),
    )
_LAYER = {"d_model": 6, "nhead": 2, "dim_feedforward": 5, "dropout": 0.3, "batch_first": True}
composite(
    "encoder",
    lambda m, x: m.f(x, src_key_padding_mask=hidden(x)),
    lambda: (randn(B, 7, 6),),
    f=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**_LAYER), 2),
)
composite(
    "decoder",
    lambda m, x, y: m.f(x, y, tgt_mask=CAUSAL(7), tgt_is_causal=True),
    lambda: (randn(B, 7, 6), randn(B, 3, 6)),
    f=lambda: nn.TransformerDecoderLayer(**_LAYER),
)
for _mode in ("sum", "mean", "max"):
    for _padding in (None, 2):
        composite(
            f"bag-{_mode}-{_padding}",
            lambda m, i: (m.f(i), m.f(i.flatten(), i.shape[1] * torch.arange(len(i)))),
            lambda: (randint(9, (B, 5)),),
            f=lambda m=_mode, p=_padding: nn.EmbeddingBag(9, 4, mode=m, padding_idx=p),
        )
composite(
    "bag-weighted",
    lambda m, i, w: m.f(i, per_sample_weights=w),
    lambda: (randint(9, (B, 5)), rand(B, 5)),
    f=lambda: nn.EmbeddingBag(9, 4, mode="sum"),
)
for _kind in (nn.RNN, nn.GRU, nn.LSTM):
    for _first in (True, False):
        composite(
            f"{_kind.__name__}-{'batch' if _first else 'sequence'}-first",
            lambda m, x, first=_first: _by_sample(m.f(x if first else x.transpose(0, 1)), first),
            lambda: (randn(B, 5, 3),),
            f=lambda k=_kind, first=_first: k(
                3, 4, num_layers=3, dropout=0.4, bidirectional=True, batch_first=first
            ),
        )
    _cell = getattr(nn, f"{_kind.__name__}Cell")
    composite(
        f"{_cell.__name__}", lambda m, x: m.f(x), lambda: (randn(B, 3),), f=lambda c=_cell: c(3, 4)
    )
composite(
    "RNN-relu",
    lambda m, x: _by_sample(m.f(x), True),
    lambda: (randn(B, 5, 3),),
    f=lambda: nn.RNN(3, 4, 2, nonlinearity="relu", dropout=0.4, batch_first=True, bias=False),
)
composite(
    "LSTM-projected",
    lambda m, x: _by_sample(m.f(x), True),
    lambda: (randn(B, 5, 3),),
    f=lambda: nn.LSTM(3, 4, 2, proj_size=2, dropout=0.4, batch_first=True, bidirectional=True),
)


def _by_sample(outputs: Any, first: bool) -> list[Tensor]:
    """The output of a recurrent layer and its final states, samples first."""
    sequence, states = outputs
    sequence = sequence if first else sequence.transpose(0, 1)
    return [sequence, *(state.transpose(0, 1) for state in tree_leaves(states))]


composite(
    "bilinear",
    lambda m, x, y: (m.f(x, y), F.bilinear(x, y, m.f.weight)),
    lambda: (randn(B, 5, 3), randn(B, 5, 2)),
    f=lambda: nn.Bilinear(3, 2, 4),
)
composite(
    "added-products",
    lambda m, x: (
        torch.addmm(m.b, x[:, 0], m.w, beta=0.5, alpha=3),
        torch.addmm(m.one, x[:, 0], m.w),
        torch.baddbmm(m.one, x, m.w.expand(len(x), -1, -1), beta=2),
        torch.baddbmm(m.b, x.transpose(0, 1), m.w.expand(5, -1, -1)).transpose(0, 1),
        F.linear(x, m.w.mT, m.one),
    ),
    lambda: (randn(B, 5, 3),),
    w=lambda: randn(3, 4),
    b=lambda: randn(1, 4),
    one=lambda: randn(1),
)
composite(
    "attention-of-parts",
    lambda m, x: F.scaled_dot_product_attention(
        m.q.expand(len(x), -1, -1), x, x, attn_mask=m.mask, dropout_p=0.5
    ),
    lambda: (randn(B, 7, 6),),
    q=lambda: randn(1, 3, 6),
    mask=lambda: randn(3, 7),
)
composite(
    "norms",
    lambda m, x: (m.layer(x), m.rms(x), m.group(x), m.instance(x)),
    lambda: (randn(B, 6, 4),),
    layer=lambda: nn.LayerNorm(4),
    rms=lambda: nn.RMSNorm(4),
    group=lambda: nn.GroupNorm(3, 6),
    instance=lambda: nn.InstanceNorm1d(6, affine=True),
)
composite("prelu", lambda m, x: m.f(x), lambda: (randn(B, 6, 4),), f=lambda: nn.PReLU(6))


def run(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """All outputs, from the same state of the generator every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        outputs = model(*inputs)
        following = torch.rand(2)
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)] + [following]


def build(name: str) -> Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = COMPOSITES[name]()
    return model.train(), inputs


@every_dtype
@pytest.mark.parametrize("name", COMPOSITES)
def test_all_outputs_are_those_of_torch(name, dtype):
    with precision(dtype):
        model, inputs = build(name)
        expected = run(model, inputs)
        capture = Capture(model)
        try:
            capture.begin(B)
            found = run(model, inputs)
        finally:
            capture.detach()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        torch.testing.assert_close(
            one, other, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype], equal_nan=True
        )


@pytest.mark.parametrize("name", COMPOSITES)
def test_gradients_are_those_of_the_outputs(name):
    with precision(torch.float64):
        model, inputs = build(name)

        def losses() -> Tensor:
            parts = [score(t.nan_to_num()) for t in run(model, inputs)[:-1]]
            return torch.stack(parts).sum(0)

        expected = torch.autograd.grad(losses().sum(), [*model.parameters()])
        found = qg.per_sample_grads(model, losses, verify=False)
    largest = max(float(total.nan_to_num().abs().max()) for total in expected)
    for total, (parameter, grads) in zip(expected, found.items(), strict=True):
        assert torch.equal(grads.sum(0).isnan(), total.isnan()), parameter
        error = (grads.sum(0) - total).nan_to_num().abs().max()
        assert error <= 1e-9 * total.nan_to_num().abs().max() + 1e-13 * largest, parameter


@every_dtype
@pytest.mark.parametrize("name", CASES)
def test_losses_of_every_case_are_those_of_torch(name, dtype):
    problem = CASES[name].problem(dtype)
    with precision(dtype):
        expected = problem()
        capture = Capture(problem.model)
        try:
            capture.begin(B)
            found = problem()
        finally:
            capture.detach()
    scale = TOLERANCES[dtype] * (1 + float(expected.detach().abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=scale)


@pytest.mark.parametrize("name", [*COMPOSITES, *CASES])
def test_types_under_autocast_are_those_of_torch(name):
    """Of LSTMs torch has a kernel of its own on some machines, which returns another type."""
    if name in COMPOSITES:
        model, inputs = build(name)
        outputs = partial(run, model, inputs)
    else:
        problem = CASES[name].problem(torch.float32)
        model, outputs = problem.model, lambda: [problem()]
    if any(isinstance(module, nn.LSTM) for module in model.modules()):
        return
    with torch.autocast("cpu", torch.bfloat16):
        try:
            expected = outputs()
        except RuntimeError as error:
            pytest.skip(f"torch itself has no such operation in bfloat16: {str(error)[:60]}")
        capture = Capture(model)
        try:
            capture.begin(B)
            found = outputs()
        finally:
            capture.detach()
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in expected]
