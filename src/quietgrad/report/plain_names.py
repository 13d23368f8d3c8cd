"""What Python calls an object, for people who do not write Python."""

import ast

CLIPPINGS = {
    "Abadi": "abadi",
    "Reparam": "reparam",
    "Global": "global",
    "AutoV": "auto-v",
    "AutoS": "auto-s",
    "PSAC": "psac",
}


def clipping_in_words(written: str) -> str:
    """``AutoS(gamma=0.01)`` as "auto-s, gamma 0.01"; what is not understood stays as it is."""
    found = taken_apart(written)
    if found is None:
        return written
    name, options = found
    if name == "Registered" and set(options) == {"name"}:
        return f"{options['name']}, a function of the user's own"
    return ", ".join([CLIPPINGS.get(name, name), *_listed(options)])


def options_in_words(written: str) -> str:
    """``AdaptiveRadius(start=1.0, rate=0.2)`` as "start 1.0, rate 0.2"."""
    found = taken_apart(written)
    return written if found is None or not found[1] else ", ".join(_listed(found[1]))


def _listed(options: dict[str, object]) -> list[str]:
    return [f"{name.replace('_', ' ')} {value}" for name, value in options.items()]


def taken_apart(written: str) -> tuple[str, dict[str, object]] | None:
    """The name and the options of a call with plain values; None if it is something else."""
    try:
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError):
        return None
    return call.func.id, options
