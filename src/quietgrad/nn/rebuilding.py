"""What a subclass of BatchNorm adds to it: found by running it, and kept behind a GroupNorm."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MOST_MODULES = 4  # whose orders are tried
_ROUNDING = 1e-9
_FAILURES = (RuntimeError, ValueError, TypeError, AssertionError)


class NormThen(nn.GroupNorm):
    """A GroupNorm, then modules of its own: dropout and activation, by the names they had.

    Args:
        groups: of channels.
        channels: in all.
        eps: added to variances.
        then: what follows, in this order.
    """

    def __init__(self, groups: int, channels: int, eps: float, then: dict[str, nn.Module]) -> None:
        super().__init__(groups, channels, eps=eps, affine=False)
        self._then = tuple(then)
        for name, module in then.items():
            self.add_module(name, module)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize, and run what follows."""
        output = super().forward(input)
        for name in self._then:
            output = self.get_submodule(name)(output)
        return output


def find_additions(norm: _BatchNorm) -> dict[str, nn.Module] | str:
    """The modules that run after the normalization, in their order; or why that is not all.

    The subclass is run on random numbers, in training mode and not, and compared with plain batch
    normalization followed by its own modules. It is left as it was.
    """
    if type(norm) in _PLAIN:
        return {}
    if why := _find_extra_state(norm):
        return why
    modules = {name: child for name, child in norm._modules.items() if child is not None}
    if len(modules) > _MOST_MODULES:
        return f"has {len(modules)} modules of its own, too many to find out their order"
    probe = copy.deepcopy(norm).cpu().double()
    input = _make_input(probe)
    if input is None:
        return "does not run on tensors of two to five dimensions with its channels second"
    for order in permutations(modules):
        if all(_is_composed(probe, order, input, training=t) for t in (False, True)):
            return {name: modules[name] for name in order}
    named = ", ".join(f"'{name}'" for name in modules)
    followed = f"batch normalization followed by its modules {named}" if named else "BatchNorm"
    return f"computes something else than {followed}, which cannot be rebuilt"


def _find_extra_state(norm: _BatchNorm) -> str:
    """Parameters and buffers of its own, which a GroupNorm has no use for."""
    own = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    extra = [name for name in (*norm._parameters, *norm._buffers) if name not in own]
    return f"has '{extra[0]}' besides what BatchNorm has, which cannot be rebuilt" if extra else ""


def _shapes(norm: _BatchNorm) -> Iterator[tuple[int, ...]]:
    for dims in (2, 1, 0, 3):
        yield (5, norm.num_features, *[4, 3, 2][:dims])


def _make_input(norm: _BatchNorm) -> Tensor | None:
    """Random numbers of a shape that it takes; and statistics, so that those show, too."""
    generator = torch.Generator().manual_seed(0)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        if isinstance(tensor, Tensor):
            dtype, sizes = tensor.dtype, tensor.shape
            values = torch.rand(sizes, generator=generator, dtype=dtype, device="cpu")
            tensor.data.copy_(values + 0.5)
    for shape in _shapes(norm):
        input = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                copy.deepcopy(norm).eval()(input.clone())
        except _FAILURES:
            continue
        return input
    return None


def _normalize(norm: _BatchNorm, input: Tensor) -> Tensor:
    by_batch = norm.training or norm.running_mean is None
    statistics = norm.running_mean, norm.running_var
    return F.batch_norm(input, *statistics, norm.weight, norm.bias, by_batch, 0.1, norm.eps)


def _is_composed(norm: _BatchNorm, order: Sequence[str], input: Tensor, *, training: bool) -> bool:
    """Whether it is plain normalization followed by these modules; both draw the same."""
    own, parts = (copy.deepcopy(norm).train(training) for _ in range(2))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = own(input.clone())
            torch.manual_seed(0)
            expected = _normalize(parts, input)
            for name in order:
                expected = parts.get_submodule(name)(expected)
    except _FAILURES:
        return False
    return (
        isinstance(found, Tensor)
        and found.shape == expected.shape
        and bool(((found - expected).abs() <= _ROUNDING * (1 + expected.abs())).all())
    )
