"""docs/units.md: its example runs and prints what is shown, and the page names what there is."""

import inspect
import re

import pytest
from tests.docs.blocks import ROOT, blocks_of, printed_by

import quietgrad as qg

PAGE = ROOT / "docs/units.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    example, *_ = (block for block in blocks_of(PAGE) if block.language == "python")
    names = {"__name__": "units"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("units"))
        yield example, printed_by(example, names, PAGE), names
        names["engine"].detach()


def test_the_example_is_short_and_prints_what_is_shown(run):
    example, printed, names = run
    assert len([line for line in example.text.splitlines() if line.strip()]) <= 20
    figures = r"\d+\.\d+(?= %)"
    assert re.sub(figures, "#", printed.strip()) in re.sub(figures, "#", TEXT)
    assert "(epsilon = 2.999, delta = 0.001)" in printed
    settings = names["engine"].settings()
    assert settings["unit"] == {"name": "patient", "records_per_unit": 5}
    assert f"40 of {settings['dataset_size']} patients" in example.text


def test_owners_are_what_the_page_says(run):
    _, _, names = run
    data = {name: names[name] for name in ("model", "optimizer", "dataset", "patients")}
    names["engine"].detach()
    engine = qg.PrivacyEngine(
        data["model"],
        data["optimizer"],
        data["dataset"],
        units=data["patients"],
        records_per_unit=5,
        batch_size=40,
        delta=1e-3,
        noise_multiplier=1.0,
    )
    batch = next(engine.batches())
    next(batch)
    owners = engine.record_owners.tolist()
    assert owners == sorted(owners)
    assert set(owners) == set(range(max(owners) + 1))
    engine.detach()


def test_arguments_of_the_page_are_those_of_the_engine():
    known = inspect.signature(qg.PrivacyEngine).parameters
    for name in ("units", "records_per_unit", "unit", "public_size"):
        assert name in known
        assert f"`{name}" in TEXT
