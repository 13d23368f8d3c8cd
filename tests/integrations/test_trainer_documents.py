"""The page and the examples of the trainers: they run, and differ from ordinary ones as told."""

import difflib
import os
import re
import subprocess
import sys

import pytest
from tests.docs.blocks import ROOT, blocks_of, printed_by

from quietgrad.integrations.training_arguments import REFUSED, WORKS

PAGE = ROOT / "docs/integrations/transformers.md"
TEXT = PAGE.read_text(encoding="utf-8")
SCRIPTS = ("trainer_full.py", "trainer_lora.py", "sft.py", "dpo.py")
SMALL = ["--samples", "400", "--epochs", "1"]


def changes(ordinary, private):
    """Lines that are replaced, and lines that are added."""
    found = difflib.SequenceMatcher(None, ordinary, private, autojunk=False).get_opcodes()
    replaced = sum(end - begin for kind, begin, end, *_ in found if kind == "replace")
    added = [
        line for kind, *_, begin, end in found if kind == "insert" for line in private[begin:end]
    ]
    assert not [kind for kind, *_ in found if kind == "delete"]
    return replaced, [line for line in added if line.strip()]


def ordinary(name):
    """An example without privacy: another class, and without the lines that are added."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    kind = re.search(r"import (Private(\w+))\n", text)
    module = "trl" if "integrations.trl" in text else "transformers"
    text = re.sub(r"from quietgrad\S+ import \w+\n", f"from {module} import {kind[2]}\n", text)
    text = text.replace(kind[1], kind[2])
    text = re.sub(r"    (epsilon|delta|batch_size)=.*\n", "", text)
    return re.sub(r"print\(trainer\.engine.*\n", "", text)


def test_the_page_runs_and_differs_as_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain, private = (block for block in blocks_of(PAGE) if block.language == "python")
    replaced, added = changes(plain.text.splitlines(), private.text.splitlines())
    assert replaced == 3  # the import, the class, and the folder of its output
    assert added == [
        "    epsilon=8.0, delta=1e-4, batch_size=100,",
        'trainer.engine.report("out/private/report.html")',
    ]
    names = {}
    printed_by(private, names, PAGE)
    assert names["trainer"].engine.epsilon() <= 8
    assert names["trainer"].evaluate()["eval_loss"] < 0.69
    assert (tmp_path / "out/private/report.html").exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_differ_in_as_many_lines_as_told(name):
    text = (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()
    replaced, added = changes(ordinary(name).splitlines(), text)
    assert (replaced, len(added)) == (2, 4)  # the fourth writes the report
    assert re.search(rf"^\| \[{name}\].*\| 2 and 3 \|$", TEXT, re.MULTILINE)


def test_every_argument_is_told():
    told = set(re.findall(r"`(\w+)[`= ]", TEXT))
    assert told >= WORKS
    assert told >= set(REFUSED)


def run(name, folder, *options, text=None):
    place = ROOT / "examples" / name
    if text is not None:
        place = folder / name
        place.write_text(text)
    paths = [str(ROOT / "examples"), *sys.path]
    return subprocess.run(
        [sys.executable, str(place), "--out", str(folder / "out"), *options],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_run_and_go_on(tmp_path, name):
    ended = run(name, tmp_path, *SMALL)
    assert ended.returncode == 0, ended.stderr
    assert "epsilon = 7.99" in ended.stdout
    assert (tmp_path / "out/report.html").exists()
    again = run(name, tmp_path, *SMALL, "--resume")
    assert again.returncode == 0, again.stderr
    refused = run(name, tmp_path, *SMALL)
    assert "holds 2 steps of an earlier run" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_ordinary_scripts_run(tmp_path, name):
    ended = run(name, tmp_path, *SMALL, text=ordinary(name))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_local_model_and_local_files_are_read(tmp_path):
    sys.path.insert(0, str(ROOT / "examples"))
    import made_texts as made

    made.classifier().save_pretrained(tmp_path / "model")
    made.tokenizer(begins=True).save_pretrained(tmp_path / "model")
    made.reviews(400, 1).to_json(tmp_path / "train.jsonl")
    made.reviews(100, 2).to_json(tmp_path / "test.jsonl")
    files = ["--train", str(tmp_path / "train.jsonl"), "--test", str(tmp_path / "test.jsonl")]
    ended = run(
        "trainer_full.py", tmp_path, "--epochs", "1", "--model", str(tmp_path / "model"), *files
    )
    assert ended.returncode == 0, ended.stderr
    assert "accuracy on held-out texts" in ended.stdout


@pytest.mark.slow
def test_the_classifier_learns(tmp_path):
    ended = run("trainer_full.py", tmp_path)
    assert ended.returncode == 0, ended.stderr
    accuracy = float(re.search(r"held-out texts: ([\d.]+)%", ended.stdout)[1])
    assert accuracy > 85  # every run draws new noise
