"""Restaurants in a sentence, from a list of their properties: E2E with a causal language model."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.data.folders import own_folder
from quietgrad.recipes.hugging_face import Logits, encoder_folder, tokenizer, transformers
from quietgrad.recipes.language import IGNORED, LanguageModelling, Prompts, TestTexts
from quietgrad.recipes.recipe import Places, Recipe, Reference, Smoke, Split
from quietgrad.recipes.settings import Settings

_LENGTH = 100
_ANSWER = 48
_WORDS = 50  # in smoke runs
_PAPER = '"Automatic Clipping", Table 4'
_PRETRAINED = "pretrained GPT2, the larger training file"


def e2e() -> Recipe:
    """A GPT2 in the folder that is given, or a small one from random weights."""
    return Recipe(
        name="e2e",
        summary="sentences about restaurants, a local GPT2 or a small one from scratch",
        data="folder; fetch `minilm` (its tokenizer)",
        load_data=load_data,
        build_model=build_model,
        settings=Settings(
            epochs=10,
            batch_size=1024,
            learning_rate=2e-3,
            optimizer="adamw",
            weight_decay=0.01,
            epsilon=8.0,
            delta=1e-5,
            physical_batch_size=32,
        ),
        smoke=Smoke(_made, lambda places: Logits(_gpt2(_WORDS, width=16, layers=1, heads=2))),
        task=LanguageModelling(),
        references=(
            Reference(_PAPER, "auto-s", 3.0, 61.340, note=_PRETRAINED),
            Reference(_PAPER, "abadi", 3.0, 61.519, note=_PRETRAINED),
            Reference(_PAPER, "none", None, 69.463, note=_PRETRAINED),
        ),
        takes=("data", "model"),
    )


def load_data(places: Places) -> Split:
    """Trains on `trainset.csv` where it is, else on `devset.csv`; tests on unseen restaurants."""
    pairs = _pairs(places)
    words = tokenizer(encoder_folder(places))
    train = _columns(words, pairs.train_meanings, pairs.train_references)
    flat = [
        (meaning, reference)
        for meaning, references in zip(pairs.test_meanings, pairs.test_references, strict=True)
        for reference in references
    ]
    test = _columns(words, [meaning for meaning, _ in flat], [text for _, text in flat])
    prompts = _prompts(words, pairs.test_meanings, pairs.test_references)
    return Split(train=TensorDataset(*train), test=TestTexts(TensorDataset(*test), prompts))


def build_model(places: Places) -> nn.Module:
    """The model in the folder, or four layers of 256."""
    if places.model is not None:
        library = transformers()
        return Logits(
            library.AutoModelForCausalLM.from_pretrained(places.model, local_files_only=True)
        )
    words = tokenizer(encoder_folder(places))
    return Logits(_gpt2(len(words), width=256, layers=4, heads=4))


def _pairs(places: Places) -> data.PairData:
    """A large file that is there and damaged is refused, not passed over."""
    folder = places.data or own_folder("e2e")
    names = ("trainset.csv", "devset.csv")
    if folder is not None and [(folder / name).exists() for name in names] == [False, True]:
        return data.load("e2e", folder, train="devset")
    return data.load("e2e", folder)


def _end(words: Any) -> int:
    """The token behind a meaning, and behind a sentence."""
    end: int = words.eos_token_id if words.eos_token_id is not None else words.sep_token_id
    return end


def _columns(words: Any, meanings: list[str], references: list[str]) -> tuple[Tensor, Tensor]:
    """Meaning and sentence in one row, padded behind; only the sentence counts."""
    end = _end(words)
    tokens = torch.full((len(meanings), _LENGTH), words.pad_token_id)
    targets = torch.full((len(meanings), _LENGTH), IGNORED)
    asked = words(meanings, add_special_tokens=False)["input_ids"]
    answered = words(references, add_special_tokens=False)["input_ids"]
    for row, (meaning, reference) in enumerate(zip(asked, answered, strict=True)):
        both = [*meaning, end, *reference, end][:_LENGTH]
        tokens[row, : len(both)] = torch.tensor(both)
        targets[row, len(meaning) + 1 : len(both)] = tokens[row, len(meaning) + 1 : len(both)]
    return tokens, targets


def _prompts(words: Any, meanings: list[str], references: list[list[str]]) -> Prompts:
    """Padded in front, so that the answer follows at once."""
    end = _end(words)
    asked = [[*ids, end] for ids in words(meanings, add_special_tokens=False)["input_ids"]]
    longest = max(len(ids) for ids in asked)
    tokens = torch.full((len(asked), longest), words.pad_token_id)
    for row, ids in enumerate(asked):
        tokens[row, longest - len(ids) :] = torch.tensor(ids)
    mask = torch.zeros_like(tokens)
    for row, ids in enumerate(asked):
        mask[row, longest - len(ids) :] = 1
    return Prompts(tokens, mask, references, words, _ANSWER)


def _gpt2(words: int, *, width: int, layers: int, heads: int) -> nn.Module:
    library = transformers()
    config = library.GPT2Config(
        vocab_size=words,
        n_positions=2 * _LENGTH,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: nn.Module = library.GPT2LMHeadModel(config)
    return model


class _Numbers:
    """Stands for a tokenizer in smoke runs: every token is a word, its number."""

    pad_token_id = 0

    def batch_decode(self, rows: Tensor, skip_special_tokens: bool) -> list[str]:
        return [" ".join(map(str, row.tolist())) for row in rows]


def _made(places: Places) -> Split:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(_WORDS, (32, 8), generator=generator)
    made = TensorDataset(tokens, tokens)
    asked = tokens[:4, :4]
    prompts = Prompts(asked, torch.ones_like(asked), [["1 2"], ["3 4", "5"]] * 2, _Numbers(), 4)
    return Split(train=made, test=TestTexts(made, prompts))
