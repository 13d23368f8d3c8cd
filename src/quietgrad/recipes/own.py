"""Recipes of one's own: `module:function`, `path/to/file.py:function`, or an entry point.

A package makes its recipes known by entry points in the group `quietgrad.recipes`. Whatever its
module registers (clipping functions, groupings, samplers, accountants) is known from then on.
"""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import quietgrad
from quietgrad._checks import unknown_name
from quietgrad.recipes.recipe import Recipe

GROUP = "quietgrad.recipes"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_THE_USERS = (
    Path(quietgrad.__file__).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
)


class TargetError(ValueError):
    """What `module:function` names cannot be imported, or is not what is expected."""


def is_target(name: str) -> bool:
    """Whether this is meant to be `module:function`, and no name."""
    return ":" in name or name.endswith(".py")


def canonical(target: str) -> str:
    """The same from any folder: with the whole path of a file."""
    place, _, name = target.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else target


def installed() -> dict[str, EntryPoint]:
    """The recipes that installed packages have, by name."""
    return {found.name: found for found in entry_points(group=GROUP)}


def load_own(target: str) -> Recipe:
    """The recipe that a function returns.

    Raises:
        TargetError: there is no such module or function, it raises, or it returns something else.
    """
    target = canonical(target)
    function = import_function(target)
    with errors_of_target(target):
        made = function()
    if not isinstance(made, Recipe):
        raise TargetError(
            f"{target} returned {kind_of(made)}: expected a quietgrad.recipes.Recipe. See"
            " docs/recipes.md for a file of 30 lines"
        )
    if not _NAME.fullmatch(made.name):
        raise TargetError(
            f"{target} returned a recipe with name={made.name!r}: expected letters, digits, dots"
            " and hyphens, of which the name of a run's folder can be made"
        )
    file = inspect.getsourcefile(inspect.unwrap(function))
    return replace(made, target=target, digest=None if file is None else _digest(Path(file)))


def _parse(target: str) -> tuple[str, str]:
    """Module or file, and function; TargetError if it is neither."""
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise TargetError(
            f"{target!r} is not a target: expected module:function or path/to/file.py:function"
        )
    if not place.endswith(".py") and not all(map(str.isidentifier, place.split("."))):
        raise TargetError(
            f"{place!r} is neither a module's name nor a Python file: expected module:function or "
            "path/to/file.py:function"
        )
    return place, name


def import_function(target: str) -> Callable[[], Any]:
    """Import the module; the function, which takes no arguments.

    Raises:
        TargetError: there is no such module or function, or the module raises.
    """
    place, name = _parse(target)
    with errors_of_target(target):
        module = _from_file(Path(place)) if place.endswith(".py") else _imported(place)
    function = getattr(module, name, None)
    if not callable(function):
        functions = {n: value for n, value in vars(module).items() if inspect.isfunction(value)}
        own = [n for n in functions if functions[n].__module__ == module.__name__ and n[0] != "_"]
        raise TargetError(str(unknown_name(f"function in {place}", name, own or functions)))
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TargetError(f"{target} {error}: expected a function of no arguments") from None
    except ValueError:
        pass  # a builtin that does not tell
    found: Callable[[], Any] = function
    return found


def _imported(place: str) -> ModuleType:
    sys.path.insert(0, "")  # as for `python -m`
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module is there, and something it imports is not
        raise TargetError(
            f"no module {place!r}: expected one that can be imported from here, or a file"
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"no file {str(path)!r}: expected path/to/file.py:function")
    return _run_file(path, _digest(path))


@cache  # a file is run once: what it registers cannot be registered twice
def _run_file(path: Path, digest: str) -> ModuleType:
    taken = sys.modules.get(path.stem)
    is_other = taken is not None and getattr(taken, "__file__", None) != str(path)
    # A file that is called like a package must not take its place.
    name = f"{path.stem}_{digest[:8]}" if is_other else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(path.parent))  # as for `python path`
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise TargetError(
            f"no file {str(path)!r} ({error.strerror}): expected path/to/file.py:function"
        ) from error


# Errors in what the user wrote, without the frames of anybody else.


@contextmanager
def errors_of_target(target: str) -> Iterator[None]:
    """Turn what the user's code raises into one error that says where, and what to do."""
    try:
        yield
    except TargetError:
        raise
    except (Exception, SystemExit) as error:  # an exit would pass for that of the command
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError):
            what = f"SyntaxError: {error.msg}"
            place = f"{error.filename}, line {error.lineno}"
        else:
            frames = user_frames(error)
            if not frames:
                raise
            last = frames[-1]
            inside = "" if last.name == "<module>" else f", in {last.name}"
            place = f"{last.filename}, line {last.lineno}{inside}"
        raise TargetError(
            f"{target} raised {what} ({place}). Correct it, then run the command again"
        ) from error


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an error that are in files of the user."""
    return [f for f in traceback.extract_tb(error.__traceback__) if _is_the_users(f.filename)]


def _is_the_users(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(path.is_relative_to(place) for place in _NOT_THE_USERS)


def kind_of(value: Any) -> str:
    """What was returned, in words."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
