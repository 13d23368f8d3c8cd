"""Commands are imported when asked for, so that accounting starts without torch."""

import subprocess
import sys

import pytest

from quietgrad.cli import COMMANDS, main

from .helpers import DELTA, NOISE, QUICK, run, text_of

CALLS = [
    ["epsilon", *NOISE, *QUICK, *DELTA],
    ["calibrate", "--epsilon", "1", *QUICK, *DELTA],
    ["tune-cost", *NOISE, *QUICK, *DELTA],
    ["--help"],
]


def test_accounting_and_help_load_no_torch():
    script = (
        "import sys\n"
        "from quietgrad.cli import main\n"
        f"for call in {CALLS!r}:\n"
        "    main(call, standalone_mode=False)\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'matplotlib', 'sklearn'}, loaded\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "Commands:" in process.stdout


def test_the_module_can_be_run():
    command = [sys.executable, "-m", "quietgrad.cli", "epsilon", "--help"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--noise-multiplier" in process.stdout


def test_help_lists_every_command():
    output = run("--help").output
    for name, sentence in COMMANDS.items():
        assert name in output
        assert sentence in " ".join(output.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name):
    command = main.get_command(None, name)
    assert command.name == name
    assert command.help.splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize(("typed", "meant"), [("epsilom", "epsilon"), ("trian", "train")])
def test_an_unknown_command_is_refused_with_the_nearest(typed, meant):
    result = run(typed)
    assert result.exit_code == 2
    assert f"unknown command '{typed}'. Did you mean '{meant}'?" in text_of(result)
    assert all(name in result.output for name in COMMANDS)


def test_an_unknown_option_is_still_told_as_one():
    result = run("--vresion")
    assert result.exit_code == 2
    assert "No such option" in text_of(result)
