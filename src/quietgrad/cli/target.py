"""Errors in what `quietgrad check` was pointed at: the user's own, shown where they arose."""

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

import click
from torch import nn

import quietgrad
from quietgrad._checks import unknown_name

_NOT_THE_USERS = (
    Path(quietgrad.__file__).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
)


class ErrorInTarget(click.ClickException):
    """The model, the loss function or the module of the user raised an error."""

    exit_code = 2  # 1 is for faults found

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it as Python would, to standard error."""
        click.echo(self.message, file=file, err=True)


@contextmanager
def errors_in_target() -> Iterator[None]:
    """Errors that went through the user's code are shown with its lines; others pass."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_the_users(f.filename)]
        if not frames and not isinstance(error, SyntaxError):
            raise
        lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
        raise ErrorInTarget("In the code to be checked:\n" + "".join(lines).rstrip()) from error


def _is_the_users(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(path.is_relative_to(place) for place in _NOT_THE_USERS)


class CheckTarget(NamedTuple):
    """What is to be inspected."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[[nn.Module, Any], Any]


def resolve(target: str) -> CheckTarget:
    """Import the module, call the function.

    Raises:
        ValueError: there is no such module or function, or it returns something else.
    """
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(
            f"{target!r} is no target: expected module:function or path/to/file.py:function"
        )
    function = _function(_module(place), name, place)
    made = _called(function, target)
    if not isinstance(made, tuple) or len(made) != len(CheckTarget._fields):
        raise ValueError(
            f"{target} returned {_kind(made)}: expected a tuple of model, batch and loss_fn"
        )
    model, _, loss_fn = made
    if not isinstance(model, nn.Module):
        raise ValueError(f"{target} returned {_kind(model)} as model: expected a torch.nn.Module")
    if not callable(loss_fn):
        raise ValueError(
            f"{target} returned {_kind(loss_fn)} as loss_fn: expected a function of model and batch"
        )
    return CheckTarget(*made)


def _called(function: Callable[..., Any], target: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(f"{target} {error}: expected a function of no arguments") from None
    except ValueError:
        pass  # a builtin that does not tell
    return function()


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _from_file(Path(place))
    sys.path.insert(0, "")  # as for `python -m`
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module is there, and something it imports is not
        raise ValueError(
            f"no module {place!r}: expected one that can be imported from here, or a file"
        ) from error


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"no file {str(path)!r}")
    sys.path.insert(0, str(path.parent))  # as for `python path`
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, place: str) -> Callable[[], Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    functions = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
    raise unknown_name(f"function in {place}", name, functions)


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
