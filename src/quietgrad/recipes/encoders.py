"""Models and tokenizers of `transformers`, from local folders only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.data.pretrained import pretrained_folder
from quietgrad.errors import MissingExtraError, SampleMixingError
from quietgrad.recipes.recipe import Classification, Places


def transformers() -> Any:
    """The library; MissingExtraError if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "transformers") from error
    return transformers


def encoder_folder(places: Places) -> Path:
    """The folder that was given, or MiniLM's if it was fetched."""
    return places.model or pretrained_folder("minilm")


def tokenizer(folder: Path) -> Any:
    """Of a model in a folder."""
    found = transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if found.pad_token is None:
        found.pad_token = found.eos_token
    return found


class Logits(nn.Module):
    """A model of `transformers` that returns its logits; a language model can also generate."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens or images to logits."""
        logits: Tensor = self.model(inputs).logits
        return logits

    def generate(self, **options: Any) -> Tensor:
        """Tokens that continue a prompt."""
        made: Tensor = self.model.generate(**options)
        return made


class EncoderClassifier(nn.Module):
    """A pretrained encoder of `transformers`, the mean of its last states, and a linear layer."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        size: int = encoder.config.hidden_size  # type: ignore[union-attr, assignment]
        self.head = nn.Linear(size, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Tokens ``[B, T]`` and which of them count, to logits ``[B, classes]``."""
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        counted = mask.unsqueeze(-1).to(states.dtype)
        logits: Tensor = self.head((states * counted).sum(1) / counted.sum(1).clamp(min=1))
        return logits


def pretrained_encoder(folder: Path) -> nn.Module:
    """Without its pooler, which these classifiers do not use."""
    options: dict[str, Any] = {"local_files_only": True}
    config = transformers().AutoConfig.from_pretrained(folder, local_files_only=True)
    if hasattr(config, "pooler_fc_size") or config.model_type in ("bert", "roberta"):
        options["add_pooling_layer"] = False
    with _quietly():
        encoder: nn.Module = transformers().AutoModel.from_pretrained(folder, **options)
    return encoder


@contextmanager
def _quietly() -> Iterator[None]:
    """Without a progress bar, and without a report of the pooler's weights, which are not used."""
    logging = transformers().utils.logging
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def small_encoder(vocabulary: int) -> nn.Module:
    """With random weights, for smoke runs."""
    library = transformers()
    config = library.BertConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    encoder: nn.Module = library.BertModel(config, add_pooling_layer=False)
    return encoder


def with_adapters(encoder: nn.Module, rank: int) -> nn.Module:
    """Low-rank adapters in the attention; all else is frozen (LoRA, Hu et al. 2022)."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingExtraError("peft", "transformers") from error
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
    adapted: nn.Module = get_peft_model(encoder, adapters)
    return adapted


def with_biases_only(encoder: nn.Module) -> nn.Module:
    """Biases are trained, all else is frozen (BitFit, Ben Zaken et al. 2022)."""
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return encoder


# Few different lengths, so that the fastest way is measured for few shapes.
_MULTIPLE = 8


class TextClassification(Classification):
    """Tokens, their mask, and labels. Columns that are padding in all texts are not computed."""

    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Cross-entropy; the loss of a text does not depend on how far it is padded."""
        tokens, mask, labels = batch
        return super().losses(model, (*without_padding(tokens, mask), labels))


def without_padding(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the last columns that are all padding, up to a multiple of eight."""
    counted = mask.any(0).nonzero()
    longest = int(counted[-1]) + 1 if len(counted) else 1
    kept = -(-longest // _MULTIPLE) * _MULTIPLE
    return tokens[:, :kept], mask[:, :kept]


@torch.no_grad()
def require_no_effect_of_padding(model: nn.Module, vocabulary: int, padding: int) -> None:
    """Refuse a model whose answers depend on how far a text is padded.

    Texts are padded to the longest of their micro-batch, so there one text would change the losses
    of others. Tested with random texts, not with the data; `padding` is the padding token.
    """
    generator = torch.Generator().manual_seed(0)
    words = torch.tensor([word for word in range(vocabulary) if word != padding], device="cpu")
    chosen = torch.randint(len(words), (4, 2 * _MULTIPLE), generator=generator, device="cpu")
    lengths = torch.tensor([[3], [5], [7], [8]], device="cpu")
    mask = torch.arange(2 * _MULTIPLE, device="cpu").lt(lengths).long()
    tokens = torch.where(mask.bool(), words[chosen], padding)
    was_training = model.training
    model.eval()
    long, short = model(tokens, mask), model(*without_padding(tokens, mask))
    model.train(was_training)
    if not torch.allclose(long, short, rtol=1e-3, atol=1e-4):
        raise SampleMixingError(
            f"{type(model).__name__} gives other logits when the same text is padded further (by "
            f"up to {float((long - short).abs().max()):.2g}): the longest text of a batch would "
            "change the losses of the others. Choose an encoder whose attention mask hides padding "
            "entirely"
        )
