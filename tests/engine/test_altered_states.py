"""A state that was damaged or edited cannot make a run spend more than its target."""

import copy

import pytest

from quietgrad.engine import checkpoint as states
from quietgrad.errors import EngineStateError

from .helpers import attach, mlp, train

TARGET = {"epsilon": 2.0, "epochs": 3, "seed": None}


def trained(**options):
    model = mlp()
    engine = attach(model, **TARGET | options)
    train(engine, model, steps=2)
    return engine.state_dict()


def with_its_digest(state):
    """As someone would edit it who knows how it is made."""
    return {**state, "digest": states._digest(state)}


ALTERED = {
    "noise": lambda state: state["budget"].update(noise_multiplier=0.01),
    "recorded": lambda state: (state["budget"].update(recorded=1), state.update(steps_taken=1)),
    "lost": lambda state: state["budget"].update(lost=1),
    "event": lambda state: state["ledger"]["events"][0].update(noise_multiplier=90.0),
    "source": lambda state: state["ledger"]["events"][0].update(noise="fast"),
    "place": lambda state: state["position"].update({"pass": 7}),
}


@pytest.mark.parametrize("what", list(ALTERED))
def test_what_was_altered_is_found(what):
    state = copy.deepcopy(trained())
    ALTERED[what](state)
    engine = attach(mlp(), **TARGET)
    with pytest.raises(EngineStateError, match="altered since it was saved"):
        engine.load_state_dict(state)
    assert engine.ledger.steps == 0


@pytest.mark.parametrize(
    ("what", "sampling"), [("noise", "poisson"), ("noise", "shuffled"), ("recorded", "poisson")]
)
def test_too_little_noise_for_the_target_is_refused_whatever_the_digest_says(what, sampling):
    options = {"sampling": sampling, "adjacency": "replace-one"}
    state = copy.deepcopy(trained(**options))
    ALTERED[what](state)
    engine = attach(mlp(), **TARGET | options)
    with pytest.raises(EngineStateError, match="more than the target"):
        engine.load_state_dict(with_its_digest(state))


def test_noise_that_is_given_must_be_the_states():
    state = copy.deepcopy(trained(epsilon=None, noise_multiplier=1.0))
    state["budget"]["noise_multiplier"] = 0.5
    with pytest.raises(EngineStateError, match=r"noise_multiplier=0\.5.*begun with 1"):
        attach(mlp(), **TARGET | {"epsilon": None, "noise_multiplier": 1.0}).load_state_dict(
            with_its_digest(state)
        )


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
@pytest.mark.parametrize("steps", [0, 2, 3, 9])
def test_every_state_of_a_plan_fits_its_target(sampling, steps):
    options = TARGET | {"sampling": sampling, "adjacency": "replace-one"}
    model = mlp()
    engine = attach(model, **options)
    train(engine, model, steps=steps)
    again = mlp()
    resumed = attach(again, **options)
    resumed.load_state_dict(engine.state_dict())
    train(resumed, again, steps=9 - steps)
    assert not resumed.has_budget
    assert resumed.epsilon() <= 2.0


def test_a_state_kept_with_a_file_is_not_loaded_without_one(tmp_path):
    model = mlp()
    engine = attach(model, ledger=tmp_path / "ledger.jsonl")
    train(engine, model, steps=1)
    state = engine.state_dict()
    with pytest.raises(EngineStateError, match=r"kept its ledger in a file.*Pass ledger="):
        attach(mlp()).load_state_dict(state)
    engine.load_state_dict(state)  # its own
    engine.detach()
    engine.ledger.close()
    resumed = attach(mlp(), ledger=tmp_path / "ledger.jsonl")
    resumed.load_state_dict(state)
    assert resumed.steps_taken == 1
    resumed.ledger.close()
