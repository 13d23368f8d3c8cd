"""What cannot be trained is refused before a folder is made: one line, exit code 2."""

import dataclasses

import pytest

from quietgrad import recipes

from .helpers import assert_refused, run

NUMBERS = [
    ("--views", "0", "views=0"),
    ("--views", "-1", "views=-1"),
    ("--epochs", "0", "epochs=0"),
    ("--lr", "nan", "learning_rate=nan"),
    ("--lr", "inf", "learning_rate=inf"),
    ("--lr", "-1", "learning_rate=-1"),
    ("--epsilon", "-1", "epsilon=-1"),
    ("--epsilon", "nan", "epsilon=nan"),
    ("--delta", "2", "delta=2"),
    ("--radius", "0", "radius=0"),
    ("--momentum", "nan", "momentum=nan"),
    ("--momentum", "2", "momentum=2"),
    ("--weight-decay", "nan", "weight_decay=nan"),
    ("--weight-decay", "inf", "weight_decay=inf"),
    ("--weight-decay", "-1", "weight_decay=-1"),
    ("--batch-size", "0", "batch_size=0"),
    ("--batch-size", "1000", "batch_size=1000"),
    ("--physical-batch-size", "0", "physical_batch_size=0"),
    ("--limit", "0", "limit=0"),
    ("--limit", "-3", "limit=-3"),
    ("--limit", "1000", "limit=1000"),
    ("--optimizer", "sdg", "Did you mean 'sgd'"),
    ("--stability", "-1", "-1"),
    ("--inner-steps", "-1", "-1"),
    ("--inner-momentum", "0.3", "--inner-steps"),
    ("--accountant", "pdl", "pld"),
    ("--sampling", "poison", "poisson"),
    ("--noise", "loud", "loud"),
    ("--grouping", "none-layer", "none-layer"),
    ("--adjacency", "add", "add"),
]
COMMANDS = {"train": [], "compare": ["--clipping", "auto-s"], "sweep": ["--over", "lr=0.1,0.2"]}


@pytest.mark.parametrize(("option", "value", "message"), NUMBERS)
@pytest.mark.parametrize("command", list(COMMANDS))
def test_an_impossible_value_is_refused(command, option, value, message, tmp_path):
    over = COMMANDS[command]
    if command == "sweep" and option == "--lr":
        over = ["--over", "radius=1"]
    out = tmp_path / "out"
    result = run(command, "digits", "--smoke", *over, option, value, "--out", str(out))
    assert_refused(result, message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["lr=nan"], "learning_rate=nan"),
        (["lr=-1"], "learning_rate=-1"),
        (["radius=0,1"], "radius=0"),
        (["epsilon=-1,1"], "epsilon=-1"),
        (["momentum=nan"], "momentum=nan"),
        (["momentum=0,2"], "momentum=2"),
        (["weight-decay=inf"], "weight_decay=inf"),
        (["lr=0.1", "stability=-1"], "-1"),
        (["inner-momentum"], "--inner-steps"),
    ],
    ids=str,
)
def test_an_impossible_value_to_sweep_over_is_refused(over, message, tmp_path):
    given = [part for axis in over for part in ("--over", axis)]
    result = run("sweep", "digits", "--smoke", *given, "--out", str(tmp_path / "out"))
    assert_refused(result, message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "digits", "--momentum", "0.5", "--optimizer", "adam"], "choose --optimizer sgd"),
        (["compare", "digits", "--momentum", "0.5", "--optimizer", "adam"], "leave --momentum out"),
        (["sweep", "digits", "--over", "momentum", "--optimizer", "adam"], "momentum"),
        (["audit", "digits", "--momentum", "0.5", "--optimizer", "adam"], "momentum"),
        (["audit", "digits", "--inner-momentum", "0.3"], "add --inner-steps"),
        (["train", "digits", "--inner-momentum", "0.3", "--inner-steps", "0"], "--inner-steps"),
        (["compare", "digits", "--inner-steps", "2", "--optimizer", "adam"], "is for sgd"),
        (["compare", "digits", "--stability", "0.1"], "'abadi' has no constant"),
        (["train", "adult", "--views", "2"], "'adult' has no random views"),
        (["compare", "adult", "--views", "2"], "'adult' has no random views"),
        (["sweep", "adult", "--views", "2", "--over", "lr"], "'adult' has no random views"),
    ],
    ids=" ".join,
)
def test_an_option_without_effect_is_refused(command, message, tmp_path):
    out = [] if command[0] == "audit" else ["--out", str(tmp_path / "out")]
    assert_refused(run(*command, "--smoke", *out), message)
    assert list(tmp_path.iterdir()) == []


def test_another_optimizer_leaves_the_recipes_own_momentum_behind():
    """It was not asked for here."""
    assert recipes.load("digits").changed(optimizer="adam").settings.optimizer == "adam"
    assert recipes.load("digits").changed(inner_steps=2, inner_momentum=0.3).settings.views == 1


def test_settings_are_checked_wherever_they_are_made():
    settings = recipes.load("digits").settings
    for name, value in {"momentum": 1.0, "views": True, "ordinary_learning_rate": 0.0}.items():
        with pytest.raises(ValueError, match=f"{name}="):
            dataclasses.replace(settings, **{name: value})


def test_a_constant_for_the_function_that_has_one(tmp_path):
    """The recipe's own clipping function need not take what the chosen one takes."""
    options = ["--smoke", "--accountant", "gdp", "--over", "stability=0.1", "--clipping", "psac"]
    assert run("sweep", "digits", *options).exit_code == 0


def test_a_run_is_resumed_with_a_part_of_what_it_was_begun_with(tmp_path):
    """Alone it would have no effect; the run in the folder has what it takes."""
    kept = ["--smoke", "--accountant", "gdp", "--seed", "0", "--out", str(tmp_path / "run")]
    inner = ["--inner-momentum", "0.3"]
    assert run("train", "digits", *kept, "--inner-steps", "2", *inner).exit_code == 0
    again = run("train", "digits", *kept, *inner, "--resume")
    assert again.exit_code == 0, again.output
