"""Recipes on text: GLUE tasks with a pretrained encoder, and reviews of IMDB with a GRU."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quietgrad.data.datasets import load
from quietgrad.nn.models import gru_classifier
from quietgrad.recipes.encoders import (
    EncoderClassifier,
    TextClassification,
    encoder_folder,
    pretrained_encoder,
    require_no_effect_of_padding,
    small_encoder,
    tokenizer,
    with_adapters,
    with_biases_only,
)
from quietgrad.recipes.recipe import (
    AUTOMATIC_CLIPPING,
    CLIPPING_BIAS,
    INNER_OUTER,
    Places,
    Recipe,
    Reference,
    Settings,
    Smoke,
    Split,
    synthetic,
)

GlueName = Literal["sst2", "qnli", "qqp", "mnli"]

_SMOKE_WORDS = 50
# What a task asks, its number of classes, and the length that texts are cut to.
_TASKS: dict[GlueName, tuple[str, int, int]] = {
    "sst2": ("sentiment of sentences", 2, 48),
    "qnli": ("does a sentence answer a question", 2, 128),
    "qqp": ("do two questions ask the same", 2, 128),
    "mnli": ("does a sentence follow from another", 3, 128),
}


def sst2() -> Recipe:
    """Sentiment of sentences, all weights trained."""
    source, note = f"{AUTOMATIC_CLIPPING}, Table 2", "RoBERTa-base, 256 tokens"
    references = (Reference(source, "auto-s", 3.0, 0.9232, note=note),)
    return _glue_recipe("sst2", "sst2", 1000, 3, 5e-4, references=references)


def sst2_lora() -> Recipe:
    """Sentiment of sentences, low-rank adapters trained."""

    def prepare(encoder: nn.Module) -> nn.Module:
        return with_adapters(encoder, rank=8)

    return _glue_recipe(
        "sst2-lora", "sst2", 1000, 3, 2e-3, trained="low-rank adapters", prepare=prepare
    )


def sst2_bias() -> Recipe:
    """Sentiment of sentences, biases trained."""
    return _glue_recipe(
        "sst2-bias", "sst2", 1000, 3, 5e-3, trained="biases only", prepare=with_biases_only
    )


def qnli() -> Recipe:
    """Whether a sentence answers a question."""
    return _glue_recipe("qnli", "qnli", 2000, 6, 5e-4)


def qqp() -> Recipe:
    """Whether two questions ask the same."""
    return _glue_recipe("qqp", "qqp", 6000, 18, 5e-4)


def mnli() -> Recipe:
    """Whether a sentence follows from another, contradicts it, or neither."""
    return _glue_recipe("mnli", "mnli", 6000, 18, 5e-4)


def _glue_recipe(
    name: str,
    task: GlueName,
    batch_size: int,
    epochs: int,
    learning_rate: float,
    *,
    trained: str = "all weights",
    prepare: Callable[[nn.Module], nn.Module] = lambda encoder: encoder,
    references: tuple[Reference, ...] = (),
) -> Recipe:
    question, classes, length = _TASKS[task]

    def load_data(places: Places) -> Split:
        texts = load(task, places.data)
        words = tokenizer(encoder_folder(places))

        def columns(first: list[str], second: list[str] | None) -> tuple[Tensor, Tensor]:
            encoded = _encode(words, first, second, length)
            return encoded["input_ids"], encoded["attention_mask"]

        train = columns(texts.train_texts, texts.train_pairs)
        test = columns(texts.test_texts, texts.test_pairs)
        return Split.of_columns(
            (*train, texts.train_labels), (*test, texts.test_labels), lengths=train[1].sum(1)
        )

    def build_model(places: Places) -> nn.Module:
        encoder = pretrained_encoder(encoder_folder(places))
        config: Any = encoder.config
        model = EncoderClassifier(prepare(encoder), classes)
        require_no_effect_of_padding(model, config.vocab_size, config.pad_token_id or 0)
        return model

    def build_small(places: Places) -> nn.Module:
        return EncoderClassifier(prepare(small_encoder(_SMOKE_WORDS)), classes)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        tokens, labels = _draw_texts(generator, classes)
        return tokens, torch.ones_like(tokens), labels

    return Recipe(
        name=name,
        summary=f"{question}, MiniLM or a local encoder, {trained}",
        data="folder; fetch `minilm`",
        load_data=load_data,
        build_model=build_model,
        settings=Settings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            optimizer="adamw",
            epsilon=3.0,
            delta=1e-5,
            physical_batch_size=50,
        ),
        task=TextClassification(),
        smoke=Smoke(synthetic(draw), build_small),
        references=references,
        takes=("data", "model"),
    )


def _encode(
    words: Any, texts: list[str], pairs: list[str] | None, length: int, **options: Any
) -> dict[str, Tensor]:
    """Tokens ``[N, length]`` and which of them count, each text by itself."""
    encoded: dict[str, Tensor] = words(
        texts,
        pairs,
        truncation=True,
        padding="max_length",
        max_length=length,
        return_tensors="pt",
        **options,
    )
    return encoded


def _draw_texts(generator: torch.Generator, classes: int) -> tuple[Tensor, Tensor]:
    """Random tokens and labels, for smoke runs."""
    tokens = torch.randint(_SMOKE_WORDS, (32, 6), generator=generator, device="cpu")
    return tokens, torch.randint(classes, (32,), generator=generator, device="cpu")


_OUTER = (
    "other word vectors, the official split, 60 epochs in batches of 2,000; radius 5 and learning"
    " rate 0.1, as here for abadi"
)


def imdb() -> Recipe:
    """The enhanced network: both projections standardized before the gates."""
    note = f"{INNER_OUTER}; {_OUTER}"
    references = _imdb_references(f"{CLIPPING_BIAS}, Table 1", 0.775, 0.792, note)
    return _imdb_recipe("imdb", enhanced=True, references=references)


def imdb_plain() -> Recipe:
    """An ordinary GRU."""
    references = _imdb_references(f"{CLIPPING_BIAS}, Table 2", 0.696, 0.735, _OUTER)
    return _imdb_recipe("imdb-plain", enhanced=False, references=references)


def _imdb_references(
    source: str, at_4: float, at_8: float, note: str
) -> tuple[Reference, Reference]:
    return (
        Reference(source, "abadi", 4.0, at_4, note=note),
        Reference(source, "abadi", 8.0, at_8, note=note),
    )


def _imdb_recipe(name: str, *, enhanced: bool, references: tuple[Reference, ...]) -> Recipe:
    def build_small(places: Places) -> nn.Module:
        table = torch.randn(_SMOKE_WORDS, 8, device="cpu")
        return gru_classifier(table, hidden=4, enhanced=enhanced)

    kind = "enhanced" if enhanced else "plain"
    return Recipe(
        name=name,
        summary=f"sentiment of film reviews, {kind} GRU, frozen word vectors of MiniLM",
        data="fetch `imdb`, `minilm`",
        load_data=_load_imdb,
        build_model=lambda places: gru_classifier(_word_vectors(places), enhanced=enhanced),
        settings=Settings(
            epochs=20,
            batch_size=1000,
            learning_rate=0.5,
            momentum=0.9,
            epsilon=8.0,
            delta=1e-5,
            physical_batch_size=250,
        ),
        tuned={"abadi": {"learning_rate": 0.1, "radius": 5.0}},  # the paper's
        smoke=Smoke(synthetic(lambda generator: _draw_texts(generator, 2)), build_small),
        references=references,
        takes=("data", "model"),
    )


def _load_imdb(places: Places) -> Split:
    """Padded in front: the last words of a review come last."""
    texts = load("imdb", places.data)
    words = tokenizer(encoder_folder(places))
    options = {"padding_side": "left", "add_special_tokens": False}
    train, test = (
        _encode(words, part, None, length=128, **options)["input_ids"]
        for part in (texts.train_texts, texts.test_texts)
    )
    return Split.of_columns((train, texts.train_labels), (test, texts.test_labels))


def _word_vectors(places: Places) -> Tensor:
    """The encoder's word vectors, by their 100 principal components, at unit scale: all public."""
    encoder = pretrained_encoder(encoder_folder(places))
    vectors = encoder.get_input_embeddings().weight.detach()  # type: ignore[operator]
    centred = vectors - vectors.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -100:]
    reduced: Tensor = centred @ directions
    return reduced / reduced.std()
