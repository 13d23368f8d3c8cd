"""Labels of texts that differ in length."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quietgrad.errors import SampleMixingError
from quietgrad.recipes.tasks import Classification

# Few different lengths, so that the fastest way is measured for few shapes.
_MULTIPLE = 8


class TextClassification(Classification):
    """Tokens, which of them count, and labels. What no text of a batch has is not computed."""

    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Cross-entropy; what each text gives does not depend on how far it is padded."""
        tokens, mask, labels = batch
        return super().losses(model, (*without_padding(tokens, mask), labels))


def without_padding(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the last columns in which nothing counts, but for a multiple of eight."""
    counted = mask.any(0).nonzero()
    longest = int(counted[-1]) + 1 if len(counted) else 1
    kept = -(-longest // _MULTIPLE) * _MULTIPLE
    return tokens[:, :kept], mask[:, :kept]


@torch.no_grad()
def require_no_effect_of_padding(model: nn.Module, vocabulary: int, padding: int) -> None:
    """Refuse a model whose answers depend on how far a text is padded.

    Texts are padded to the longest of their micro-batch, so there one text would change what the
    others give. Looked for with random texts, not with the data.

    Args:
        model: takes tokens, and which of them count.
        vocabulary: number of words.
        padding: the word that stands for none.

    Raises:
        SampleMixingError: they do.
    """
    generator = torch.Generator().manual_seed(0)
    words = torch.tensor([word for word in range(vocabulary) if word != padding])
    chosen = torch.randint(len(words), (4, 2 * _MULTIPLE), generator=generator)
    mask = torch.arange(2 * _MULTIPLE).lt(torch.tensor([[3], [5], [7], [8]])).long()
    tokens = torch.where(mask.bool(), words[chosen], padding)
    was_training = model.training
    model.eval()
    long, short = model(tokens, mask), model(*without_padding(tokens, mask))
    model.train(was_training)
    if not torch.allclose(long, short, rtol=1e-3, atol=1e-4):
        raise SampleMixingError(
            f"{type(model).__name__} answers otherwise when the same text is padded further (by "
            f"up to {float((long - short).abs().max()):.2g}): the longest text of a batch would "
            "change what the others give. Choose an encoder whose attention mask hides padding "
            "entirely"
        )
