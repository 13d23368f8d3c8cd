"""Several phases, several engines, schedules and samplers: one ledger that covers them all."""

import copy

import pytest
import torch

from quietgrad import accounting
from quietgrad.accounting import FullBatch, Ledger, Passes, Poisson, TruncatedPoisson
from quietgrad.errors import BudgetExhaustedError, LedgerError
from quietgrad.noise import SecureNoise

from .helpers import attach, flat, losses, mlp, train


def test_two_phases_are_composed():
    ledger = Ledger()
    model = mlp()
    first = attach(model, ledger=ledger, batch_size=8)
    train(first, model, steps=3)
    first.detach()
    second = attach(model, ledger=ledger, batch_size=4, noise_multiplier=2.0)
    train(second, model, steps=2)
    assert [(e.noise_multiplier, e.sampling, e.steps) for e in ledger.events] == [
        (1.0, Poisson(8 / 24), 3),
        (2.0, Poisson(4 / 24), 2),
    ]
    assert (
        second.epsilon()
        == ledger.epsilon(second.delta)
        > Ledger(ledger.events[:1]).epsilon(second.delta)
    )


def test_a_target_is_for_everything_in_the_ledger():
    ledger = Ledger()
    model = mlp()
    first = attach(model, ledger=ledger, epsilon=1.0, epochs=1)
    train(first, model, steps=3)
    first.detach()
    second = attach(model, ledger=ledger, epsilon=2.0, epochs=1)
    with pytest.warns(UserWarning, match=r"holds 3 steps already.*of the target 2"):
        train(second, model, steps=3)
    assert 1.99 <= second.epsilon() <= 2.0
    second.detach()
    for spent in (1.5, 2.0):  # what rounding left of the second target is no room
        third = attach(model, ledger=ledger, epsilon=spent, epochs=1)
        with pytest.raises(ValueError, match="already spends"):
            third.batches()
        third.detach()


def test_two_engines_at_once_cannot_spend_more_than_either_target():
    ledger = Ledger()
    models = mlp(0), mlp(1)
    options = {"ledger": ledger, "epsilon": 2.0, "epochs": 4, "accountant": "rdp"}
    engines = [attach(model, **options) for model in models]
    with pytest.raises(BudgetExhaustedError, match="other engines"):
        for _ in range(12):
            for engine, model in zip(engines, models, strict=True):
                train(engine, model, steps=1)
    assert ledger.epsilon(engines[0].delta) <= 2.0
    assert ledger.steps > 2


def test_a_noise_schedule_is_recorded_step_by_step_and_keeps_the_target():
    def schedule(step):
        return 2.0 if step < 3 else 1.0

    model = mlp()
    engine = attach(model, epsilon=2.0, epochs=2, noise_schedule=schedule)
    train(engine, model, steps=6)
    sigma = engine.noise_multiplier
    assert [(e.noise_multiplier, e.steps) for e in engine.ledger.events] == [
        (2 * sigma, 3),
        (sigma, 3),
    ]
    assert 1.99 <= engine.epsilon() <= 2.0


def test_the_schedule_scales_the_noise_that_is_added():
    moves = {}
    for factor in (1.0, 3.0):
        model = mlp()
        engine = attach(model, noise_multiplier=100.0, noise_schedule=lambda _, f=factor: f)
        before = flat(model)
        train(engine, model, steps=1)
        moves[factor] = flat(model) - before
    assert torch.allclose(moves[3.0], 3 * moves[1.0], rtol=0.2)


def test_a_schedule_that_changes_its_mind_is_held_to_its_first_answer():
    answers = iter([4.0] * 6 + [0.01] * 100)
    model = mlp()
    schedule = {"noise_schedule": lambda step: next(answers), "accountant": "rdp"}
    engine = attach(model, epsilon=2.0, epochs=2, **schedule)
    train(engine, model, steps=6)
    assert engine.epsilon() <= 2.0


