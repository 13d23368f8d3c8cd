"""How findings are put into words."""

from collections.abc import Sequence

from torch import nn

from quietgrad.inspection.report import Finding, Severity
from quietgrad.inspection.subject import Subject

_FEW = 5


def fault(check: str, what: str, remedy: str = "") -> Finding:
    """Something that would void the guarantee."""
    return Finding(check, Severity.FAULT, what, remedy)


def draws_differ(check: str, done: str, subject: Subject) -> Finding:
    """What cannot be compared, because the model draws otherwise in a batch of another size."""
    names = ", ".join(sorted(subject.mode.unaligned))
    return Finding(
        check,
        Severity.SKIPPED,
        f"not {done}: what is drawn by {names} cannot be kept the same for a sample in a batch of "
        "another size.",
        "Check the model with that switched off as well.",
    )


def listed(numbers: Sequence[int]) -> str:
    """The first few."""
    return ", ".join([*map(str, numbers[:_FEW]), *["..."][: len(numbers) > _FEW]])


def named(path: str, module: nn.Module) -> str:
    """A module by its path and kind."""
    kind = type(module).__name__
    return f"module '{path}' ({kind})" if path else f"the forward of the model itself ({kind})"


def owner(model: nn.Module, name: str) -> str:
    """The module that holds a buffer or an attribute of this name."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in dict(model.named_modules()):
            return named(path, model.get_submodule(path))
    return named("", model)
