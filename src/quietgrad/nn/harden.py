"""`harden`: a copy of a model with GroupNorm for BatchNorm, and a list of what was changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from quietgrad._checks import require_choice, require_count
from quietgrad.errors import SampleMixingError
from quietgrad.nn.rebuilding import NormThen, find_additions


@dataclass(frozen=True)
class Change:
    """One change, or one that was asked for and could not be made.

    Attributes:
        path: of the module in the model that was given; empty for the model itself.
        was: the layer before.
        now: the layer after.
        left_because: why it is unchanged, although a change was asked for.
    """

    path: str
    was: str
    now: str
    left_because: str = ""

    @property
    def made(self) -> bool:
        """Whether anything was changed."""
        return not self.left_because

    def __str__(self) -> str:
        place = self.path or "the model itself"
        if self.made:
            return f"{place}: {self.was} -> {self.now}"
        return f"{place}: {self.was} left unchanged: {self.left_because}"


@dataclass(frozen=True)
class Hardened:
    """A changed copy of a model, and what was changed in it.

    Attributes:
        model: the copy.
        changes: in the order in which they were made; empty if nothing had to be.
    """

    model: nn.Module
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        kind = type(self.model).__name__
        if not self.changes:
            return f"{kind}: nothing changed"
        made = sum(change.made for change in self.changes)
        left = len(self.changes) - made
        counts = f"{made} changed" + (f", {left} left unchanged" if left else "")
        return "\n".join([f"{kind}: {counts}", *(f"  {change}" for change in self.changes)])


_RECTIFIERS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU),
    *(nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Softplus),
)
_ELSEWHERE = "its place is fixed by the code that calls it, not by a Sequential"
_WITHIN = "what follows it is part of the same module"
_ALONE = "it does not stand between a convolution or linear layer and an activation"
_MOST_GROUPS = 32
_LEAST_CHANNELS = 4  # in a group: one alone, on a map of one pixel, would be normalized to zero


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
    a trained network has to be trained on. Of a subclass of BatchNorm the modules that run after
    the normalization (dropout, an activation) are kept; one that does something else is refused by
    name. What ``forward`` calls as a function (``F.relu``, ``F.batch_norm``), and modules in a
    plain list, which are no part of the model for torch either, are not seen: `quietgrad.check`
    says whether the result is fit.

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
    hardened, changes = _replace_modules(copy.deepcopy(model), partial(_group_norm, groups))
    if activation is not None:
        hardened, more = _replace_modules(hardened, partial(_activation, activation))
        changes += more or _none_found(hardened)
    if order is not None:
        changes += _activations_first(hardened)
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
    additions = find_additions(module)
    assert isinstance(additions, dict)  # what cannot be rebuilt was refused
    norm: nn.GroupNorm = (
        NormThen(count, channels, module.eps, additions)
        if additions
        else nn.GroupNorm(count, channels, eps=module.eps, affine=False)
    )
    norm.affine = module.affine
    norm.weight, norm.bias = module.weight, module.bias  # themselves, so that what is tied stays so
    return norm


def _default_groups(module: _BatchNorm) -> int:
    if isinstance(module, nn.BatchNorm1d):
        return 1
    most = max(1, min(_MOST_GROUPS, module.num_features // _LEAST_CHANNELS))
    return next(count for count in range(most, 0, -1) if module.num_features % count == 0)


def _activation(make: Callable[[], nn.Module], path: str, module: nn.Module) -> nn.Module | None:
    if not _is_rectifier(module):
        return None
    if _has_hooks(module):
        raise ValueError(f"{_named(path, module)} has hooks, which no other activation would run")
    new = make()
    return None if repr(new) == repr(module) else new


def _none_found(model: nn.Module) -> list[Change]:
    """Asked for, and not done: said, unless the model has the activation already."""
    if any(map(_is_rectifier, model.modules())):
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
    """Refuse, by name, a normalization over the batch that cannot be replaced."""
    why = _why_not_replaceable(module)
    if why:
        raise SampleMixingError(f"{_named(path, module)} {why}")


def _why_not_replaceable(module: nn.Module) -> str:
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps running statistics of the data: make it without them"
    if not isinstance(module, _BatchNorm):
        return ""
    if isinstance(module, nn.SyncBatchNorm):
        return (
            "normalizes over several processes: harden the model before its BatchNorm is converted"
        )
    if isinstance(module, _LazyNormBase) or not module.num_features:
        return "does not know its channels yet: run a batch through the model first"
    if "forward" in vars(module):
        return "has a forward of its own, which would be lost: remove it"
    if _has_hooks(module):
        return "has hooks, which no GroupNorm would run: remove them"
    additions = find_additions(module)
    return (
        f"{additions}: put a GroupNorm in its place yourself" if isinstance(additions, str) else ""
    )


def _named(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} '{path}'" if path else f"the model ({type(module).__name__})"


def _replace_modules(
    model: nn.Module, replacement: Callable[[str, nn.Module], nn.Module | None]
) -> tuple[nn.Module, list[Change]]:
    """Replace modules in place, a shared one by a shared one; None keeps a module."""
    changes: list[Change] = []
    instead: dict[nn.Module, nn.Module] = {}
    for path, module in model.named_modules():
        new = replacement(path, module)
        if new is not None:
            instead[module] = new.train(module.training)
            changes.append(Change(path, _described(module), _described(new)))
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children leaves out second names
            if child in instead:
                parent._modules[name] = instead[child]
    return instead.get(model, model), changes


def _described(module: nn.Module) -> str:
    """The kind of layer, in short."""
    if isinstance(module, _BatchNorm):
        return f"{type(module).__name__}({module.num_features} channels)"
    if isinstance(module, nn.GroupNorm):
        groups = f"{module.num_groups} group{'s' if module.num_groups > 1 else ''}"
        then = "".join(f", then {child!r}" for child in module.children())
        return f"GroupNorm({groups}, {module.num_channels} channels){then}"
    return repr(module)


def _has_hooks(module: nn.Module) -> bool:
    """Whether something else runs with the module, which a replacement would not run."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


