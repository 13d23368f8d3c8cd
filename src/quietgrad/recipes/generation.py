"""The recipe e2e: language modelling, scored by the texts that the model generates."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from quietgrad.data.datasets import load
from quietgrad.data.records import PairData
from quietgrad.data.sources import own_folder
from quietgrad.errors import MissingExtraError
from quietgrad.recipes.encoders import Logits, encoder_folder, tokenizer, transformers
from quietgrad.recipes.recipe import (
    AUTOMATIC_CLIPPING,
    Places,
    Recipe,
    Reference,
    Settings,
    Smoke,
    Split,
    Task,
    on_device_of,
)

_IGNORED = -100  # a target that does not count, as in `torch.nn.functional.cross_entropy`
_LENGTH = 100  # tokens of a meaning and a sentence
_SMOKE_WORDS = 50


def e2e() -> Recipe:
    """A GPT2 in the folder that is given, or a small one from random weights."""
    source, note = f"{AUTOMATIC_CLIPPING}, Table 4", "pretrained GPT2, the larger training file"
    return Recipe(
        name="e2e",
        summary="sentences about restaurants, a local GPT2 or a small one from scratch",
        data="folder; fetch `minilm` (its tokenizer)",
        load_data=_load_data,
        build_model=_build_model,
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
        smoke=Smoke(
            _draw_data, lambda places: Logits(_gpt2(_SMOKE_WORDS, width=16, layers=2, heads=2))
        ),
        task=LanguageModelling(),
        references=(
            Reference(source, "auto-s", 3.0, 61.340, note=note),
            Reference(source, "abadi", 3.0, 61.519, note=note),
            Reference(source, "none", None, 69.463, note=note),
        ),
        takes=("data", "model"),
    )


@dataclass(frozen=True)
class Prompts:
    """Prompts for the model, and what people wrote."""

    tokens: Tensor  # ``[N, T]``, padded in front
    mask: Tensor  # 0 for padding
    references: list[list[str]]  # good answers to each prompt
    tokenizer: Any  # of `transformers`, to decode answers with
    length: int  # largest number of tokens of an answer


class PromptedTexts(Dataset[Any]):
    """Tokens and targets as in training, to measure the loss with, and prompts to be answered."""

    def __init__(self, columns: Dataset[Any], prompts: Prompts) -> None:
        self._columns, self.prompts = columns, prompts

    def __len__(self) -> int:
        return len(self._columns)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self._columns[index]


class LanguageModelling(Task):
    """Tokens and targets; the model makes logits ``[B, T, words]`` of the tokens."""

    metric = "bleu"
    is_share = False

    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Mean cross-entropy over a text's targets."""
        tokens, targets = batch
        each, counted = _token_losses(model(tokens), targets)
        return each.sum(1) / counted.sum(1).clamp(min=1)

    @torch.no_grad()
    def scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Cross-entropy and perplexity of a token."""
        loss, total = 0.0, 0
        for batch in DataLoader(test, batch_size=64):
            tokens, targets = on_device_of(model, batch)
            each, counted = _token_losses(model(tokens), targets)
            loss, total = loss + each.sum().item(), total + int(counted.sum())
        mean = loss / max(1, total)
        return {"loss": mean, "perplexity": float(torch.tensor(mean, device="cpu").exp())}

    @torch.no_grad()
    def final_scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """BLEU and ROUGE-L of the texts the model generates."""
        if not isinstance(test, PromptedTexts):
            return {}
        written = _generate(model, test.prompts)
        references = test.prompts.references
        return {"bleu": _bleu(written, references), "rouge_l": _rouge_l(written, references)}


def _token_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each token's prediction of the next, and which of them count."""
    ahead = targets[:, 1:]
    each = F.cross_entropy(logits[:, :-1].mT, ahead, reduction="none", ignore_index=_IGNORED)
    return each, ahead != _IGNORED


def _generate(model: Any, prompts: Prompts) -> list[str]:
    """Answers by greedy decoding."""
    found = []
    for some in zip(prompts.tokens.split(64), prompts.mask.split(64), strict=True):
        tokens, mask = on_device_of(model, some)
        made = model.generate(
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=prompts.length,
            do_sample=False,
            pad_token_id=prompts.tokenizer.pad_token_id,
        )
        answers = made[:, tokens.shape[1] :]
        found += prompts.tokenizer.batch_decode(answers, skip_special_tokens=True)
    return [answer.strip() for answer in found]


