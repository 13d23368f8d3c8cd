"""Recipes in files and modules of the user's own, and in installed packages."""

import json
import re
import sys
from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner
from tests.docs.blocks import ROOT, blocks_of

from quietgrad import clipping, grouping, recipes, sampling
from quietgrad.accounting import accountants
from quietgrad.cli import main
from quietgrad.recipes import own
from quietgrad.sampling import samplers

PAGE = ROOT / "docs/recipes.md"
(WAVES,) = (block.text for block in blocks_of(PAGE) if "def waves()" in block.text)
REGISTRIES = (clipping._REGISTRY, grouping.styles._REGISTRY, samplers._REGISTRY)

FEW = (
    WAVES.replace("Smoke(load_data)", "Smoke(few)")
    + """

def few(places: Places) -> Split:
    split = load_data(places)
    return Split.of_columns(split.train[:40], split.test[:40])
"""
)
EVERYTHING = (
    FEW
    + """

from quietgrad.accounting import GaussianEvent, Passes, register_accountant
from quietgrad.accounting.accountants.rdp import RDP

qg.clipping.register("soft", lambda norms, radius: radius / (norms**2 + 1).sqrt())
qg.grouping.register("halves", lambda radius: qg.grouping.LayerWise(radius=radius))
batches = [list(range(start, start + 100)) for start in range(0, 1000, 100)]
qg.sampling.register("own-slices", lambda: qg.sampling.OwnSampler(batches, Passes(10)))


class Mine:
    name, is_guarantee = "own-renyi", False

    def profile(self, releases, adjacency, *, precision="fine"):
        return RDP().profile(releases, adjacency, precision=precision)


register_accountant(Mine())
"""
)


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "200"})


def words(result):
    return " ".join(result.output.split())