def test_without_a_plan_the_noise_added_is_the_noise_recorded(monkeypatch):
    answers = iter([1.0, 5.0, 9.0, 13.0])
    model = mlp()
    engine = attach(model, noise_schedule=lambda step: next(answers))
    added = []
    add = SecureNoise.add

    def noted(self, totals, std, divisor):
        added.append(std)
        return add(self, totals, std, divisor)

    monkeypatch.setattr(SecureNoise, "add", noted)
    train(engine, model, steps=1)
    (event,) = engine.ledger.events
    assert set(added) == {event.noise_multiplier * engine.sensitivity}


def test_repeated_steps_of_a_schedule_cannot_exceed_the_target():
    """The quiet steps come first, and are repeated by loading the state before them."""
    model = mlp()
    quiet_first = {"noise_schedule": lambda step: 1.0 if step < 3 else 10.0, "accountant": "rdp"}
    engine = attach(model, epsilon=2.0, epochs=2, seed=None, **quiet_first)
    state = copy.deepcopy(engine.state_dict())
    train(engine, model, steps=3)
    engine.load_state_dict(state)
    with pytest.raises(BudgetExhaustedError):
        train(engine, model, steps=3)
    assert engine.epsilon() <= 2.0


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), "1"])
def test_a_schedule_without_noise_is_refused(factor):
    model = mlp()
    engine = attach(model, noise_schedule=lambda step: factor)
    before = flat(model)
    with pytest.raises(ValueError, match=r"noise_schedule\(0\)"):
        train(engine, model, steps=1)
    assert torch.equal(flat(model), before)
    assert engine.ledger.steps == 0


@pytest.mark.parametrize(
    ("sampling", "options", "recorded"),
    [
        ("poisson", {}, Poisson(8 / 24)),
        ("poisson:14", {}, TruncatedPoisson(8 / 24, 14, 24)),
        ("shuffled", {"adjacency": "replace-one"}, Passes(3)),
        ("full-batch", {"batch_size": 24}, FullBatch()),
    ],
)
def test_the_sampling_that_is_performed_is_the_one_that_is_recorded(sampling, options, recorded):
    model = mlp()
    engine = attach(model, sampling=sampling, **options)
    train(engine, model, steps=engine.steps_per_epoch)
    (event,) = engine.ledger.events
    assert event.sampling == recorded
    assert event.passes == (1 if sampling == "shuffled" else 0)


def test_a_pass_with_two_noises_counts_for_both():
    """A sample may be in the noisier half or in the other: both must hold."""
    model = mlp()
    options = {"sampling": "shuffled", "adjacency": "zero-out-one"}
    engine = attach(model, noise_schedule=lambda step: 1.0 if step % 3 == 2 else 5.0, **options)
    train(engine, model, steps=9)
    quiet = sum(e.passes for e in engine.ledger.events if e.noise_multiplier == 1.0)
    assert quiet == 3


def test_shuffled_batches_do_not_claim_the_amplification_of_poisson_ones():
    model = mlp()
    engine = attach(model, sampling="shuffled", adjacency="zero-out-one")
    train(engine, model, steps=6)
    once_a_pass = accounting.epsilon(
        noise_multiplier=1.0, sampling=FullBatch(), steps=2, delta=engine.delta
    )
    assert engine.epsilon() == pytest.approx(once_a_pass, rel=1e-6)
    assumed = accounting.profile(accounting.as_if_poisson(engine.ledger.events))
    assert assumed.epsilon(engine.delta) < engine.epsilon()


def test_shuffled_batches_cannot_hide_how_many_samples_there_are():
    with pytest.raises(ValueError, match=r"fixed size.*replace-one.*Poisson"):
        attach(mlp(), sampling="shuffled")


def test_a_refused_engine_leaves_no_ledger_file(tmp_path):
    with pytest.raises(ValueError, match="fixed size"):
        attach(mlp(), sampling="shuffled", ledger=tmp_path / "ledger.jsonl")
    assert not list(tmp_path.iterdir())


def test_replace_one_needs_more_noise_than_add_or_remove_one():
    plan = {"epsilon": 2.0, "epochs": 2}
    add_remove = attach(mlp(), **plan).noise_multiplier
    replace = attach(mlp(), adjacency="replace-one", **plan).noise_multiplier
    assert 1.5 * add_remove < replace < 2.1 * add_remove


