"""Folders that are given and would not be looked at are refused: their data was not trained on."""

import pytest
from click.testing import CliRunner

from quietgrad import recipes
from quietgrad.cli import main
from quietgrad.recipes import Places


def run(*arguments):
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("command", ["train", "compare", "sweep"])
def test_digits_come_with_scikit_learn(tmp_path, command):
    over = ["--over", "lr=0.1"] if command == "sweep" else []
    out = tmp_path / "run"
    code, said = run(
        command, "digits", "--data-dir", str(tmp_path), "--epochs", "1", *over, "--out", str(out)
    )
    assert code == 2
    assert "'digits' does not read --data-dir" in said
    assert not (out / "config.json").exists()


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("option", ["data", "model"])
def test_a_smoke_run_reads_no_folder(tmp_path, name, option):
    small = recipes.load(name).small()
    with pytest.raises(ValueError, match=rf"does not read --{option}-dir .*--smoke"):
        small.split(Places(**{option: tmp_path}))


def test_a_smoke_run_with_a_folder_ends_with_2(tmp_path):
    code, said = run("train", "vit", "--smoke", "--model-dir", str(tmp_path))
    assert code == 2
    assert "'vit' does not read --model-dir" in said


@pytest.mark.parametrize("name", recipes.names())
def test_what_a_recipe_takes_is_what_it_reads(tmp_path, name):
    recipe = recipes.load(name)
    assert ("data" in recipe.takes) == (not recipe.data.startswith("nothing"))
    for option in ("data", "model"):
        if option not in recipe.takes:
            with pytest.raises(ValueError, match=rf"{name!r} does not read --{option}-dir"):
                recipe.split(Places(**{option: tmp_path}))


def test_recipes_that_take_a_model():
    """As docs/recipes.md says of --model-dir."""
    taking = [name for name in recipes.names() if "model" in recipes.load(name).takes]
    glue = ["sst2", "sst2-lora", "sst2-bias", "qnli", "qqp", "mnli"]
    assert taking == ["imdb", "imdb-plain", *glue, "e2e", "vit"]