@pytest.fixture(autouse=True)
def _as_before(tmp_path, monkeypatch):
    """What files register, and the modules that they become, are gone after a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules, kept = set(sys.modules), [dict(each) for each in REGISTRIES]
    mine = dict(accountants._ACCOUNTANTS)
    yield
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and "pytest" in sys.modules[name].__file__:
            del sys.modules[name]
    for registry, before in zip(REGISTRIES, kept, strict=True):
        registry.clear()
        registry.update(before)
    accountants._ACCOUNTANTS.clear()
    accountants._ACCOUNTANTS.update(mine)
    own._run_file.cache_clear()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_recipe.py"
    path.write_text(FEW)
    return path


def test_the_file_in_the_documents_is_short_and_trains(file, tmp_path):
    assert len(WAVES.splitlines()) <= 32
    file.write_text(WAVES)
    trained = run("train", "my_recipe.py:waves", "--epochs", "1", "--accountant", "rdp")
    assert trained.exit_code == 0, trained.output
    folder = tmp_path / "runs" / "waves-1"
    config = json.loads((folder / "config.json").read_text())
    assert (config["recipe"], config["target"]) == ("waves", f"{file}:waves")
    head = re.search(r"Head of the run: ([0-9a-f]{64})", trained.output)[1]
    verified = run("verify", folder, "--head", head)
    assert verified.exit_code == 0, verified.output


def test_commands_take_it_and_names_that_it_registers(file):
    file.write_text(EVERYTHING)
    mine = ["--clipping", "soft", "--grouping", "halves", "--sampling", "own-slices"]
    mine += ["--adjacency", "replace-one", "--accountant", "own-renyi", "--epochs", "1"]
    trained = run("train", f"{file}:waves", *mine, "--out", "run")
    assert trained.exit_code == 0, trained.output
    assert "NOT a guarantee" in words(trained)
    reported = run("report", "run")
    assert reported.exit_code == 1
    assert "by the accountant own-renyi, which was registered by the user" in words(reported)
    assert "differential privacy, by pld" in words(reported)
    small = [f"{file}:waves", "--smoke", "--accountant", "rdp", "--clipping"]
    for command in (
        ["compare", *small, "soft,auto-s", "--seeds", 1],
        ["sweep", *small, "soft", "--over", "lr=0.1"],
        ["audit", *small, "soft", "--canaries", 50],
        ["check", f"{file}:waves", "--clipping", "soft"],
        ["plan", f"{file}:waves"],
        ["recipes", f"{file}:waves"],
    ):
        result = run(*command)
        assert result.exit_code == 0, result.output


def test_what_a_recipe_prints_does_not_stand_in_the_json(file, tmp_path):
    file.write_text(file.read_text().replace("    points =", "    print('loading')\n    points ="))
    for command in (["train", "--out", str(tmp_path / "run")], ["check"], ["recipes"]):
        name, *options = command
        result = run(name, "my_recipe.py:waves", *options, "--json")
        assert result.exit_code == 0, result.output
        assert isinstance(json.loads(result.stdout), dict)
        assert ("loading" in result.stderr) is (name != "recipes")


def test_a_report_is_written_where_what_was_registered_is_not_known(file, tmp_path):
    file.write_text(EVERYTHING)
    mine = ["--clipping", "soft", "--sampling", "own-slices", "--adjacency", "replace-one"]
    asked = ["train", f"{file}:waves", "--epochs", 1, "--accountant", "own-renyi", *mine]
    assert run(*asked, "--out", "run").exit_code == 0
    for registry in REGISTRIES:
        for name in ("soft", "halves", "own-slices"):
            registry.pop(name, None)
    del accountants._ACCOUNTANTS["own-renyi"]
    reported = run("report", "run", "--json")
    statement = json.loads(reported.output)
    assert statement["verdict"]["kind"] == "no-guarantee"
    assert statement["epsilons"]["claimed"] is None
    assert run("verify", "run").exit_code == 1
    assert "NO GUARANTEE" in words(run("verify", "run"))


def test_a_sampler_that_breaks_its_word_is_refused_in_one_line(file):
    file.write_text(EVERYTHING)
    mine = ["--smoke", "--accountant", "rdp", "--adjacency", "replace-one", "--out", "run"]
    result = run("train", f"{file}:waves", *mine, "--sampling", "own-slices")
    assert result.exit_code == 2
    assert "has the index 40: expected indices in range(40)" in words(result)


def test_a_run_is_resumed_from_any_folder(file, tmp_path, monkeypatch):
    out = tmp_path / "run"
    asked = ["train", "my_recipe.py:waves", "--smoke", "--accountant", "rdp", "--out", out]
    assert run(*asked).exit_code == 0
    monkeypatch.chdir("/")
    again = run("train", f"{file}:waves", "--out", out, "--resume")
    assert "nothing is left to train" in words(again)
    file.write_text(FEW + "\n# changed\n")
    again = run("train", f"{file}:waves", "--out", out, "--resume")
    assert "was changed since the run was begun" in words(again)
    other = run("train", "mnist", "--out", out, "--resume")
    assert other.exit_code == 2
    assert "recipe='waves', not 'mnist'" in words(other)


def test_trials_of_another_version_of_the_file_do_not_count(file, tmp_path):
    asked = ["compare", f"{file}:waves", "--smoke", "--seeds", 1, "--clipping", "auto-s"]
    asked += ["--accountant", "rdp"]
    assert run(*asked, "--out", "out").exit_code == 0
    assert run(*asked, "--out", "out", "--resume").exit_code == 0
    trials = tmp_path / "out" / "trials.jsonl"
    assert len(trials.read_text().splitlines()) == 1
    file.write_text(FEW + "\n# changed\n")
    assert run(*asked, "--out", "out", "--resume").exit_code == 0
    assert len(trials.read_text().splitlines()) == 2


def test_recipes_of_installed_packages_are_known(file, monkeypatch):
    file.write_text(WAVES.replace('name="waves"', 'name="ripples"'))
    found = EntryPoint("ripples", "my_recipe:waves", own.GROUP)
    monkeypatch.setattr(own, "entry_points", lambda group: [found] if group == own.GROUP else [])
    monkeypatch.syspath_prepend(str(file.parent))
    assert recipes.load("ripples").target == "my_recipe:waves"
    assert "ripples" not in recipes.names()
    listed = run("recipes")
    assert "ripples" in listed.output
    with pytest.raises(ValueError, match="Did you mean 'ripples'"):
        recipes.load("ripple")
    assert run("train", "ripples", "--smoke", "--accountant", "rdp").exit_code == 0
    other = EntryPoint("swells", "my_recipe:waves", own.GROUP)
    monkeypatch.setattr(own, "entry_points", lambda group: [other])
    with pytest.raises(ValueError, match="give both the same name"):
        recipes.load("swells")


def test_a_package_that_is_broken_does_not_hide_the_other_recipes(file, monkeypatch):
    file.write_text("1 / 0")
    found = EntryPoint("ripples", "my_recipe:waves", own.GROUP)
    monkeypatch.setattr(own, "entry_points", lambda group: [found])
    monkeypatch.syspath_prepend(str(file.parent))
    listed = run("recipes")
    assert listed.exit_code == 0
    assert "digits" in listed.output
    assert "cannot be loaded" in words(listed)
    assert "ZeroDivisionError" in words(run("recipes", "ripples"))


def test_a_file_that_is_called_like_a_package_does_not_take_its_place(tmp_path):
    path = tmp_path / "json.py"
    path.write_text(WAVES)
    assert recipes.load(f"{path}:waves").name == "waves"
    assert sys.modules["json"] is json


# What cannot be used.

WRONG = {
    "no file": ("nowhere.py:waves", None, "nowhere.py': expected path/to/file.py:function"),
    "no module": ("nowhere:waves", None, "no module 'nowhere'"),
    "no function": ("my_recipe.py:wave", WAVES, "Did you mean 'waves'?"),
    "no function named": ("my_recipe.py", WAVES, "expected module:function"),
    "no name": ("my_recipe.py:", WAVES, "expected module:function"),
    "neither": ("my-recipe:waves", WAVES, "neither a module's name nor a Python file"),
    "another object": (
        "my_recipe.py:waves",
        "def waves(): return 3",
        "returned a int: expected a quietgrad.recipes.Recipe",
    ),
    "a model": (
        "my_recipe.py:waves",
        "def waves(): return 1, 2, 3",
        "returned a tuple of 3: expected a quietgrad.recipes.Recipe",
    ),
    "arguments": (
        "my_recipe.py:waves",
        "def waves(a): pass",
        "expected a function of no arguments",
    ),
    "an error in the module": (
        "my_recipe.py:waves",
        "import os\n\nx = {}['a']",
        "raised KeyError: 'a' ({file}, line 3). Correct it",
    ),
    "an import that is missing": (
        "my_recipe.py:waves",
        "import nonesuch",
        "raised ModuleNotFoundError: No module named 'nonesuch' ({file}, line 1)",
    ),
    "an error in the function": (
        "my_recipe.py:waves",
        "def waves():\n    raise ValueError('bad')",
        "raised ValueError: bad ({file}, line 2, in waves)",
    ),
    "no Python": ("my_recipe.py:waves", "def waves(:", "raised SyntaxError: invalid syntax ("),
    "a name that is no folder": (
        "my_recipe.py:waves",
        WAVES.replace('name="waves"', 'name="../waves"'),
        "name='../waves': expected letters",
    ),
    "an error in load_data": (
        "my_recipe.py:waves",
        WAVES.replace("    train, test", "    [][1]\n    train, test"),
        "raised IndexError: list index out of range ({file}, line",
    ),
    "an error in build_model": (
        "my_recipe.py:waves",
        WAVES.replace("nn.Linear(16, 2)", "nn.Linear(16, None)"),
        "raised TypeError",
    ),
    "an exit": ("my_recipe.py:waves", "import sys\n\nsys.exit(0)", "raised SystemExit: 0 ({file}"),
    "no data": (
        "my_recipe.py:waves",
        WAVES.replace("    return Split", "    Split"),
        "load_data of 'waves' returned a NoneType: expected a Split",
    ),
    "no model": (
        "my_recipe.py:waves",
        WAVES.replace("nn.Linear(16, 2)", "None"),
        "build_model of 'waves' returned a NoneType: expected a torch.nn.Module",
    ),
    "a clipping function that is none": (
        "my_recipe.py:waves",
        WAVES + "\nqg.clipping.register('loud', lambda norms, radius: norms)\n",
        "is not a clipping function",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_recipe_is_refused_in_one_line(tmp_path, name):
    target, content, message = WRONG[name]
    file = tmp_path / "my_recipe.py"
    if content is not None:
        file.write_text(content)
    result = run("train", target, "--out", "run")
    assert result.exit_code == 2, result.output
    assert message.format(file=file) in words(result)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert not (tmp_path / "run").exists()


REGISTERED = {
    "an accountant with a name of ours": (
        accountants.register,
        (type("A", (), {"name": "pld", "is_guarantee": False, "profile": print})(),),
        "begins with own-",
    ),
    "an accountant that says it is a guarantee": (
        accountants.register,
        (type("A", (), {"name": "own-a", "is_guarantee": True, "profile": print})(),),
        "expected False",
    ),
    "what is no accountant": (accountants.register, (3,), "is no accountant"),
    "a class": (accountants.register, (accountants.PLD,), "is no accountant"),
    "a sampler with another name": (sampling.register, ("mine", print), "begins with 'own-'"),
    "what makes no sampler": (sampling.register, ("own-x", 3), "expected for example"),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_what_cannot_be_registered_is_refused(name):
    register, arguments, message = REGISTERED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        register(*arguments)


def test_a_registered_function_that_makes_no_sampler_is_refused():
    sampling.register("own-x", lambda: 3)
    with pytest.raises(TypeError, match="the sampler registered as 'own-x' is int"):
        sampling.resolve("own-x")
    with pytest.raises(ValueError, match="exists already"):
        sampling.register("own-x", print)


def test_a_recipe_names_its_unit_and_the_ids(tmp_path):
    ids = '[f"p{i % 90}" for i in range(1000)]'
    text = FEW.replace("Settings(", "Settings(records_per_unit=3, ", 1)
    text = text.replace(
        "(waves[test], labels[test]))", f"(waves[test], labels[test]), units={ids})"
    )
    text = text.replace("split.test[:40])", "split.test[:40], units=split.units[:40])")
    path = tmp_path / "people.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"each sample is a unit.*Recipe\(unit='patient'\)"):
        recipes.load(f"{path}:waves").changed()
    path.write_text(text.replace("smoke=", 'unit="patient", smoke='), encoding="utf-8")
    recipe = recipes.load(f"{path}:waves").changed(limit=200)
    split = recipe.split(recipes.Places())
    assert (recipe.unit, recipe.settings.records_per_unit) == ("patient", 3)
    assert list(split.units) == [f"p{i % 90}" for i in range(200)]
