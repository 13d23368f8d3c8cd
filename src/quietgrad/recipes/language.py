"""Language modelling: the next token, and texts that go on from a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from quietgrad.errors import MissingExtraError
from quietgrad.recipes.tasks import Task

IGNORED = -100
"""A target that does not count, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class Prompts:
    """What a model is asked to go on with, and what people wrote.

    Attributes:
        tokens: ``[N, T]``, padded in front.
        mask: which of them count.
        references: good answers to each.
        tokenizer: of `transformers`, to read answers with.
        length: most tokens of an answer.
    """

    tokens: Tensor
    mask: Tensor
    references: list[list[str]]
    tokenizer: Any
    length: int


class TestTexts(Dataset[Any]):
    """Tokens and targets to measure the loss with, and prompts to be answered.

    Args:
        columns: tokens and targets, as in training.
        prompts: None for no answers.
    """

    __test__ = False  # for pytest: no test

    def __init__(self, columns: Dataset[Any], prompts: Prompts | None) -> None:
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
        for tokens, targets in DataLoader(test, batch_size=64):
            each, counted = _token_losses(model(tokens), targets)
            loss, total = loss + each.sum().item(), total + int(counted.sum())
        mean = loss / max(1, total)
        return {"loss": mean, "perplexity": float(torch.tensor(mean).exp())}

    @torch.no_grad()
    def final_scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """BLEU and ROUGE-L of the texts the model writes."""
        prompts = test.prompts if isinstance(test, TestTexts) else None
        if prompts is None:
            return {}
        written = _answers(model, prompts)
        return {"bleu": _bleu(written, prompts), "rouge_l": _rouge_l(written, prompts)}


def _token_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each token's prediction of the next, and which of them count."""
    ahead = targets[:, 1:]
    each = F.cross_entropy(logits[:, :-1].mT, ahead, reduction="none", ignore_index=IGNORED)
    return each, ahead != IGNORED


def _answers(model: Any, prompts: Prompts) -> list[str]:
    """Greedily, one token after the other."""
    found = []
    for tokens, mask in zip(prompts.tokens.split(64), prompts.mask.split(64), strict=True):
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


def _bleu(written: list[str], prompts: Prompts) -> float:
    try:
        import sacrebleu
    except ImportError as error:
        raise MissingExtraError("sacrebleu", "text") from error
    most = max(len(each) for each in prompts.references)
    columns: Any = [  # None where a prompt has fewer answers than others
        [each[place] if place < len(each) else None for each in prompts.references]
        for place in range(most)
    ]
    return float(sacrebleu.corpus_bleu(written, columns, lowercase=True).score)


def _rouge_l(written: list[str], prompts: Prompts) -> float:
    """The best over the references, in per cent."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise MissingExtraError("rouge-score", "text") from error
    scorer = RougeScorer(["rougeL"])
    best: list[float] = [
        max(scorer.score(reference, answer)["rougeL"].fmeasure for reference in references)
        for answer, references in zip(written, prompts.references, strict=True)
    ]
    return 100 * sum(best) / len(best)
