"""Every step says where its noise came from, and seeded ones are said to protect nobody."""

import json
import warnings

import pytest
from click.testing import CliRunner

from quietgrad.accounting import GaussianEvent, Ledger, Poisson
from quietgrad.cli import main

from .helpers import attach, mlp, train


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({"seed": None}, "secure"),
        ({"seed": None, "noise": "fast"}, "fast"),
        ({"seed": 0}, "seeded"),
        ({"seed": 0, "noise": "fast"}, "seeded"),
    ],
)
def test_the_source_is_recorded(options, source, tmp_path):
    model = mlp()
    engine = attach(model, ledger=tmp_path / "ledger.jsonl", **options)
    train(engine, model, steps=2)
    engine.ledger.close()
    for ledger in (engine.ledger, Ledger.read(tmp_path / "ledger.jsonl")):
        assert [(event.noise, event.steps) for event in ledger.events] == [(source, 2)]


def test_steps_with_noise_from_elsewhere_are_told_apart():
    ledger = Ledger()
    for noise in ("secure", "secure", "fast", "seeded"):
        ledger.record(GaussianEvent(1.0, Poisson(0.1), noise=noise))
    assert [(e.noise, e.steps) for e in ledger.events] == [
        ("secure", 2),
        ("fast", 1),
        ("seeded", 1),
    ]
    again = Ledger.from_dict(ledger.to_dict())
    assert [event.noise for event in again.events] == ["secure", "fast", "seeded"]
    alike = Ledger([GaussianEvent(1.0, Poisson(0.1), 4)])
    assert ledger.epsilon(1e-5) == alike.epsilon(1e-5)  # the source changes no epsilon


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match=r"noise='loud' is not valid: expected one of 'secure'"):
        GaussianEvent(1.0, Poisson(0.1), noise="loud")


def test_a_seed_is_warned_of_where_the_engine_is_made():
    with pytest.warns(UserWarning, match=r"seed=3: .*protects nobody") as caught:
        attach(mlp(), seed=3)
    assert next(warning.filename for warning in caught).endswith("helpers.py")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(mlp(), seed=None)


@pytest.mark.parametrize(
    ("noise", "is_guarantee", "words"),
    [
        ("secure", True, "(upper bound)"),
        ("fast", True, "not cryptographic"),
        ("seeded", False, "NOT a guarantee"),
    ],
)
def test_the_command_says_what_an_epsilon_is_worth(noise, is_guarantee, words, tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    ledger.record(GaussianEvent(2.0, Poisson(0.1), 5, noise=noise))
    ledger.close()
    arguments = ["ledger", str(path), "--delta", "1e-5"]
    printed = CliRunner().invoke(main, arguments)
    assert printed.exit_code == 0
    assert noise in printed.output
    assert words in printed.output
    report = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert {each["is_guarantee"] for each in report["epsilon"].values()} == {is_guarantee}
    assert [event["noise"] for event in report["events"]] == [noise]
