"""How findings are put into words."""

from torch import nn

from quietgrad.inspection.report import Finding, Verdict


def fault(check: str, what: str, remedy: str = "") -> Finding:
    """Something that would void the guarantee."""
    return Finding(check, Verdict.FAULT, what, remedy)


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
