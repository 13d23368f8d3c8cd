"""GLUE tasks with a pretrained encoder: all weights, low-rank adapters, or biases only."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.nn.models import gru_classifier
from quietgrad.recipes.encoders import (
    EncoderClassifier,
    TextClassification,
    encoder_folder,
    made_tokens,
    pretrained_encoder,
    require_no_effect_of_padding,
    small_encoder,
    token_ids,
    tokenizer,
    with_adapters,
    with_biases_only,
)
from quietgrad.recipes.recipe import Places, Recipe, Reference, Smoke, Split
from quietgrad.recipes.settings import Settings

Task = Literal["sst2", "qnli", "qqp", "mnli"]
Prepare = Callable[[nn.Module], nn.Module]

_RANK = 8
_WORDS = 50  # in smoke runs
_SOURCE = '"Automatic Clipping", Table 2'
_LARGER = "RoBERTa-base, 256 tokens"


def sst2() -> Recipe:
    """Sentiment of sentences, all weights trained."""
    return _recipe_glue(
        "sst2",
        "sst2",
        "all weights",
        lambda encoder: encoder,
        _settings(batch_size=1000, epochs=3, learning_rate=5e-4),
        references=(Reference(_SOURCE, "auto-s", 3.0, 0.9232, note=_LARGER),),
    )


def sst2_lora() -> Recipe:
    """Sentiment of sentences, low-rank adapters trained."""
    return _recipe_glue(
        "sst2-lora",
        "sst2",
        "low-rank adapters",
        lambda encoder: with_adapters(encoder, _RANK),
        _settings(batch_size=1000, epochs=3, learning_rate=2e-3),
    )


def sst2_bias() -> Recipe:
    """Sentiment of sentences, biases trained."""
    return _recipe_glue(
        "sst2-bias",
        "sst2",
        "biases only",
        with_biases_only,
        _settings(batch_size=1000, epochs=3, learning_rate=5e-3),
    )


def qnli() -> Recipe:
    """Whether a sentence answers a question."""
    settings = _settings(batch_size=2000, epochs=6, learning_rate=5e-4)
    return _recipe_glue("qnli", "qnli", "all weights", lambda encoder: encoder, settings)


def qqp() -> Recipe:
    """Whether two questions ask the same."""
    settings = _settings(batch_size=6000, epochs=18, learning_rate=5e-4)
    return _recipe_glue("qqp", "qqp", "all weights", lambda encoder: encoder, settings)


def mnli() -> Recipe:
    """Whether a sentence follows from another, contradicts it, or neither."""
    settings = _settings(batch_size=6000, epochs=18, learning_rate=5e-4)
    return _recipe_glue("mnli", "mnli", "all weights", lambda encoder: encoder, settings)


_CLASSES: dict[Task, int] = {"sst2": 2, "qnli": 2, "qqp": 2, "mnli": 3}
_LENGTHS: dict[Task, int] = {"sst2": 48, "qnli": 128, "qqp": 128, "mnli": 128}
_SUMMARIES: dict[Task, str] = {
    "sst2": "sentiment of sentences",
    "qnli": "does a sentence answer a question",
    "qqp": "do two questions ask the same",
    "mnli": "does a sentence follow from another",
}


def _settings(*, batch_size: int, epochs: int, learning_rate: float) -> Settings:
    return Settings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        optimizer="adamw",
        epsilon=3.0,
        delta=1e-5,
        physical_batch_size=50,
    )


def _recipe_glue(
    name: str,
    task: Task,
    trained: str,
    prepare: Prepare,
    settings: Settings,
    references: tuple[Reference, ...] = (),
) -> Recipe:
    classes = _CLASSES[task]

    def build_model(places: Places) -> nn.Module:
        encoder = pretrained_encoder(encoder_folder(places))
        config: Any = encoder.config
        model = EncoderClassifier(prepare(encoder), classes)
        require_no_effect_of_padding(model, config.vocab_size, config.pad_token_id or 0)
        return model

    def build_small(places: Places) -> nn.Module:
        return EncoderClassifier(prepare(small_encoder(_WORDS)), classes)

    return Recipe(
        name=name,
        summary=f"{_SUMMARIES[task]}, MiniLM or a local encoder, {trained}",
        data="folder; fetch `minilm`",
        load_data=lambda places: _load(task, places),
        build_model=build_model,
        settings=settings,
        task=TextClassification(),
        smoke=Smoke(made_tokens(length=6, vocabulary=_WORDS, classes=classes), build_small),
        references=references,
        takes=("data", "model"),
    )


def _load(task: Task, places: Places) -> Split:
    texts = data.load(task, places.data)
    folder, length = encoder_folder(places), _LENGTHS[task]
    train = token_ids(folder, texts.train_texts, texts.train_pairs, length)
    test = token_ids(folder, texts.test_texts, texts.test_pairs, length)
    return Split(
        train=TensorDataset(*train, texts.train_labels),
        test=TensorDataset(*test, texts.test_labels),
        lengths=train[1].sum(1),
    )


_LENGTH = 128
_DIMENSIONS = 100
_BIAS = '"A Theory to Instruct Differentially-Private Learning via Clipping Bias Reduction"'
_OUTER = (
    "other word vectors, the official split, 60 epochs in batches of 2,000; radius 5 and learning"
    " rate 0.1, as here for abadi"
)
_INNER_OUTER = f"inner-outer momentum, K0 = 2 and gamma0 = 0.08 (--inner-steps 2); {_OUTER}"


def imdb() -> Recipe:
    """The enhanced network: both projections standardized before the gates."""
    return _recipe_imdb(
        "imdb",
        enhanced=True,
        references=(
            Reference(f"{_BIAS}, Table 1", "abadi", 4.0, 0.775, note=_INNER_OUTER),
            Reference(f"{_BIAS}, Table 1", "abadi", 8.0, 0.792, note=_INNER_OUTER),
        ),
    )


def imdb_plain() -> Recipe:
    """An ordinary GRU."""
    return _recipe_imdb(
        "imdb-plain",
        enhanced=False,
        references=(
            Reference(f"{_BIAS}, Table 2", "abadi", 4.0, 0.696, note=_OUTER),
            Reference(f"{_BIAS}, Table 2", "abadi", 8.0, 0.735, note=_OUTER),
        ),
    )


def _recipe_imdb(name: str, *, enhanced: bool, references: tuple[Reference, ...]) -> Recipe:
    def build_model(places: Places) -> nn.Module:
        return gru_classifier(_vectors(places), enhanced=enhanced)

    def build_small(places: Places) -> nn.Module:
        return gru_classifier(torch.randn(_WORDS, 8), hidden=4, enhanced=enhanced)

    kind = "enhanced" if enhanced else "plain"
    return Recipe(
        name=name,
        summary=f"sentiment of film reviews, {kind} GRU, frozen word vectors of MiniLM",
        data="fetch `imdb`, `minilm`",
        load_data=load_data,
        build_model=build_model,
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
        smoke=Smoke(_made, build_small),
        references=references,
        takes=("data", "model"),
    )


def load_data(places: Places) -> Split:
    """The last words of a review come last: padding is in front."""
    texts = data.load("imdb", places.data)
    words = tokenizer(encoder_folder(places))
    return Split(
        train=TensorDataset(_ids(words, texts.train_texts), texts.train_labels),
        test=TensorDataset(_ids(words, texts.test_texts), texts.test_labels),
    )


def _ids(words: object, texts: list[str]) -> Tensor:
    encoded = words(  # type: ignore[operator]
        texts,
        truncation=True,
        padding="max_length",
        padding_side="left",
        max_length=_LENGTH,
        add_special_tokens=False,
        return_tensors="pt",
    )
    ids: Tensor = encoded["input_ids"]
    return ids


def _vectors(places: Places) -> Tensor:
    """The encoder's word vectors, by their 100 principal components, at unit scale: all public."""
    encoder = pretrained_encoder(encoder_folder(places))
    vectors = encoder.get_input_embeddings().weight.detach()  # type: ignore[operator]
    centred = vectors - vectors.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -_DIMENSIONS:]
    reduced: Tensor = centred @ directions
    return reduced / reduced.std()


def _made(places: Places) -> Split:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(_WORDS, (32, 6), generator=generator)
    made = TensorDataset(tokens, torch.randint(2, (32,), generator=generator))
    return Split(train=made, test=made)
