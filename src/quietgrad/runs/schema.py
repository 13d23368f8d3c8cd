"""The files of a run folder: their names, their content, and how each is read and checked.

Nothing here imports torch, so a report on a run folder needs none.
"""

import ast
import hashlib
import json
import math
import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from quietgrad._checks import require_choice, require_count, require_delta, require_positive
from quietgrad._files import file_digest, replace_file
from quietgrad._format import is_number, plain
from quietgrad.accounting import accountants, events
from quietgrad.accounting.events import (
    NOISES,
    Adjacency,
    GaussianEvent,
    Participation,
    Unit,
    require_adjacency,
)
from quietgrad.accounting.ledger import Ledger
from quietgrad.errors import QuietgradError

CONFIG, LEDGER, SETTINGS = "config.json", "ledger.jsonl", "settings.json"
CHECKPOINT, METRICS, MODEL = "checkpoint.pt", "metrics.jsonl", "model.safetensors"
RESULT, REPORT, STATED = "result.json", "report.html", "stated.json"
# What a run writes after its configuration and its ledger.
LATER_FILES = (SETTINGS, CHECKPOINT, METRICS, MODEL, RESULT, REPORT, STATED)

T = TypeVar("T")


class RunFolderError(QuietgradError):
    """The folder does not hold the run that is asked for, or cannot take it."""


# Reading and writing JSON.


def now() -> str:
    """UTC to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk into one that names the file."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        # Where torch.save fails in its own clean-up, the error of the disk is the one before.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if not isinstance(cause, OSError | SafetensorError):
            raise
        raise RunFolderError(
            f"{path} cannot be written ({cause}): free disk space or repair the file system. Files"
            " written earlier are complete"
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file by this object."""
    text = json.dumps(content, indent=2) + "\n"
    with writing(path):
        replace_file(path, lambda stream: stream.write(text.encode()))


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object; ValueError if the text is something else."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found


# settings.json


CLIPPINGS = {
    "Abadi": "abadi",
    "Reparam": "reparam",
    "Global": "global",
    "AutoV": "auto-v",
    "AutoS": "auto-s",
    "PSAC": "psac",
}


def parse_options(written: object) -> tuple[str, dict[str, Any]] | None:
    """Class name and options of a clipping function, of momentum or of an adaptive radius.

    Settings of format 1 have a repr instead, such as ``AutoS(gamma=0.01)``. None if it is not
    understood.
    """
    if isinstance(written, Mapping):
        options = {str(name): value for name, value in written.items() if name != "class"}
        return (written["class"], options) if isinstance(written.get("class"), str) else None
    try:
        call = ast.parse(str(written), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError):
        return None
    return call.func.id, options


@dataclass(frozen=True)
class RunSettings:
    """What `engine.settings()` gave, checked; `data` is all of it, as plain data."""

    data: Mapping[str, Any]
    delta: float
    accountant: str
    adjacency: Adjacency
    noise_multiplier: float
    noise_multipliers: tuple[float, ...] | None  # all that were planned, if that is known
    noise: str  # the source, as recorded in ledgers
    seeded: bool
    sampling: Participation
    dataset_size: int  # a public figure near it, if the size itself is secret
    batch_size: int
    unit: Unit | None  # what is drawn and protected, if it is not one record
    size_is_secret: bool
    group_bounds: tuple[float, ...]  # how far a record can move the sum of each group
    steps_taken: int  # updates in the weights when the settings were written
    ledger_id: str
    steps_by_others: int  # in that ledger

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunSettings":
        """Check the settings of an engine; ValueError if they are none."""
        try:
            return cls._from(data)
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not an engine's settings: {error}") from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> "RunSettings":
        require_choice("format", data["format"], (1, 2))
        progress, planned = data["progress"], data["noise_multipliers"]
        seeded = require_choice("seeded", data["seeded"], (True, False))
        source = require_choice("noise", data["noise"], NOISES)
        if planned is not None:
            planned = tuple(require_positive("noise_multipliers", each) for each in planned)
        return cls(
            data,
            delta=require_delta("delta", data["delta"]),
            accountant=accountants.require_name(data["accountant"]),
            adjacency=require_adjacency(data["adjacency"]),
            noise_multiplier=require_positive("noise_multiplier", data["noise_multiplier"]),
            noise_multipliers=planned,
            noise="seeded" if seeded else source,
            seeded=seeded,
            sampling=events.from_dict(data["sampling"]),
            dataset_size=require_count("dataset_size", data["dataset_size"], at_least=1),
            batch_size=require_count("batch_size", data["batch_size"], at_least=1),
            unit=None if data.get("unit") is None else Unit.from_dict(data["unit"]),
            size_is_secret=require_choice(
                "size_is_secret", data.get("size_is_secret", False), (True, False)
            ),
            group_bounds=tuple(require_positive("bound", each["bound"]) for each in data["groups"]),
            steps_taken=require_count("steps_taken", progress["steps_taken"], at_least=0),
            ledger_id=str(progress["ledger_id"]),
            steps_by_others=require_count(
                "steps_by_others", progress["steps_by_others"], at_least=0
            ),
        )

    def describes(self, event: GaussianEvent) -> bool:
        """Whether such a release is one of a run with these settings."""
        planned = self.noise_multipliers
        is_planned = planned is None or event.noise_multiplier in planned
        is_of_data = event.dataset == self.data.get("data_name")
        return event.sampling == self.sampling and is_planned and is_of_data

    @property
    def sensitivity(self) -> float:
        """How far a record can move the sum of clipped gradients at the first step."""
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


