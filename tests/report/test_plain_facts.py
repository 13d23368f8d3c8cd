"""Facts for people: which data, when, which keys, and names that are not Python's."""

import json
import os
import re
import stat

import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import Subset, TensorDataset

from quietgrad import AdaptiveRadius, InnerOuter, PrivacyEngine, clipping
from quietgrad._format import describe_options
from quietgrad.cli import main
from quietgrad.report import as_html, statement_of_engine, statement_of_folder
from quietgrad.report.text import clipping_in_words, options_in_words
from quietgrad.runs.folder import RunFolder

from .helpers import RECORDS, edited, engine_of, facts, trained, write_run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A run of the train command."""
    out = tmp_path_factory.mktemp("runs") / "smoke"
    asked = ["train", "digits", "--smoke", "--accountant", "rdp", "--out", str(out)]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    return out


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_settings_of_a_finished_run_say_how_far_it_came(smoke):
    steps = read(smoke, "result.json")["private"]["steps"]
    progress = read(smoke, "settings.json")["progress"]
    assert progress["steps_taken"] == progress["ledger_steps"] == steps > 0
    statement = statement_of_folder(smoke)
    assert statement.settings["progress"]["steps_taken"] == steps
    assert statement.verdict.kind not in ("not-established", "protects-nobody")
    embedded = re.search(
        r'id="statement">(.*?)</script>', (smoke / "report.html").read_text(), re.S
    )
    assert json.loads(embedded[1])["settings"]["progress"]["steps_taken"] == steps


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_all_files_have_the_same_mode(smoke):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in smoke.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}
    assert "model.unfinished" not in modes


def test_data_and_times(smoke):
    found = facts(statement_of_folder(smoke))
    assert found["Training data"] == (
        "synthetic data for a smoke run of the recipe digits; stored as TensorDataset"
    )
    assert found["Records"] == f"{read(smoke, 'settings.json')['dataset_size']:,}"
    assert found["Test records"].startswith(f"{read(smoke, 'result.json')['test_records']:,};")
    assert "could confirm a guess" in found["Hash of the data"]
    for name in ("Run begun", "Run finished"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d, \d\d:\d\d UTC", found[name])


def test_a_run_that_is_resumed_keeps_its_times(smoke):
    begun, finished = read(smoke, "config.json")["begun"], read(smoke, "result.json")["finished"]
    assert begun <= finished
    edited(
        smoke / "result.json", lambda result: result.update(finished="2026-01-02T03:04:05+02:00")
    )
    again = ["train", "digits", "--smoke", "--out", str(smoke), "--resume"]
    assert CliRunner().invoke(main, again).exit_code == 0
    assert read(smoke, "config.json")["begun"] == begun
    assert read(smoke, "result.json")["finished"] == "2026-01-02T03:04:05+02:00"
    assert facts(statement_of_folder(smoke))["Run finished"] == "2026-01-02, 01:04 UTC"


def test_weights_that_cannot_be_saved_leave_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin({})
    with pytest.raises(AttributeError):
        folder.save_model(None)
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"recipe": "mnist", "data_dir": None}, "of the recipe mnist; stored as"),
        (
            {"recipe": "mnist", "data_dir": "/data/m"},
            "of the recipe mnist, from /data/m; stored as",
        ),
        ({"settings": {"delta": 1e-3, "limit": 6000}}, "; limited to the first 6,000 records"),
        ({"recipe": None}, "stored as TensorDataset"),
        ({"begun": "yesterday"}, "of the recipe demo; stored as TensorDataset"),
    ],
)
def test_which_data(folder, config, words):
    edited(folder / "config.json", lambda content: content.update(config))
    found = facts(statement_of_folder(folder))
    assert words in found["Training data"]
    assert found["Run begun"] == config.get("begun", "unknown")


def test_a_ledger_alone_names_no_data(finished):
    found = facts(statement_of_folder(finished / "ledger.jsonl", delta=1e-4))
    assert found["Training data"] == found["Records"] == "unknown"
    assert "Run begun" not in found


def test_a_part_of_a_data_set_is_named_as_one():
    data = TensorDataset(torch.randn(12, 3), torch.zeros(12).long())
    model = torch.nn.Linear(3, 2)
    engine = PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Subset(data, range(8)),
        batch_size=4,
        noise_multiplier=1.0,
        delta=1e-3,
    )
    engine.detach()
    assert engine.settings()["dataset"] == "Subset of TensorDataset"


def test_keys_are_said_to_be_where_they_are():
    found = facts(trained().report())
    assert found["Keys of the noise"].endswith("for every step and never stored")
    assert "never stored, not in checkpoints either" in found["Keys of the sampling"]
    shuffled = facts(trained(sampling="shuffled", adjacency="replace-one").report())
    assert "holds the key of its order" in shuffled["Keys of the sampling"]
    whole = facts(trained(sampling="full-batch", batch_size=RECORDS).report())
    assert whole["Keys of the sampling"].startswith("none, because every record")
    seeded = facts(trained(seed=1).report())
    assert "Keys of the noise" not in seeded
    assert "the seed determines noise and sampling" in seeded["Keys"]


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_a_checkpoint_holds_the_keys_that_are_named(sampling):
    """The order of a shuffled pass under way, and no other."""
    adjacency = "add-remove-one" if sampling == "poisson" else "replace-one"
    engine, model = engine_of(sampling=sampling, adjacency=adjacency)
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
        engine.step()
        position = engine.state_dict()["position"]
        assert (position["key"] is not None) == (sampling == "shuffled" and position["step"] > 0)
    engine.detach()


def test_the_initial_seed_is_explained_where_it_is_shown(folder, tmp_path):
    edited(folder / "config.json", lambda config: config.update(initial_seed=7))
    page = as_html(statement_of_folder(folder))
    assert "initial_seed determines only the weights before training" in page
    seeded = write_run(tmp_path / "seeded", seed=1)
    edited(seeded / "config.json", lambda config: config.update(initial_seed=1))
    page = as_html(statement_of_folder(seeded))
    assert "The seed also determines noise and sampling" in page
    assert "It is not private" not in page.partition('id="config"')[2]


def test_names_in_words():
    assert clipping_in_words("AutoS(gamma=0.01)") == "auto-s, gamma 0.01"
    assert clipping_in_words("Registered(name='soft')") == "soft, a custom function"
    assert clipping_in_words("Mine(largest_share=2)") == "Mine, largest share 2"
    assert options_in_words(repr(AdaptiveRadius(count_noise=20.0))).startswith(
        "start 1.0, quantile"
    )
    assert options_in_words(repr(InnerOuter())).startswith("length 2, inner 0.08")
    for odd in ("<function f at 0x7f>", "f(g(1))", "f(a=b)", "f(**a)", "", "a.b(c=1)", "f(" * 300):
        assert clipping_in_words(odd) == options_in_words(odd) == odd


@pytest.mark.parametrize("written", [describe_options, repr])
def test_every_registered_clipping_function_has_its_name(written):
    for name in ("abadi", "reparam", "global", "auto-v", "auto-s", "psac"):
        assert clipping_in_words(written(clipping.resolve(name))).split(",")[0] == name


@pytest.mark.parametrize(
    "options",
    [
        {"clipping": "psac", "momentum": InnerOuter()},
        {"clipping": "abadi", "radius": AdaptiveRadius(count_noise=20.0)},
    ],
)
def test_options_are_kept_as_json_and_read_as_settings_of_format_1_were(options):
    """An earlier version kept the repr of an object instead of its fields."""
    engine, _ = engine_of(**options)
    engine.detach()
    settings = engine.settings()
    assert settings["format"] == 2
    assert settings["clipping"]["class"] in ("Abadi", "PSAC")
    earlier = settings | {
        "format": 1,
        "clipping": repr(clipping.resolve(options["clipping"])),
        "momentum": repr(options["momentum"]) if "momentum" in options else None,
        "adaptive_radius": repr(options["radius"]) if "radius" in options else None,
    }
    tables = [statement_of_engine(engine.ledger, each).sections for each in (settings, earlier)]
    for now, before in zip(*tables, strict=True):
        assert now == before or now.title == "Evidence"  # which has the hash of the settings


def test_options_that_json_cannot_hold_are_kept_as_their_repr():
    assert describe_options(len) == repr(len)
    assert describe_options(None) is None


def test_shares_are_in_per_cent_everywhere(finished):
    page = as_html(statement_of_folder(finished))
    table = page.partition("<caption>Figures by epoch</caption>")[2].partition("</table>")[0]
    assert '<td class="n">75.00 %</td>' in table
    assert "0.75" not in table


def test_a_large_bound_for_groups_is_said_to_be_of_no_use():
    statement = trained(noise_multiplier=0.6).report()
    largest = statement.epsilons.groups[-1]
    assert largest.epsilon > 20
    page = (
        as_html(statement).partition("Bounds for several records at once")[2].partition("</p>")[0]
    )
    assert '<th scope="row">8</th><td class="n">no useful bound (above 20)</td>' in page
    assert "With an epsilon above 20, an attacker may be almost certain" in page
