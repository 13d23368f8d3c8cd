"""Labels of texts that differ in length."""

from collections.abc import Sequence

from torch import Tensor, nn

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