def test_an_adjacency_other_than_the_ledgers_is_refused():
    with pytest.raises(ValueError, match=r"adjacency='replace-one' differs"):
        attach(mlp(), ledger=Ledger(), adjacency="replace-one")


def test_an_approximation_must_be_asked_for_by_name_and_says_so():
    model = mlp()
    with pytest.warns(UserWarning, match="not a guarantee"):
        engine = attach(model, epsilon=2.0, epochs=2, accountant="gdp")
    train(engine, model, steps=6)
    assert engine.epsilon() <= 2.0 < engine.ledger.epsilon(engine.delta)


def test_each_step_is_on_disk_before_the_weights_change(tmp_path):
    path = tmp_path / "run" / "ledger.jsonl"
    model = mlp()
    engine = attach(model, ledger=path)
    seen = []
    original = engine._optimizer.step

    def step():
        seen.append((len(path.read_bytes().splitlines()) - 1, flat(model)))
        return original()

    engine._optimizer.step = step
    start = flat(model)
    train(engine, model, steps=1)
    train(engine, model, steps=1)
    assert [lines for lines, _ in seen] == [1, 2]
    assert torch.equal(seen[0][1], start)


def test_a_step_that_cannot_be_recorded_is_not_released(tmp_path):
    model = mlp()
    engine = attach(model, ledger=tmp_path / "ledger.jsonl")
    engine.ledger.close()
    before = flat(model)
    with pytest.raises(LedgerError, match="closed"):
        train(engine, model, steps=1)
    assert torch.equal(flat(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert engine.steps_taken == 0


def test_an_own_sampler_needs_a_declared_accounting():
    batches = [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(TypeError, match="accounted_as"):
        attach(mlp(), sampling=batches)


def test_an_own_sampler_with_a_declared_accounting_trains():
    from quietgrad.sampling import OwnSampler

    model = mlp()
    own = OwnSampler([[0, 1, 2], [3, 4, 5]], accounted_as=Passes(2))
    engine = attach(model, sampling=own, batch_size=3, adjacency="replace-one")
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
        engine.step()
    assert [(e.sampling, e.passes, e.steps) for e in engine.ledger.events] == [(Passes(2), 1, 2)]


def test_a_smooth_schedule_is_followed_in_few_levels():
    model = mlp()
    engine = attach(model, noise_multiplier=1.0, epochs=20, noise_schedule=lambda s: 0.99**s)
    train(engine, model, steps=60)
    noise = [e.noise_multiplier for e in engine.ledger.events for _ in range(e.steps)]
    assert len(set(noise)) <= 24
    assert noise == sorted(noise, reverse=True)
    for step, sigma in enumerate(noise):
        assert sigma == pytest.approx(0.99**step, rel=0.02)


def test_a_ledger_changed_in_place_stops_the_next_step(tmp_path):
    path = tmp_path / "ledger.jsonl"
    model = mlp()
    engine = attach(model, ledger=path)
    train(engine, model, steps=2)
    path.write_bytes(b"")
    before = flat(model)
    with pytest.raises(LedgerError, match="changed while in use"):
        train(engine, model, steps=1)
    assert torch.equal(flat(model), before)


def test_an_own_samplers_rate_must_go_with_the_batch_size():
    from quietgrad.sampling import OwnSampler

    own = OwnSampler([[0, 1, 2], [3, 4, 5]], accounted_as=Poisson(0.001))
    with pytest.raises(ValueError, match=r"rate=0.001 draws 0.024 of 24.*batch_size is 3"):
        attach(mlp(), sampling=own, batch_size=3)


def test_a_schedule_within_shuffled_passes_keeps_the_target():
    model = mlp()
    plan = {"epsilon": 3.0, "epochs": 4, "sampling": "shuffled", "adjacency": "replace-one"}
    engine = attach(model, noise_schedule=lambda step: 1.0 + step % 2, **plan)
    for _ in range(4):
        train(engine, model, steps=3)
    assert 2.99 <= engine.epsilon() <= 3.0
