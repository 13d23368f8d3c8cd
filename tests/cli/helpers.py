"""Running commands as a user does, and the run that most tests ask about."""

import json

from click import Command
from click.testing import CliRunner, Result

from quietgrad.cli import main

# DP-SGD on 60,000 samples in batches of 256 for 60 epochs, as in many papers.
SAMPLING = ["--sample-rate", "0.00426667", "--steps", "14040"]
NOISE = ["--noise-multiplier", "1.1"]
DELTA = ["--delta", "1e-5"]
SIZES = ["--batch-size", "256", "--dataset-size", "60000"]
# A run of which little is to be computed.
QUICK = ["--sample-rate", "0.1", "--steps", "3"]


def run(*arguments: str, columns: int = 120, program: Command = main) -> Result:
    return CliRunner().invoke(program, list(arguments), env={"COLUMNS": str(columns)})


def train(*arguments: object) -> Result:
    """`quietgrad train digits`."""
    return run("train", "digits", *map(str, arguments))


def run_json(*arguments: str, program: Command = main) -> dict:
    """The one object on stdout; fails if anything else is there, or if it is not strict JSON."""
    result = run(*arguments, "--json", program=program)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=_refuse)


def text_of(result: Result) -> str:
    """Everything printed, as if no line had been too long."""
    return " ".join(result.output.split())


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert message in text_of(result)
    assert "Traceback" not in result.output
    assert result.stdout == ""


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
