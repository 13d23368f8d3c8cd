"""Stock networks made fit for private training: no sample is normalized by the others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from quietgrad._checks import require_choice, require_count
from quietgrad.errors import SampleMixingError
from quietgrad.nn.changes import Change, Hardened
from quietgrad.nn.order import activations_first, is_rectifier
from quietgrad.nn.replacement import has_hooks, replaced

_MOST_GROUPS = 32
_LEAST_CHANNELS = 4  # in a group: one alone, on a map of one pixel, would be normalized to zero
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def harden(
    model: nn.Module,
    *,
    normalization: Literal["group"] = "group",
    groups: int | None = None,
    order: Literal["activation-first"] | None = None,
    activation: Callable[[], nn.Module] | None = None,
) -> Hardened:
    """A copy of a network with GroupNorm for BatchNorm, and what was changed in it.

    Scales and shifts are carried over; statistics of the data, which BatchNorm keeps, are not, and
    a trained network has to be trained on. What ``forward`` calls as a function (``F.relu``,
    ``F.batch_norm``), and modules in a plain list, which are no part of the model for torch either,
    are not seen: `quietgrad.check` says whether the result is fit.

    Args:
        model: any network; it is left as it was.
        normalization: what takes the place of BatchNorm.
        groups: of channels that are normalized together, for all layers alike. By default as many
            as divide the channels into groups of four or more, up to 32 (4 for 16 channels, 16 for
            64, 32 from 128 on); one for BatchNorm1d, and for fewer than 8 channels. Sizes of maps
            are not known here: as many groups as channels leave nothing of a map of one pixel (all
            samples get the same output), and very small maps want few groups.
        order: ``activation-first`` moves the normalization behind the activation where both follow
            a convolution or linear layer in a Sequential (Xiao et al. 2023). Where they do not,
            the list of changes says so.
        activation: makes what takes the place of ReLU and its kind, such as ``nn.ELU``. Gates and
            squashing functions (sigmoid, tanh) stay.

    Returns:
        The copy and the list of changes; print it to read them.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    require_choice("normalization", normalization, ("group",))
    require_choice("order", order, (None, "activation-first"))
    if groups is not None:
        require_count("groups", groups, at_least=1)
    if activation is not None:
        _require_makes_module(activation)
    for path, module in model.named_modules():
        _require_replaceable(path, module)
    hardened, changes = replaced(copy.deepcopy(model), partial(_group_norm, groups))
    if activation is not None:
        hardened, more = replaced(hardened, partial(_activation, activation))
        changes += more or _none_found(hardened)
    if order is not None:
        changes += activations_first(hardened)
    return Hardened(hardened, tuple(changes))


def _group_norm(groups: int | None, path: str, module: nn.Module) -> nn.GroupNorm | None:
    if not isinstance(module, _BatchNorm):
        return None
    channels = module.num_features
    if groups is not None and channels % groups:
        raise ValueError(
            f"groups={groups} is not valid: it does not divide the {channels} channels of "
            f"{_named(path, module)}. Pass a divisor of the channels of every layer, or none"
        )
    count = groups or _default_groups(module)
    norm = nn.GroupNorm(count, channels, eps=module.eps, affine=False)
    norm.affine = module.affine
    norm.weight, norm.bias = module.weight, module.bias  # themselves, so that what is tied stays so
    return norm


def _default_groups(module: _BatchNorm) -> int:
    if isinstance(module, nn.BatchNorm1d):
        return 1
    most = max(1, min(_MOST_GROUPS, module.num_features // _LEAST_CHANNELS))
    return next(count for count in range(most, 0, -1) if module.num_features % count == 0)


def _activation(make: Callable[[], nn.Module], path: str, module: nn.Module) -> nn.Module | None:
    if not is_rectifier(module):
        return None
    if has_hooks(module):
        raise ValueError(f"{_named(path, module)} has hooks, which no other activation would run")
    new = make()
    return None if repr(new) == repr(module) else new


def _none_found(model: nn.Module) -> list[Change]:
    """Asked for, and not done: said, unless the model has the activation already."""
    if any(map(is_rectifier, model.modules())):
        return []
    return [Change("", "activations", "activations", "none of the kind of ReLU is a module")]


def _require_makes_module(activation: Callable[[], nn.Module]) -> None:
    made = isinstance(activation, nn.Module) or not callable(activation)
    if made or not isinstance(activation(), nn.Module):
        raise TypeError(
            f"activation={activation!r} is not valid: expected a class such as nn.ELU, or a "
            "function without arguments that makes a module"
        )


def _require_replaceable(path: str, module: nn.Module) -> None:
    """Complain, by name, about a normalization over the batch that cannot be replaced."""
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        raise _refusal(path, module, "keeps running statistics of the data: make it without them")
    if not isinstance(module, _BatchNorm):
        return
    if isinstance(module, nn.SyncBatchNorm):
        raise _refusal(
            path,
            module,
            "normalizes over several processes: harden the model before its BatchNorm is converted",
        )
    if isinstance(module, _LazyNormBase) or not module.num_features:
        raise _refusal(
            path, module, "does not know its channels yet: run a batch through the model first"
        )
    if type(module) not in _BATCH_NORMS:
        raise _refusal(
            path,
            module,
            "is a class of its own that may do more than BatchNorm: put a GroupNorm in its place "
            "yourself",
        )
    if "forward" in vars(module):
        raise _refusal(path, module, "has a forward of its own, which would be lost: remove it")
    if has_hooks(module):
        raise _refusal(path, module, "has hooks, which no GroupNorm would run: remove them")


def _refusal(path: str, module: nn.Module, why: str) -> SampleMixingError:
    return SampleMixingError(f"{_named(path, module)} {why}")


def _named(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} '{path}'" if path else f"the model ({type(module).__name__})"
