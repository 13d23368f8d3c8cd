"""With a public size the number of samples, or of units, is neither used nor told.

What can be seen of two runs, on n and on n + 1 of them, is compared from beginning to end: all that
the engine says, counts, writes and warns of. Who was drawn and what follows from it, weights and
sizes of micro-batches, is as private as it ever is, and covered by the noise.
"""

import contextlib
import io
import json
import re
import warnings

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.sampling import OwnSampler
from quietgrad.sampling.samplers import PoissonDraws

from .helpers import CLASSES, FEATURES, build, losses_of

PUBLIC = 50


def data(records):
    x = torch.randn(400, FEATURES, generator=torch.Generator().manual_seed(1)).double()
    return TensorDataset(x[:records], (torch.arange(400) % CLASSES)[:records])


def attach(records, *, has_units, **options):
    model = build()
    given = {
        "batch_size": 10,
        "epochs": 2,
        "epsilon": 3.0,
        "delta": 1e-3,
        "public_size": PUBLIC,
        "accountant": "rdp",
    }
    if has_units:
        owners = [min(record // 3, record % 40) for record in range(records)]
        given |= {"units": owners, "records_per_unit": 2, "unit": "patient"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, qg.PrivacyEngine(model, optimizer, data(records), **given | options)


def without_names_of_runs(text):
    """Without what is drawn for each run: names of histories, times, and digests of them."""
    return re.sub(r"[0-9a-f]{16,64}|\d{4}-\d\d-\d\d(T| at )[\d:+]+", "#", text)


def observe(records, folder, *, has_units, **options):
    """Everything but what was sampled and what was computed from that."""
    seen, folder = {}, folder / f"{records}"
    folder.mkdir()
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        ledger = folder / "ledger.jsonl"
        model, engine = attach(records, has_units=has_units, ledger=ledger, **options)
        seen["begin"] = [repr(engine), engine.settings(), engine.steps_per_epoch]
        steps, epsilons, progress = [], [], []
        for epoch in range(2):
            count = 0
            for batch in engine.batches():
                for x, y in batch:
                    engine.backward(losses_of(model, x, y))
                engine.step()
                count += 1
                epsilons.append(engine.epsilon())
                progress.append(engine.settings()["progress"])
            steps.append(count)
            assert engine.epochs_completed == epoch + 1
        seen |= {"steps": steps, "epsilons": epsilons, "progress": progress}
        seen["sizes"] = [engine.batch_size, engine.sample_rate, engine.planned_steps, engine.delta]
        statement = engine.report(folder / "report.html", title="A model")
        state = engine.state_dict()
        engine.save(folder / "state.pt")
        with pytest.raises(qg.errors.BudgetExhaustedError) as spent:
            next(engine.batches())
        engine.ledger.close()
    seen["statement"] = statement.as_dict()
    seen["page"] = (folder / "report.html").read_text()
    seen["ledger"] = (folder / "ledger.jsonl").read_text()
    seen["state"] = {name: state[name] for name in state if name not in ("model", "optimizer")}
    seen["kinds"] = {name: (t.shape, t.dtype) for name, t in state["model"].items()}
    seen["size of the file"] = (folder / "state.pt").stat().st_size
    seen["said"] = [printed.getvalue(), [str(each.message) for each in caught], str(spent.value)]
    text = json.dumps(seen, default=str)
    return without_names_of_runs(text.replace(str(folder), "folder"))


@pytest.mark.parametrize("has_units", [False, True], ids=["records", "units"])
@pytest.mark.parametrize("records", [1, 49, 50, 120, 200])
def test_nothing_tells_one_more_from_one_less(records, has_units, tmp_path):
    """Also where the public number is too small, and where it is what there are."""
    few = records if not has_units or records > 120 else 3 * records
    one, other = (observe(n, tmp_path, has_units=has_units) for n in (few, few + 1))
    assert one == other


def test_without_it_the_number_shows(tmp_path):
    one, other = (observe(n, tmp_path, has_units=False, public_size=None) for n in (120, 121))
    assert one != other


def test_nobody_is_drawn_otherwise_because_there_is_one_more():
    """The same key draws the same of those whom both data sets have."""
    rate, steps = 0.2, 40
    few, more = (
        list(PoissonDraws(population, rate, steps).indices(12345, 0)) for population in (60, 61)
    )
    assert few == [[each for each in drawn if each < 60] for drawn in more]
    assert any(60 in drawn for drawn in more)


def test_rate_and_steps_follow_from_the_public_number():
    _, engine = attach(200, has_units=False)
    assert (engine.sample_rate, engine.steps_per_epoch, engine.planned_steps) == (0.2, 5, 10)
    drawn = [batch.size for _ in range(40) for batch in _discarded(engine)]
    assert sum(drawn) / len(drawn) == pytest.approx(200 * 0.2, rel=0.1)


def _discarded(engine):
    for batch in engine._loader:
        batch.discard()
        yield batch


def test_the_report_says_so(tmp_path):
    _, engine = attach(60, has_units=True)
    statement = engine.report(tmp_path / "report.html")
    text = json.dumps(statement.as_dict())
    assert "about 50 patients (a public figure; the number itself is not disclosed)" in text
    assert any(item.title == "The size of the data set" for item in statement.not_covered)
    assert statement.settings["size_is_secret"] is True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sampling": "shuffled", "adjacency": "replace-one"}, "Expected sampling='poisson'"),
        ({"sampling": "poisson:40"}, "Expected sampling='poisson'"),
        ({"sampling": "full-batch", "batch_size": PUBLIC}, "Expected sampling='poisson'"),
        (
            {"sampling": OwnSampler([[1]], qg.accounting.Poisson(0.2))},
            "Expected sampling='poisson'",
        ),
        ({"adjacency": "replace-one"}, "compares data sets of the same size"),
        ({"adjacency": "zero-out-one"}, "compares data sets of the same size"),
        ({"public_size": 0}, "public_size=0 is not valid"),
        ({"public_size": 12.5}, "public_size=12.5 is not valid"),
        ({"batch_size": 51}, "batch_size=51 is larger than the data set of 50"),
    ],
)
def test_what_would_show_the_number_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        attach(120, has_units=False, **given)


def test_a_state_is_not_loaded_where_the_number_is_no_secret():
    _, engine = attach(50, has_units=False)
    _, other = attach(50, has_units=False, public_size=None)
    with pytest.raises(qg.QuietgradError, match="the state was saved with public_size=50"):
        other.load_state_dict(engine.state_dict())
