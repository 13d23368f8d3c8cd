"""GLUE tasks with a pretrained encoder: all weights, low-rank adapters, or biases only."""

from collections.abc import Callable
from typing import Any, Literal

from torch import nn
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.recipes.hugging_face import (
    EncoderClassifier,
    encoder_folder,
    made_tokens,
    pretrained_encoder,
    small_encoder,
    token_ids,
    with_adapters,
    with_biases_only,
)
from quietgrad.recipes.recipe import Places, Recipe, Reference, Smoke, Split
from quietgrad.recipes.settings import Settings
from quietgrad.recipes.text_classification import (
    TextClassification,
    require_no_effect_of_padding,
)

Task = Literal["sst2", "qnli", "qqp", "mnli"]
Prepare = Callable[[nn.Module], nn.Module]

_RANK = 8
_WORDS = 50  # in smoke runs
_SOURCE = '"Automatic Clipping", Table 2'
_LARGER = "RoBERTa-base, 256 tokens"


def sst2() -> Recipe:
    """Sentiment of sentences, all weights trained."""
    return _recipe(
        "sst2",
        "sst2",
        "all weights",
        lambda encoder: encoder,
        _settings(batch_size=1000, epochs=3, learning_rate=5e-4),
        references=(Reference(_SOURCE, "auto-s", 3.0, 0.9232, note=_LARGER),),
    )


def sst2_lora() -> Recipe:
    """Sentiment of sentences, low-rank adapters trained."""
    return _recipe(
        "sst2-lora",
        "sst2",
        "low-rank adapters",
        lambda encoder: with_adapters(encoder, _RANK),
        _settings(batch_size=1000, epochs=3, learning_rate=2e-3),
    )


def sst2_bias() -> Recipe:
    """Sentiment of sentences, biases trained."""
    return _recipe(
        "sst2-bias",
        "sst2",
        "biases only",
        with_biases_only,
        _settings(batch_size=1000, epochs=3, learning_rate=5e-3),
    )


def qnli() -> Recipe:
    """Whether a sentence answers a question."""
    settings = _settings(batch_size=2000, epochs=6, learning_rate=5e-4)
    return _recipe("qnli", "qnli", "all weights", lambda encoder: encoder, settings)


def qqp() -> Recipe:
    """Whether two questions ask the same."""
    settings = _settings(batch_size=6000, epochs=18, learning_rate=5e-4)
    return _recipe("qqp", "qqp", "all weights", lambda encoder: encoder, settings)


def mnli() -> Recipe:
    """Whether a sentence follows from another, contradicts it, or neither."""
    settings = _settings(batch_size=6000, epochs=18, learning_rate=5e-4)
    return _recipe("mnli", "mnli", "all weights", lambda encoder: encoder, settings)


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


def _recipe(
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
