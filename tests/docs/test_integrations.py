"""Pages of docs/integrations: both scripts run, and the private one is the example."""

import difflib
import re

import pytest
from tests.docs.blocks import ROOT, agrees, blocks_of, printed_by

EXAMPLES = {"lightning": "lightning_module", "accelerate": "accelerate_loop"}


def page(name):
    return ROOT / f"docs/integrations/{name}.md"


def scripts_of(name):
    return [block for block in blocks_of(page(name)) if block.language == "python"][:2]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    if "accelerate" in __import__("sys").modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_private_script_is_the_example(name):
    example = (ROOT / f"examples/{EXAMPLES[name]}.py").read_text(encoding="utf-8")
    assert example.partition('"""\n\n')[2] == scripts_of(name)[1].text


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_number_of_changed_lines(name):
    ordinary, private = ([line for line in b.text.splitlines() if line] for b in scripts_of(name))
    changes = difflib.SequenceMatcher(None, ordinary, private, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for kind, a, b, c, d in changes if kind != "equal")
    text = page(name).read_text(encoding="utf-8")
    stated = re.search(r"^(\d+) of (\d+) lines differ", text, re.MULTILINE)
    assert (int(stated[1]), int(stated[2])) == (changed, len(ordinary))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("which", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_script_runs(name, which):
    pytest.importorskip(name)
    pytest.importorskip("sklearn")
    block = scripts_of(name)[which]
    printed = printed_by(block, {"__name__": "__main__"}, page(name))
    lines = [line for line in printed.splitlines() if "held-out" in line or "attacker" in line]
    accuracy = float(re.fullmatch(r"accuracy on held-out digits: (\d+\.\d)%", lines[0])[1])
    assert accuracy > 60  # chance is 10 %
    if which == 1:
        (shown,) = (block for block in blocks_of(page(name)) if block.language == "text")
        assert agrees("\n".join(lines), shown)


@pytest.mark.parametrize("name", EXAMPLES)
def test_other_blocks_are_code(name):
    for block in blocks_of(page(name)):
        if block.language == "python":
            compile(block.text, block.text, "exec")