# config.json and result.json


def check_config(config: dict[str, Any]) -> dict[str, Any]:
    """The same; ValueError if it cannot be what a run was asked to do."""
    _require("recipe", config.get("recipe"), str | None, "a name")
    _require_seed(config)
    options = config.get("settings")
    _require("settings", options, Mapping | None, "an object")
    if options and options.get("delta") is not None:
        require_delta("delta", options["delta"])
    return config


def check_result(result: dict[str, Any]) -> dict[str, Any]:
    """The same; ValueError if it cannot be the result of a run."""
    private = result.get("private")
    _require("private", private, Mapping, "an object")
    assert isinstance(private, Mapping)
    _require_seed(result)
    require_count("steps", private.get("steps"), at_least=0)
    epsilon, accountant = private.get("epsilon"), private.get("accountant")
    is_valid = isinstance(epsilon, int | float) and not isinstance(epsilon, bool) and epsilon >= 0
    if epsilon is not None and not is_valid:  # infinity is valid: with too little noise
        raise ValueError(f"epsilon={epsilon!r} is not valid: expected a number >= 0")
    if accountant is not None:
        accountants.require_name(accountant)
    if private.get("delta") is not None:
        require_delta("delta", private["delta"])
    return result


# stated.json


EXAMPLES = {
    "title": "Triage model, version 3",
    "unit": "one admission to hospital; a patient may have several",
    "data": "admissions of 2025, one record per patient",
    "owner": "Data protection office, Example Hospital",
    "contact": "privacy@hospital.example",
    "purpose": "sorting new admissions by urgency",
}
"""What the user can state in words, with an example of each. No evidence confirms it."""


def check_stated(words: Mapping[str, object]) -> dict[str, str]:
    """What the user states, each on one line; nothing of what is None."""
    unknown = sorted(set(words) - set(EXAMPLES))
    if unknown:
        raise ValueError(f"{unknown[0]!r} cannot be stated: expected {', '.join(EXAMPLES)}")
    found = {}
    for name, example in EXAMPLES.items():
        value = words.get(name)
        if value is None:
            continue
        expected = f"expected plain text, such as {name}={example!r}"
        if not isinstance(value, str):
            kind = type(value).__name__
            raise TypeError(f"{name}={value!r} is not valid: {expected}, got {kind}")
        if not value.strip():
            raise ValueError(
                f"{name}={value!r} is not valid: {expected}. Leave it out to state none"
            )
        found[name] = " ".join(value.split())
    return found


def stated_delta(folder: Path) -> float | None:
    """The delta of the run in a folder, by its settings or its configuration; None without one."""

    def settings(text: str) -> float:
        return RunSettings.from_dict(parse_object(text)).delta

    def config(text: str) -> float | None:
        options = check_config(parse_object(text)).get("settings") or {}
        found: float | None = options.get("delta")
        return found

    found = read_file(folder / SETTINGS, settings, {})
    return read_file(folder / CONFIG, config, {}) if found is None else found


def read_stated(folder: Path) -> dict[str, str]:
    """What was stated of a run so far."""
    return read_file(folder / STATED, lambda text: check_stated(parse_object(text)), {}) or {}


def _require_seed(data: Mapping[str, Any]) -> None:
    seed = data.get("seed")
    if isinstance(seed, bool):
        raise ValueError(f"seed={seed!r} is not valid: expected a whole number, or null")
    _require("seed", seed, int | None, "a whole number, or null")


def _require(name: str, value: Any, kind: Any, words: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name}={value!r} is not valid: expected {words}")


# metrics.jsonl


def check_metrics(line: object, where: str) -> dict[str, Any]:
    """The figures of one epoch as plain data; ValueError if they are none."""
    if not isinstance(line, Mapping):
        raise ValueError(f"{where} is not an epoch: expected a mapping with 'epoch' and figures")
    found: dict[str, Any] = plain(line)
    if not is_number(found.get("epoch")):
        raise ValueError(f"{where} has no number of its epoch: expected 'epoch'")
    for name in ("steps", "epsilon"):
        value = found.get(name)
        is_any_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (value is None or value == "infinity" or is_any_number):
            raise ValueError(f"{where} has {name} {value!r}: expected a number")
    return found


