"""The run folder of a training loop of one's own: what `quietgrad train` leaves for a recipe."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from quietgrad._files import replace_file
from quietgrad._version import __version__
from quietgrad.accounting.accountants import is_guarantee
from quietgrad.accounting.ledger import Ledger
from quietgrad.report.assess import statement_of_folder
from quietgrad.report.evidence import AuditFindings
from quietgrad.report.page import is_report, write
from quietgrad.report.statement import Statement
from quietgrad.runs import schema
from quietgrad.runs.folder import RunFolder
from quietgrad.runs.schema import RunFolderError, check_metrics, check_stated, writing

if TYPE_CHECKING:
    from quietgrad.engine.engine import PrivacyEngine

_LOOP = "own"  # marks the configuration of such a run
_ALLOWED = (schema.CHECKPOINT, schema.STATED)  # what the user's program may have put there before


def save_run(
    engine: "PrivacyEngine",
    model: nn.Module,
    path: Path,
    *,
    weights: bool,
    is_split: bool,
    audit: AuditFindings | None,
    metrics: Iterable[Mapping[str, Any]] | None,
    stated: Mapping[str, str | None],
) -> Statement:
    """See `PrivacyEngine.save_run`.

    Args:
        engine: of the run.
        model: that it trains.
        path: of the folder.
        weights: whether they are written.
        is_split: whether this process has only a part of them.
        audit: what an audit found.
        metrics: a mapping for each epoch; None keeps what is there.
        stated: in the user's words.
    """
    words = check_stated(stated)
    lines = (
        None
        if metrics is None
        else [check_metrics(line, f"metrics[{index}]") for index, line in enumerate(metrics)]
    )
    if weights and is_split:
        raise RunFolderError(
            "the model is spread over several ranks, and its weights cannot be written as one file:"
            " pass weights=False, and keep them with engine.save()"
        )
    folder = RunFolder(path)
    if not engine.is_leader:
        return engine.report(audit=audit, metrics=lines or (), **words)
    _take(folder, engine)
    with writing(folder.ledger):
        if not _is_own_file(folder, engine):
            engine.ledger.copy_to(folder.ledger)
    folder.describe(engine.settings())
    if lines is not None:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with writing(path / schema.METRICS):
            replace_file(path / schema.METRICS, lambda stream: stream.write(content))
    if words:
        schema.write_json(path / schema.STATED, {**schema.read_stated(path), **words})
    if weights:
        folder.save_model(model)
    else:
        folder.drop_model()
    folder.finish({"ledger_id": engine.ledger.id, "private": _result(engine, path)})
    statement = statement_of_folder(path, audit=audit)
    write(statement, path / schema.REPORT)
    return statement


def _take(folder: RunFolder, engine: "PrivacyEngine") -> None:
    """Begin the folder, or go on with what this run left in it before."""
    if folder.has_run:
        if folder.config.get("loop") != _LOOP or _ledger_id(folder) != engine.ledger.id:
            raise RunFolderError(
                f"{folder.path} holds another run: choose another folder. Its ledger says what was"
                " spent, so it is not overwritten"
            )
        return
    taken = [
        each.name
        for each in folder.path.glob("*")
        if each.name in (schema.LEDGER, *schema.LATER_FILES) and each.name not in _ALLOWED
    ]
    if _is_own_file(folder, engine):
        taken.remove(schema.LEDGER)
    if schema.REPORT in taken and is_report(folder.path / schema.REPORT):
        taken.remove(schema.REPORT)
    if taken:
        raise RunFolderError(
            f"{folder.path} holds {', '.join(sorted(taken))}, which this run did not write: choose"
            " another folder. It would be overwritten"
        )
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder.path} cannot be made ({error}): expected a place for a folder"
        ) from error
    schema.write_json(
        folder.path / schema.CONFIG,
        {"quietgrad": __version__, "recipe": None, "loop": _LOOP, "begun": schema.now()},
    )


def _is_own_file(folder: RunFolder, engine: "PrivacyEngine") -> bool:
    """Whether the ledger in the folder is the file that the engine records in."""
    place = engine.ledger.path
    return place is not None and folder.ledger.exists() and folder.ledger.samefile(place)


def _ledger_id(folder: RunFolder) -> str | None:
    return Ledger.read(folder.ledger).id if folder.ledger.exists() else None


def _result(engine: "PrivacyEngine", path: Path) -> dict[str, Any]:
    """What came out of the run, as that of a recipe has it."""
    settings = engine.settings()
    progress, accountant = settings["progress"], settings["accountant"]
    own = progress["ledger_steps"] - progress["steps_by_others"]
    return {
        **_last_scores(path, engine.steps_taken),
        "steps": engine.steps_taken,
        "epsilon": engine.epsilon(),
        "target_epsilon": settings["target_epsilon"],
        "delta": engine.delta,
        "noise_multiplier": engine.noise_multiplier,
        "accountant": accountant,
        "is_guarantee": is_guarantee(accountant) and not settings["seeded"],
        "adjacency": engine.ledger.adjacency,
        "noise": engine.noise,
        "sample_rate": engine.sample_rate,
        "ledger_steps": engine.ledger.steps,
        "lost_steps": own - engine.steps_taken,
        "groups": len(settings["groups"]),
        "sensitivity": engine.sensitivity,
    }


def _last_scores(path: Path, steps: int) -> dict[str, Any]:
    """The figures of the last epoch, if they are of these weights."""
    place = path / schema.METRICS
    if not place.exists():
        return {}
    lines, _ = schema.parse_metrics(place.read_text(), schema.METRICS)
    last = lines[-1] if lines else {}
    if last.get("steps", steps) != steps:
        return {}
    return {name: last[name] for name in last if name not in ("epoch", "steps", "epsilon")}
