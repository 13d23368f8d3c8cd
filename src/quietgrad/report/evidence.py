"""What a report rests on."""

import ast
import hashlib
import json
import math
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quietgrad._checks import (
    require_choice,
    require_count,
    require_delta,
    require_positive,
)
from quietgrad.accounting import accountants, events
from quietgrad.accounting.events import NOISES, Adjacency, Participation, require_adjacency
from quietgrad.accounting.ledger import Ledger
from quietgrad.errors import QuietgradError
from quietgrad.report.statement import plain


@dataclass(frozen=True)
class Checkpoint:
    """What a report needs of it.

    Attributes:
        steps_taken: updates in its weights.
        ledger: what was recorded when it was saved.
    """

    steps_taken: int
    ledger: Ledger


def read_checkpoint(path: Path) -> Checkpoint:
    """What an engine saved; ValueError if it did not save this."""
    try:
        state = _plain_data(path)
        if not isinstance(state, Mapping):
            raise ValueError("it is no state of an engine")
        steps = require_count("steps_taken", state["steps_taken"], at_least=0)
        return Checkpoint(steps, Ledger.from_dict(state["ledger"]))
    except Exception as error:  # whatever a damaged file makes of archives and pickles
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _plain_data(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        (name,) = (each for each in archive.namelist() if each.count("/") == 1 and _is_data(each))
        with archive.open(name) as stream:
            return _PlainUnpickler(stream).load()


def _is_data(name: str) -> bool:
    return name.endswith("/data.pkl")


class _Empty:
    """Stands for a tensor, or a part of one."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module.partition(".")[0] == "torch" or (module, name) == ("_codecs", "encode"):
            return _Empty
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")

    def persistent_load(self, pid: Any) -> Any:
        return _Empty()


FORMAT = 1


@dataclass(frozen=True)
class RunSettings:
    """What a report needs of an engine's settings.

    Attributes:
        data: all of them, as plain data.
        delta: of the claim.
        accountant: of the claim.
        adjacency: of the claim.
        noise_multiplier: of a step whose schedule says 1.
        noise_multipliers: all that were planned; None if they are not known beforehand.
        noise: the source, as it is recorded in ledgers.
        seeded: whether it can be recomputed.
        sampling: what the accountant assumes.
        dataset_size: number of records.
        batch_size: expected number of records in a step.
        group_bounds: how far a record can move the sum, group by group.
        steps_taken: updates in the weights when the settings were written.
        ledger_id: names the ledger that belongs to them.
        steps_by_others: steps in that ledger that are not this training's.
    """

    data: Mapping[str, Any]
    delta: float
    accountant: str
    adjacency: Adjacency
    noise_multiplier: float
    noise_multipliers: tuple[float, ...] | None
    noise: str
    seeded: bool
    sampling: Participation
    dataset_size: int
    batch_size: int
    group_bounds: tuple[float, ...]
    steps_taken: int
    ledger_id: str
    steps_by_others: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunSettings":
        """What `engine.settings()` gave; ValueError if it did not give this."""
        try:
            return cls._from(data)
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not an engine's settings: {error}") from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> "RunSettings":
        require_choice("format", data["format"], (FORMAT,))
        progress, planned = data["progress"], data["noise_multipliers"]
        seeded = require_choice("seeded", data["seeded"], (True, False))
        source = require_choice("noise", data["noise"], NOISES)
        bounds = [require_positive("bound", group["bound"]) for group in data["groups"]]
        if planned is not None:
            planned = tuple(require_positive("noise_multipliers", each) for each in planned)
        return cls(
            data,
            delta=require_delta("delta", data["delta"]),
            accountant=accountants.resolve(data["accountant"]).name,
            adjacency=require_adjacency(data["adjacency"]),
            noise_multiplier=require_positive("noise_multiplier", data["noise_multiplier"]),
            noise_multipliers=planned,
            noise="seeded" if seeded else source,
            seeded=seeded,
            sampling=events.from_dict(data["sampling"]),
            dataset_size=require_count("dataset_size", data["dataset_size"], at_least=1),
            batch_size=require_count("batch_size", data["batch_size"], at_least=1),
            group_bounds=tuple(bounds),
            steps_taken=require_count("steps_taken", progress["steps_taken"], at_least=0),
            ledger_id=str(progress["ledger_id"]),
            steps_by_others=require_count(
                "steps_by_others", progress["steps_by_others"], at_least=0
            ),
        )

    @property
    def sensitivity(self) -> float:
        """How far a record can move the sum of clipped gradients, to begin with."""
        return math.hypot(*self.group_bounds)

    @property
    def sample_rate(self) -> float:
        """Expected share of the records in a step."""
        return self.batch_size / self.dataset_size

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of all settings but "progress"."""
        lasting = {name: value for name, value in self.data.items() if name != "progress"}
        canonical = json.dumps(lasting, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


NOT_MEASURED = ("epoch", "steps", "epsilon", "seconds")
_EPOCH = "epoch"
_INFINITE = plain(math.inf)
_TRAINING = ("train", "training")
# Ends at whatever is no letter, and where a capital begins the next word.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SHARES = ("accuracy", "precision", "recall", "share")


def checked_line(line: object, where: str) -> dict[str, Any]:
    """One epoch as plain data; ValueError if it is none."""
    if not isinstance(line, Mapping):
        raise ValueError(f"{where} is not an epoch: expected a mapping with 'epoch' and figures")
    found: dict[str, Any] = plain(line)
    if not is_number(found.get(_EPOCH)):
        raise ValueError(f"{where} has no number of its epoch: expected 'epoch'")
    for name in ("steps", "epsilon"):
        if not _is_number_or_nothing(found.get(name)):
            raise ValueError(f"{where} has {name} {found[name]!r}: expected a number")
    return found


def read_lines(text: str, where: str) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """All epochs of a file, and notices; a last line that was not finished is left out.

    Raises:
        ValueError: another line is no epoch.
    """
    whole, _, rest = text.rpartition("\n")
    lines = [line for line in whole.split("\n") if line.strip()]
    found = [_parsed(line, f"{where}, line {n}") for n, line in enumerate(lines, start=1)]
    notices = []
    if rest.strip():
        try:
            found.append(_parsed(rest, where))
        except ValueError:
            notices.append(f"{where} ends in the middle of a line, which was left out.")
    return tuple(found), tuple(notices)


def measured_names(lines: tuple[dict[str, Any], ...]) -> list[str]:
    """The names of all figures but those that are about the run itself, as they come."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [
        name
        for name in names
        if name not in NOT_MEASURED and any(is_number(line.get(name)) for line in lines)
    ]


def series(lines: tuple[dict[str, Any], ...], name: str) -> list[tuple[float, float]]:
    """A figure by epoch, where there is one."""
    return [(float(line[_EPOCH]), float(line[name])) for line in lines if is_number(line.get(name))]


def is_share(lines: tuple[dict[str, Any], ...], name: str) -> bool:
    """Whether a figure is a share of one, to be shown in per cent."""
    values = [value for _, value in series(lines, name)]
    return any(word in name for word in _SHARES) and all(0 <= each <= 1 for each in values)


def is_number(value: object) -> bool:
    """A finite number that fits a curve."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and math.isfinite(value)


def seem_private(lines: tuple[dict[str, Any], ...]) -> list[str]:
    """The names of figures that seem to be read from training data, as they come."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [name for name in names if _is_of_training(name)]


def _is_of_training(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return name.lower().startswith("train") or any(word in _TRAINING for word in words)


def _is_number_or_nothing(value: object) -> bool:
    if value is None or value == _INFINITE:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        return checked_line(json.loads(line), where)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error


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


MODEL = "model.safetensors"


class ReportError(QuietgradError):
    """There is nothing to report on, or what there is cannot be read."""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known of a run.

    Attributes:
        ledger: what was released. Without one there is no report.
        settings: what only the engine knows; None if nobody kept it.
        config: what the run was asked to do.
        metrics: one mapping per epoch.
        result: what came out of it; None if it did not get as far.
        checkpoint: from where it would go on; None if there is none.
        audit: what an audit of such training found, as plain data.
        delta: asked for by the reader, instead of the run's own.
        is_live: whether this comes from an engine, not from files.
        hashes: SHA-256 of the files that were read.
        notices: what was odd about them.
    """

    ledger: Ledger
    settings: RunSettings | None = None
    config: Mapping[str, Any] | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    result: Mapping[str, Any] | None = None
    checkpoint: Checkpoint | None = None
    audit: dict[str, Any] | None = None
    delta: float | None = None
    is_live: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def private_result(self) -> Mapping[str, Any]:
        """What the result says of the private training."""
        found = (self.result or {}).get("private")
        return found if isinstance(found, Mapping) else {}

    @property
    def options(self) -> Mapping[str, Any]:
        """What was asked for, by the names of the options."""
        found = (self.config or {}).get("settings")
        return found if isinstance(found, Mapping) else {}

    @property
    def configured_delta(self) -> float | None:
        """As the configuration has it."""
        found = self.options.get("delta")
        return found if isinstance(found, float) and 0 < found < 1 else None

    @property
    def stated_delta(self) -> float | None:
        """What the run itself says; None if it does not."""
        return self.configured_delta if self.settings is None else self.settings.delta

    @property
    def has_seeded_noise(self) -> bool:
        """Whether the ledger or the settings say that noise was seeded."""
        in_ledger = any(event.noise == "seeded" for event in self.ledger.events)
        return in_ledger or (self.settings is not None and self.settings.seeded)

    @property
    def is_seeded(self) -> bool:
        """Whether noise that counts can be recomputed, by anything but what was asked for."""
        return self.has_seeded_noise or (self.result or {}).get("seed") is not None

    @property
    def weight_steps(self) -> int | None:
        """Updates in the weights; None if it is not known."""
        if self.is_live and self.settings is not None:
            return self.settings.steps_taken
        steps = self.private_result.get("steps")
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None