def parse_metrics(text: str, where: str) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """All epochs of a file, and notices; an incomplete last line is left out.

    Raises:
        ValueError: another line is no epoch.
    """

    def parse(line: str, where: str) -> dict[str, Any]:
        try:
            return check_metrics(json.loads(line), where)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON: {error}") from error

    whole, _, rest = text.rpartition("\n")
    lines = [line for line in whole.split("\n") if line.strip()]
    found = [parse(line, f"{where}, line {number}") for number, line in enumerate(lines, start=1)]
    notices = []
    if rest.strip():
        try:
            found.append(parse(rest, where))
        except ValueError:
            notices.append(f"{where} ends in the middle of a line. That line was left out.")
    return tuple(found), tuple(notices)


# checkpoint.pt, of which only plain data is read here: no tensors, and no code is run.


@dataclass(frozen=True)
class CheckpointSummary:
    """How many updates are in a checkpoint's weights, and what its ledger had recorded."""

    steps_taken: int
    ledger: Ledger


def read_checkpoint(path: Path) -> CheckpointSummary:
    """Read a checkpoint without torch; ValueError if no engine saved it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            (name,) = (n for n in names if n.count("/") == 1 and n.endswith("/data.pkl"))
            with archive.open(name) as stream:
                state = _PlainUnpickler(stream).load()
        if not isinstance(state, Mapping):
            raise ValueError("it is not the state of an engine")
        steps = require_count("steps_taken", state["steps_taken"], at_least=0)
        return CheckpointSummary(steps, Ledger.from_dict(state["ledger"]))
    except Exception as error:  # whatever a damaged file makes of archives and pickles
        raise ValueError(f"{type(error).__name__}: {error}") from error


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
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: Any) -> Any:
        return _Empty()


# The whole folder.


@dataclass(frozen=True)
class RunFiles:
    """Everything a run left behind.

    Attributes:
        ledger: what was released.
        settings: of the engine; None if nobody kept them.
        config: what the run was asked to do.
        metrics: one mapping per epoch.
        result: what came out of the run; None if it did not finish.
        checkpoint: from where the run would continue; None if there is none.
        stated: what the user stated in words.
        hashes: SHA-256 of the files that were read.
        notices: what is unusual about the files.
    """

    ledger: Ledger
    settings: RunSettings | None = None
    config: Mapping[str, Any] | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    result: Mapping[str, Any] | None = None
    checkpoint: CheckpointSummary | None = None
    stated: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


def read_run(ledger_path: Path, folder: Path | None) -> RunFiles:
    """Read and check the files of a run.

    Args:
        ledger_path: the ledger, which must exist.
        folder: where the other files are; None for a ledger alone.

    Raises:
        RunFolderError: a file is there and cannot be understood.
        LedgerError: the ledger was altered.
    """
    hashes: dict[str, str] = {}
    if folder is not None and (folder / MODEL).is_file():
        hashes[MODEL] = file_digest(folder / MODEL)

    def read(name: str, parse: Callable[[str], T]) -> T | None:
        return None if folder is None else read_file(folder / name, parse, hashes)

    metrics, notices = read(METRICS, lambda text: parse_metrics(text, METRICS)) or ((), ())
    settings = read(SETTINGS, lambda text: RunSettings.from_dict(parse_object(text)))
    config = read(CONFIG, lambda text: check_config(parse_object(text)))
    result = read(RESULT, lambda text: check_result(parse_object(text)))
    stated = read(STATED, lambda text: check_stated(parse_object(text))) or {}
    checkpoint = None
    if folder is not None and (folder / CHECKPOINT).exists():
        try:
            checkpoint = read_checkpoint(folder / CHECKPOINT)
        except ValueError as error:  # the ledger counts every step without it
            notices += (
                f"{CHECKPOINT} cannot be understood ({error}). It may hold more steps than the"
                " ledger.",
            )
    # Last: a run in progress writes the ledger before everything else, so it must not seem behind.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ledger = Ledger.read(ledger_path)
    return RunFiles(
        ledger,
        settings,
        config,
        metrics,
        result,
        checkpoint,
        stated,
        hashes={LEDGER: file_digest(ledger_path), **hashes},
        # Without the folder: moved elsewhere, it is the same run.
        notices=(
            *(f"{each.message}.".replace(f"{ledger_path}", LEDGER) for each in caught),
            *notices,
        ),
    )


def read_file(path: Path, parse: Callable[[str], T], hashes: dict[str, str]) -> T | None:
    """What a file says; None if it is not there. Its SHA-256 is added to `hashes`."""
    if not path.exists():
        return None
    try:
        content = path.read_bytes()
        found = parse(content.decode())
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{path} cannot be understood ({error}): restore a copy of it"
        ) from error
    hashes[path.name] = hashlib.sha256(content).hexdigest()
    return found
