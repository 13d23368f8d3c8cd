"""Models and tokenizers of `transformers`, from local folders only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.errors import MissingExtraError, SampleMixingError
from quietgrad.recipes.recipe import Classification, LoadData, Places, Split


def transformers() -> Any:
    """The library.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "transformers") from error
    return transformers


def encoder_folder(places: Places) -> Path:
    """The folder that was given, or MiniLM's if it was fetched."""
    return places.model or data.pretrained_folder("minilm")


def tokenizer(folder: Path) -> Any:
    """Of a model in a folder."""
    found = transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if found.pad_token is None:
        found.pad_token = found.eos_token
    return found


def token_ids(
    folder: Path, texts: list[str], pairs: list[str] | None, length: int
) -> tuple[Tensor, Tensor]:
    """Tokens ``[N, length]`` and which of them count, each text by itself."""
    encoded = tokenizer(folder)(
        texts,
        pairs,
        truncation=True,
        padding="max_length",
        max_length=length,
        return_tensors="pt",
    )
    return encoded["input_ids"], encoded["attention_mask"]


class Logits(nn.Module):
    """A model of `transformers` that returns its logits; one of language can go on with a prompt.

    Args:
        model: takes tokens or images as its first argument.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens or images to logits."""
        logits: Tensor = self.model(inputs).logits
        return logits

    def generate(self, **options: Any) -> Tensor:
        """Tokens that go on from others."""
        made: Tensor = self.model.generate(**options)
        return made


class EncoderClassifier(nn.Module):
    """A pretrained encoder, the mean of its last states, and a linear layer.

    Args:
        encoder: of `transformers`.
        classes: number of logits.
    """

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
        num_hidden_layers=1,
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


def made_tokens(*, length: int, vocabulary: int, classes: int, samples: int = 32) -> LoadData:
    """Makes random tokens with masks and labels, for smoke runs."""

    def load_data(places: Places) -> Split:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocabulary, (samples, length), generator=generator)
        labels = torch.randint(classes, (samples,), generator=generator)
        made = TensorDataset(tokens, torch.ones_like(tokens), labels)
        return Split(train=made, test=made)

    return load_data


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