def _bleu(written: list[str], references: list[list[str]]) -> float:
    try:
        import sacrebleu
    except ImportError as error:
        raise MissingExtraError("sacrebleu", "text") from error
    # None where a prompt has fewer references than others.
    columns: Any = [list(column) for column in zip_longest(*references)]
    return float(sacrebleu.corpus_bleu(written, columns, lowercase=True).score)


def _rouge_l(written: list[str], references: list[list[str]]) -> float:
    """The best over the references, in per cent."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise MissingExtraError("rouge-score", "text") from error
    scorer = RougeScorer(["rougeL"])
    best: list[float] = [
        max(scorer.score(reference, answer)["rougeL"].fmeasure for reference in known)
        for answer, known in zip(written, references, strict=True)
    ]
    return 100 * sum(best) / len(best)


def _load_data(places: Places) -> Split:
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
    return Split(train=TensorDataset(*train), test=PromptedTexts(TensorDataset(*test), prompts))


def _build_model(places: Places) -> nn.Module:
    """The model in the folder, or four layers of 256."""
    if places.model is not None:
        kind = transformers().AutoModelForCausalLM
        return Logits(kind.from_pretrained(places.model, local_files_only=True))
    words = tokenizer(encoder_folder(places))
    return Logits(_gpt2(len(words), width=256, layers=4, heads=4))


def _pairs(places: Places) -> PairData:
    """The small file only where the large one is missing: a damaged one is refused."""
    folder = places.data or own_folder("e2e")
    names = ("trainset.csv", "devset.csv")
    if folder is not None and [(folder / name).exists() for name in names] == [False, True]:
        return load("e2e", folder, train="devset")
    return load("e2e", folder)


def _end(words: Any) -> int:
    """The token behind a meaning, and behind a sentence."""
    end: int = words.eos_token_id if words.eos_token_id is not None else words.sep_token_id
    return end


def _columns(words: Any, meanings: list[str], references: list[str]) -> tuple[Tensor, Tensor]:
    """Meaning and sentence in one row, padded behind; only the sentence counts."""
    end = _end(words)
    tokens = torch.full((len(meanings), _LENGTH), words.pad_token_id, device="cpu")
    targets = torch.full((len(meanings), _LENGTH), _IGNORED, device="cpu")
    asked = words(meanings, add_special_tokens=False)["input_ids"]
    answered = words(references, add_special_tokens=False)["input_ids"]
    for row, (meaning, reference) in enumerate(zip(asked, answered, strict=True)):
        both = [*meaning, end, *reference, end][:_LENGTH]
        tokens[row, : len(both)] = torch.tensor(both, device="cpu")
        targets[row, len(meaning) + 1 : len(both)] = tokens[row, len(meaning) + 1 : len(both)]
    return tokens, targets


def _prompts(words: Any, meanings: list[str], references: list[list[str]]) -> Prompts:
    """Padded in front, so that the answer follows at once."""
    end = _end(words)
    asked = [[*ids, end] for ids in words(meanings, add_special_tokens=False)["input_ids"]]
    longest = max(len(ids) for ids in asked)
    tokens = torch.full((len(asked), longest), words.pad_token_id, device="cpu")
    mask = torch.zeros_like(tokens)
    for row, ids in enumerate(asked):
        tokens[row, longest - len(ids) :] = torch.tensor(ids, device="cpu")
        mask[row, longest - len(ids) :] = 1
    return Prompts(tokens, mask, references, words, length=48)


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


class _NumberTokenizer:
    """A tokenizer for smoke runs: every token is decoded to its number."""

    pad_token_id = 0

    def batch_decode(self, rows: Tensor, skip_special_tokens: bool) -> list[str]:
        return [" ".join(map(str, row.tolist())) for row in rows]


def _draw_data(places: Places) -> Split:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(_SMOKE_WORDS, (32, 8), generator=generator, device="cpu")
    drawn = TensorDataset(tokens, tokens)
    asked = tokens[:4, :4]
    prompts = Prompts(
        asked, torch.ones_like(asked), [["1 2"], ["3 4", "5"]] * 2, _NumberTokenizer(), 4
    )
    return Split(train=drawn, test=PromptedTexts(drawn, prompts))
