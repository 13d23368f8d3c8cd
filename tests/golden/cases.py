"""What the golden files hold, and how each is made: shared by the tests and by write.py.

Only public names and the command line are used here, so the files survive a rearranged source.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.cli import main

HERE = Path(__file__).parent
LEDGERS, CHECKPOINTS, RUNS, OUTPUTS, HELP = (
    HERE / name for name in ("ledgers", "checkpoints", "runs", "outputs", "help")
)
FINISHED, INTERRUPTED = RUNS / "finished", RUNS / "interrupted"
WHOLE, CUT = LEDGERS / "whole.jsonl", LEDGERS / "cut.jsonl"
IMAGES = RUNS / "smoke_images.safetensors"
DELTA = 1e-3

# The command line.

LEAVING = {"bench", "figures"}
"""Commands that are not part of what has to stay."""

RUN = ["--sample-rate", "0.01", "--steps", "100", "--delta", "1e-5"]
SMOKE = ["digits", "--smoke", "--accountant", "rdp"]
COMMANDS = {
    "epsilon": ["epsilon", "--noise-multiplier", "1.1", *RUN],
    "epsilon-truncated": [
        *["epsilon", "--noise-multiplier", "1", "--batch-size", "32", "--dataset-size", "1000"],
        *["--sampling", "poisson", "--largest-batch", "64", "--epochs", "2", "--delta", "1e-4"],
    ],
    "epsilon-shuffled": [
        *["epsilon", "--noise-multiplier", "4", "--batch-size", "100", "--dataset-size", "1000"],
        *["--sampling", "shuffled", "--adjacency", "replace-one", "--epochs", "3"],
        *["--delta", "1e-4"],
    ],
    "delta": ["epsilon", "--noise-multiplier", "1.1", *RUN[:4], "--epsilon", "0.5"],
    "calibrate": ["calibrate", "--epsilon", "2", *RUN],
    "tune-cost": ["tune-cost", "--noise-multiplier", "1.1", *RUN],
    "ledger": ["ledger", str(WHOLE), "--delta", "1e-3"],
    "ledger-of-a-run": ["ledger", str(FINISHED / "ledger.jsonl"), "--delta", "1e-3"],
    "check-good": ["check", f"{HERE / 'targets.py'}:good"],
    "check-mixing": ["check", f"{HERE / 'targets.py'}:mixing"],
    "plan": ["plan", f"{HERE / 'targets.py'}:planned", "--memory", "100MB"],
    "recipes": ["recipes"],
    "recipe": ["recipes", "digits"],
    "data-list": ["data", "list"],
    "report": ["report", str(FINISHED)],
    "report-of-an-interrupted-run": ["report", str(INTERRUPTED)],
    "train": ["train", *SMOKE, "--seed", "0", "--baseline", "--out", "run"],
    "compare": ["compare", *SMOKE, "--seeds", "1", "--clipping", "auto-s,abadi"],
    "sweep": ["sweep", *SMOKE, "--over", "lr=0.1,0.2", "--seeds", "1"],
    "audit": ["audit", *SMOKE, "--seed", "0", "--canaries", "100", "--guesses", "20"],
}
"""Arguments of commands with --json, by the name of their file."""

OF_FILES = {"made_at"}
OF_RUNS = set(
    # Times, dates, places and random identifiers.
    "seconds finished begun ledger_id model_sha256 folder report path fetched damaged head"
    # What a short training in single precision, or an attack on it, happens to reach.
    " test_loss test_accuracy mean correct rates bounds lower_bound p_value".split()
)
"""Keys whose values differ between machines or runs: only their types are kept."""

_VARYING = [
    (re.compile(re.escape(str(HERE))), "<golden>"),
    (re.compile(r"\d{4}-\d\d-\d\d(.{1,2}\d\d:\d\d(:\d\d)?(\+\d\d:\d\d| UTC|Z)?)?"), "<time>"),
    (re.compile(r"(?<![\d.])\d+\.\d+\.\d+(\+\w+)?(?![\d.])"), "<version>"),
]


def run(*arguments: str) -> Result:
    """One command, in this process, on a terminal of 100 columns without colours."""
    env = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": None}
    return CliRunner().invoke(main, list(arguments), prog_name="quietgrad", env=env)


def output(name: str) -> Any:
    """What a command prints with --json, as the golden files keep it, and its exit code."""
    result = run(*COMMANDS[name], "--json")
    assert result.stdout, result.output
    varying = OF_FILES if name.startswith(("report", "ledger")) else OF_RUNS
    return {"exit_code": result.exit_code, "json": masked(json.loads(result.stdout), varying)}


def masked(value: Any, varying: set[str], key: str = "") -> Any:
    """A value of JSON without what varies between machines, days and versions."""
    if isinstance(value, dict) and key not in varying:
        return {name: masked(each, varying, name) for name, each in value.items()}
    if key in varying and value is not None:
        return f"<{type(value).__name__}>"
    if isinstance(value, list):
        return [masked(each, varying) for each in value]
    if isinstance(value, str) and key not in ("version", "file"):
        for pattern, name in _VARYING:
            value = pattern.sub(name, value)
    return value


def differences(found: Any, expected: Any, at: str = "") -> Iterator[str]:
    """Where two values of JSON differ by more than rounding, one line for each place."""
    if isinstance(found, dict) and isinstance(expected, dict):
        if list(found) != list(expected):
            yield f"{at}: keys are {list(found)}, expected {list(expected)}"
        for key in expected.keys() & found.keys():
            yield from differences(found[key], expected[key], f"{at}.{key}")
    elif isinstance(found, list) and isinstance(expected, list):
        if len(found) != len(expected):
            yield f"{at}: {len(found)} entries, expected {len(expected)}"
        for index, pair in enumerate(zip(found, expected, strict=False)):
            yield from differences(*pair, f"{at}[{index}]")
    elif isinstance(found, float) and isinstance(expected, float):
        # Searches for noise and discretized losses carry rounding on to more than the last digit.
        if not math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-12):
            yield f"{at}: {found!r}, expected {expected!r}"
    elif type(found) is not type(expected) or found != expected:
        yield f"{at}: {found!r}, expected {expected!r}"


def help_texts() -> dict[str, str]:
    """What --help prints of every command, by the name of its file."""
    return {"-".join(["quietgrad", *words]): _help(words) for words in _commands(main, [])}


def _commands(command: click.Command, words: list[str]) -> Iterator[list[str]]:
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in set(command.list_commands(context)) - LEAVING:
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, [*words, name])


def _help(words: list[str]) -> str:
    result = run(*words, "--help")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    if not words:
        lines = [line for line in lines if not set(line.split()[:1]) & LEAVING]
    return "\n".join(line.rstrip() for line in lines) + "\n"


# Ledgers.


def ledger_events() -> list[list[Any]]:
    """The releases of two sessions, of every kind of sampling."""
    acc = qg.accounting
    event = acc.GaussianEvent
    return [
        [
            event(1.5, acc.Poisson(1e-05), 2),
            event(0.30000000000000004, acc.TruncatedPoisson(0.1, largest=20, population=100)),
            event(1.5, acc.Poisson(0.01), 3),
        ],
        [event(2.0, acc.Passes(length=3), 1, 0), event(5.0, acc.FullBatch(), 2)],
    ]


def ledger_facts(book: qg.accounting.Ledger) -> dict[str, Any]:
    """What a ledger says, as JSON keeps it."""
    return {
        "content": json.loads(json.dumps(book.to_dict())),
        "steps": book.steps,
        "epsilon": book.epsilon(DELTA, accountant="rdp"),
    }


# Checkpoints of engines.

ENGINES: dict[str, dict[str, Any]] = {
    "poisson": {"physical_batch_size": 5},
    "truncated": {"sampling": "poisson:20", "noise": "fast", "noise_multiplier": 2.0},
    "shuffled": {"sampling": "shuffled", "adjacency": "replace-one", "grouping": "layer-wise"},
    "adaptive": {"radius": qg.AdaptiveRadius(count_noise=2.0), "clipping": "abadi"},
    "momentum": {"momentum": qg.InnerOuter()},
}
STEPS_BEFORE, STEPS_AFTER = 4, 3


def made_engine(name: str) -> tuple[nn.Module, qg.PrivacyEngine]:
    """A small model and its engine, always the same."""
    count = 24
    # Data and weights come from formulas: generators may differ between versions of torch.
    x = torch.sin(torch.arange(count * 3, dtype=torch.float64)).reshape(count, 3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_(torch.cos(3 * values).reshape(parameter.shape))
    given = {"batch_size": 8, "delta": DELTA, "seed": 0, "epochs": 3, "accountant": "rdp"}
    if "noise_multiplier" not in ENGINES[name]:
        given["epsilon"] = 3.0
    engine = qg.PrivacyEngine(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.05),
        TensorDataset(x, torch.arange(count) % 2),
        **given | ENGINES[name],
    )
    return model, engine


def train(engine: qg.PrivacyEngine, model: nn.Module, steps: int) -> None:
    """Exactly this many steps, over as many epochs as it takes."""
    taken = 0
    while taken < steps:
        for batch in engine.batches():
            for x, y in batch:
                # A function rather than a tensor: inner momentum computes losses several times.
                engine.backward(partial(_losses, model, x, y))
            engine.step()
            taken += 1
            if taken == steps:
                break


def _losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def continued(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where an engine is that has loaded its checkpoint, and where it is some steps later."""
    model, engine = made_engine(name)
    engine.load_state_dict(torch.load(CHECKPOINTS / f"{name}.pt", weights_only=True))
    loaded = engine_facts(engine, model)
    train(engine, model, STEPS_AFTER)
    return loaded, engine_facts(engine, model)


