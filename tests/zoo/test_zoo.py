"""All of it, which takes minutes: whatever is not refused is right, and no error is foreign."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

from .exhibits import exhibits
from .runner import read, run

# To be mended: each is an error of the library, not of the model.
WRONG = {"depth_pro"}
FOREIGN = {"dpt", "wavlm", "peft shira", "program nested tensor", "program vmap over samples"}


@pytest.mark.slow
def test_nothing_is_wrong(tmp_path):
    out = tmp_path / "zoo.jsonl"
    run(exhibits(), out)
    rows = read(out)
    built = [row for row in rows if row["verdict"] != "unbuildable"]
    assert len(built) > 350
    for verdict, known in (("wrong", WRONG), ("foreign", FOREIGN)):
        assert {row["name"] for row in rows if row["verdict"] == verdict} <= known