def _is_rectifier(module: nn.Module) -> bool:
    """Whether it is an activation like ReLU: no gate, no squashing, no parameters."""
    return type(module) in _RECTIFIERS


def _activations_first(model: nn.Module) -> list[Change]:
    """Swap each normalization with the activation after it, in place; list those left."""
    changes: list[Change] = []
    settled: set[nn.Module] = set()  # moved, or in the right place
    seen: set[nn.Module] = set()
    for path, module in model.named_modules():
        # A Sequential with code of its own need not run its modules in their order.
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            settled |= {
                norm
                for activation, norm in pairwise(list(module))
                if isinstance(norm, nn.GroupNorm) and _is_activation(activation)
            }
            changes += _swap_in_sequence(path, module, settled)
            seen |= set(module)
    for path, module in model.named_modules():
        if isinstance(module, nn.GroupNorm) and module not in settled:
            what, why = _described(module), _ALONE if module in seen else _ELSEWHERE
            changes.append(Change(path, what, what, _WITHIN if any(module.children()) else why))
    return changes


def _swap_in_sequence(path: str, sequence: nn.Sequential, settled: set[nn.Module]) -> list[Change]:
    names = list(sequence._modules)
    layers = list(sequence)
    changes: list[Change] = []
    for place in range(len(layers) - 2):
        before, norm, activation = layers[place : place + 3]
        if not (
            isinstance(before, _ConvNd | nn.Linear)
            and isinstance(norm, nn.GroupNorm)
            and _is_activation(activation)
        ):
            continue
        was, now = _described(norm), _described(activation)
        layers[place + 1 : place + 3] = activation, norm
        if not all(name.isdigit() for name in names):  # numbers are places, other names are not
            names[place + 1 : place + 3] = reversed(names[place + 1 : place + 3])
        changes.append(Change(path, f"{was}, {now}", f"{now}, {was}"))
        settled.add(norm)
    if changes:
        sequence._modules.clear()
        sequence._modules.update(zip(names, layers, strict=True))
    return changes


def _is_activation(module: nn.Module) -> bool:
    return _is_rectifier(module) or isinstance(module, nn.Tanh | nn.Hardtanh | nn.PReLU)