def engine_facts(engine: qg.PrivacyEngine, model: nn.Module) -> dict[str, Any]:
    """Where an engine and its model are, as JSON keeps it."""
    return {
        "steps_taken": engine.steps_taken,
        "epochs_completed": engine.epochs_completed,
        "planned_steps": engine.planned_steps,
        "has_budget": engine.has_budget,
        "noise_multiplier": engine.noise_multiplier,
        "epsilon": engine.epsilon(),
        "ledger_steps": engine.ledger.steps,
        "weights": [flatten(p) for p in model.parameters()],
    }


def flatten(value: Tensor) -> list[float]:
    flat: list[float] = value.detach().flatten().tolist()
    return flat


# Folders of runs.

TRAIN = ["train", "digits", "--smoke", "--epochs", "2", "--seed", "0", "--accountant", "rdp"]


@contextmanager
def data_of_the_runs() -> Iterator[None]:
    """A run goes on with its own data only, and processors differ in the last digits of normals."""
    images, draw = load_file(IMAGES)["images"], torch.randn

    def randn(*shape: Any, **options: Any) -> Tensor:
        drawn = draw(*shape, **options)
        if drawn.shape != images.shape:
            return drawn
        torch.testing.assert_close(drawn, images)
        return images.clone()

    with patch.object(torch, "randn", randn):
        yield


def resumed(folder: Path) -> dict[str, Any]:
    """What the interrupted run says of itself when a copy of it has been run to its end."""
    shutil.copytree(INTERRUPTED, folder)
    done = run("train", "digits", "--out", str(folder), "--resume", "--json")
    assert done.exit_code == 0, done.output
    return folder_facts(folder, json.loads(done.stdout))


def folder_facts(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """What a finished run says of itself, without what rounding or the clock decides."""
    private = result["private"]
    kept = ("steps", "epsilon", "noise_multiplier", "ledger_steps", "lost_steps", "sample_rate")
    model = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "private": {key: private[key] for key in kept},
        "sums": {name: float(value.double().sum()) for name, value in model.items()},
    }
