"""Complex parameters: their real and imaginary parts are clipped and get noise."""

import torch
import torch.nn.functional as F
from torch import einsum, nn, randn

from .table import B, Net, case, frozen


def _complex(*shape):
    return torch.view_as_complex(randn(*shape, 2))


def _use(name, function, parameter, *inputs, **more):
    """A case of ``function(parameter, *inputs)``, all given by their shapes."""

    def build():
        parts = {part: make() for part, make in more.items()}
        net = Net(lambda m, *x: function(m.w, *x), w=_complex(*parameter), **parts)
        return net, tuple(randn(B, *shape) for shape in inputs)

    case(f"complex-parameter-{name}", build)


def _recurrence(decay, x):
    """A diagonal state space: the state decays by a complex factor at each step."""
    state = torch.zeros(len(x), decay.shape[0], dtype=decay.dtype)
    states = []
    for step in x.unbind(1):
        state = state * torch.exp(-decay.abs()) * torch.exp(1j * decay.angle()) + step
        states.append(state.real)
    return torch.stack(states, 1)


def _kernel(w, x):
    """A long convolution whose kernel comes from complex eigenvalues."""
    steps = torch.arange(x.shape[-1], dtype=x.dtype)
    kernel = torch.exp(torch.outer(-w.abs() + 1j * w.imag, steps.to(w.dtype))).real.sum(0)
    size = 2 * x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(kernel, size), size)


_use(
    "fourier-neural-operator",
    lambda w, x: torch.fft.irfft2(einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), w), s=(4, 6)),
    (3, 2, 4, 4),
    (3, 4, 6),
)
_use("filter", lambda w, x: torch.fft.irfft(torch.fft.rfft(x) * w, n=9), (3, 5), (3, 9))
_use("filter-right", lambda w, x: (w * torch.fft.rfft(x)).abs(), (5,), (3, 9))
_use("matmul", lambda w, x: (torch.fft.rfft(x) @ w).abs(), (3, 2), (7, 5))
_use("matmul-left", lambda w, x: torch.view_as_real(w @ torch.fft.rfft(x)), (3, 7), (7, 5))
_use("matmul-conjugate", lambda w, x: (torch.fft.rfft(x) @ w.conj().mT).abs(), (2, 3), (7, 5))
_use("matmul-adjoint", lambda w, x: (torch.fft.rfft(x) @ w.mH).imag, (2, 3), (7, 5))
_use("linear", lambda w, x: torch.view_as_real(F.linear(torch.fft.rfft(x), w)), (2, 3), (7, 5))
_use("real-data", lambda w, x: torch.view_as_real(x * w), (5,), (7, 5))
_use("real-part", lambda w, x: x @ w.real, (5, 3), (7, 5))
_use("both-parts", lambda w, x: x @ w.real + (x @ w.imag).tanh(), (5, 3), (7, 5))
_use("pairs", lambda w, x: x @ torch.view_as_real(w)[..., 1], (5, 3), (7, 5))
_use("polar", lambda w, x: x * w.abs() + w.angle(), (5,), (7, 5))
_use("added", lambda w, x: (torch.fft.rfft(x) + w).abs(), (5,), (3, 9))
_use("divided", lambda w, x: (torch.fft.rfft(x) / w).abs(), (5,), (3, 9))
_use("power", lambda w, x: (torch.fft.rfft(x) * w**2).real, (5,), (3, 9))
_use("single-times-real", lambda w, x: (x * w).abs(), (), (7, 5))
_use("single-plus-real", lambda w, x: (x + w).abs(), (), (7, 5))
_use("single-divided", lambda w, x: (w / (x.abs() + 1)).imag, (), (7, 5))
_use("single-power", lambda w, x: ((x.abs() + 1) ** w).abs(), (), (7, 5))
_use("single-chosen", lambda w, x: torch.where(x > 0, x, w).abs(), (), (7, 5))
_use("single-with-alpha", lambda w, x: torch.add(x, w, alpha=2).abs(), (), (7, 5))
_use("entries-of-one", lambda w, x: (x * w[0] + x * w[1]).abs(), (2,), (7, 5))
_use("sum-of-entries", lambda w, x: (x * w.sum()).abs(), (3,), (7, 5))
_use("mean-of-entries", lambda w, x: (x + w.mean()).imag + x, (3,), (7, 5))
_use("inside-vmap", lambda w, x: torch.vmap(lambda row: (row @ w).abs())(x + 0j), (5, 3), (7, 5))
_use("recurrence", _recurrence, (3,), (5, 3))
_use("kernel", _kernel, (3,), (7,))
_use("twice", lambda w, x: ((torch.fft.rfft(x) @ w) @ w).abs(), (3, 3), (7, 5))
_use("in-its-own-product", lambda w, x: x @ (w @ w.mH).real, (5, 3), (7, 5))
_use(
    "rows",
    lambda w, x: torch.view_as_real(w[x.abs().long() % 5]).sum(2) * x[..., None],
    (5, 3),
    (7,),
)
_use(
    "conjugated-sum",
    lambda w, x: (x.to(w.dtype) @ w + (x.to(w.dtype) @ w.conj())).real,
    (5, 3),
    (5,),
)
_use(
    "einsum-three",
    lambda w, x: einsum("bi,ij,bj->b", x + 0j, w, x + 0j).real[:, None],
    (5, 5),
    (5,),
)


def _real(name, function, parameter, *inputs):
    """A real parameter that becomes complex."""

    def build():
        net = Net(lambda m, *x: function(m.w, *x), w=randn(parameter))
        return net, tuple(randn(B, *shape) for shape in inputs)

    case(f"complex-from-real-{name}", build)


_real("phase", lambda w, x: (x * torch.exp(1j * w) + 1).abs(), (), (7, 5))
_real("polar", lambda w, x: (x * torch.polar(torch.ones_like(w), w) + 1).abs(), (), (7, 5))
_real("cast", lambda w, x: ((x + 0j) @ w.to((x + 0j).dtype)).abs(), (5, 3), (7, 5))
_real("type", lambda w, x: ((x + 1j) @ w.type((x + 0j).dtype)).abs(), (5, 3), (7, 5))
_real("type-as", lambda w, x: ((x + 1j) @ w.type_as(x + 0j)).abs(), (5, 3), (7, 5))


def _both_kinds():
    net = Net(
        lambda m, x: m.head((torch.fft.rfft(m.first(x)) * m.w).abs()),
        first=nn.Linear(5, 6),
        w=_complex(4),
        head=nn.Linear(4, 3),
    )
    return net, randn(B, 5)


def _frozen_filter():
    net = Net(
        lambda m, x: torch.fft.irfft(torch.fft.rfft(m.first(x)) * m.w, n=6),
        first=nn.Linear(5, 6),
        w=frozen(_complex(4)),
    )
    return net, randn(B, 5)


def _complex_layer():
    layer = nn.Linear(5, 3, dtype=_complex(1).dtype)
    return Net(lambda m, x: torch.view_as_real(m.layer(x + 0j)), layer=layer), randn(B, 7, 5)


def _complex_convolution():
    layer = nn.Conv1d(3, 2, 3, dtype=_complex(1).dtype)
    return Net(lambda m, x: torch.view_as_real(m.layer(x + 0j)), layer=layer), randn(B, 3, 7)


case("complex-parameter-beside-real-ones", _both_kinds)


case("complex-parameter-frozen", _frozen_filter)
case("complex-parameter-layer", _complex_layer)
case("complex-parameter-convolution", _complex_convolution)
