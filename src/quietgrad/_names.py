"""What registries say about names and objects they do not know. A leaf module without torch."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_name(kind: str, name: object, known: Iterable[str], more: str = "") -> ValueError:
    """The error for a name that is not registered, with the nearest one that is.

    Args:
        kind: what is looked for, such as "clipping".
        name: as it was given.
        known: the names there are.
        more: what else would be understood.
    """
    names = tuple(known)
    near = get_close_matches(str(name).lower(), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}{more}")


def described(value: object) -> str:
    """What kind of thing this is; a class is not taken for its instance."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
