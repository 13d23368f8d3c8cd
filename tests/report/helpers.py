"""A small run and the folder it leaves behind."""

import json
import shutil

import torch
from click.testing import CliRunner
from torch import nn
from torch.utils.data import TensorDataset

from quietgrad import PrivacyEngine
from quietgrad.cli import main

RECORDS, BATCH, DELTA = 40, 8, 1e-3
HARMLESS = ("smoke run", "fast kind", "Epsilon is above")


def engine_of(**options):
    """An engine without a seed, and its model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(RECORDS, 3), torch.randint(2, (RECORDS,)))
    given = {"batch_size": BATCH, "delta": DELTA}
    if "epsilon" not in options:
        given["noise_multiplier"] = 1.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivacyEngine(model, optimizer, data, **given | options), model


def trained(epochs=1, **options):
    """The engine after so many epochs, detached."""
    engine, model = engine_of(**options)
    for _ in range(epochs):
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
            engine.step()
    engine.detach()
    return engine


def write_run(path, *, save=False, **options):
    """A finished run in a folder, with its checkpoint if that is saved."""
    path.mkdir(parents=True)
    engine = trained(ledger=path / "ledger.jsonl", **options)
    if save:
        torch.save(engine.state_dict(), path / "checkpoint.pt")
    engine.ledger.close()
    lines = [
        {"epoch": 0, "steps": 0, "test_accuracy": 0.5, "epsilon": 0.0},
        {"epoch": 1, "steps": 5, "test_accuracy": 0.75, "epsilon": engine.epsilon()},
    ]
    files = {
        "settings.json": engine.settings(),
        "config.json": {
            "recipe": "demo",
            "seed": options.get("seed"),
            "settings": {"delta": DELTA},
        },
        "result.json": {
            "private": {
                "steps": engine.steps_taken,
                "epsilon": engine.epsilon(),
                "delta": engine.delta,
                "noise_multiplier": engine.noise_multiplier,
                "accountant": options.get("accountant", "pld"),
            },
            "non_private": {"steps": 5},
        },
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def copied(run, place):
    return shutil.copytree(run, place)


def edited(path, change):
    """Change the JSON object in a file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def facts(statement):
    """All rows of all tables, by name."""
    return {fact.name: fact.value for section in statement.sections for fact in section.facts}


def audit(**changes):
    """What `quietgrad audit --json` prints, in short."""
    found = {
        "violated": False,
        "claimed_epsilon": 3.0,
        "delta": 1e-5,
        "lower_bound": 0.75,
        "p_value": 0.4,
        "confidence": 0.95,
        "canaries": 200,
        "runs": 1,
        "kind": "gradient",
        "seeded": False,
    }
    return found | changes


def smoke(folder, recipe, *options, exit_code=0):
    """A small run of the train command."""
    asked = ["train", recipe, "--smoke", "--json", "--out", str(folder), *options]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == exit_code, result.output
    return folder


def alarms(verdict):
    """What is found in a folder, but for what may be remarked upon in any real one."""
    return [said for said in verdict.warnings if not any(words in said for words in HARMLESS)]
