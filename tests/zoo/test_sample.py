"""A sample of the zoo is exact; the whole of it has nothing wrong."""

import pytest

pytest.importorskip("transformers")

from .families import families, find
from .models import subjects_of
from .more_programs import programs
from .runner import verdict_of

# Families that are exact, of as many kinds as there are; add to them as more become so.
EXACT = """
albert bert bart bloom clip_text_model convnext deberta-v2 distilbert electra falcon gemma3_text
gpt2 gpt_neox llama mamba mistral opt phi3 qwen3 roberta segformer t5 vit wav2vec2 whisper
""".split()
EXACT_PROGRAMS = [
    "lstm cell in a loop",
    "time first",
    "pad sequence of the batch",
    "embedding bag with offsets",
    "weighted embedding bag",
    "experts by one hot einsum",
    "crops folded into the batch",
    "two views stacked into the batch",
    "learned queries over a padded set",
]


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("name", EXACT)
def test_family_is_exact(name):
    found = verdict_of(*subjects_of(find(name)))
    assert (found.verdict, found.reason) == ("exact", "")
    assert found.used > 0.5


@pytest.mark.parametrize("name", EXACT_PROGRAMS)
def test_program_is_exact(name):
    found = verdict_of(programs()[f"program {name}"])
    assert (found.verdict, found.reason) == ("exact", "")


def test_there_are_many_families():
    assert len(families()) > 300
