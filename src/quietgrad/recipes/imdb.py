"""Sentiment of film reviews with a GRU over public word vectors: plain, and enhanced."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.nn import gru_classifier
from quietgrad.recipes.hugging_face import encoder_folder, pretrained_encoder, tokenizer
from quietgrad.recipes.recipe import Places, Recipe, Reference, Smoke, Split
from quietgrad.recipes.settings import Settings

_LENGTH = 128
_DIMENSIONS = 100
_WORDS = 50  # in smoke runs
_BIAS = '"A Theory to Instruct Differentially-Private Learning via Clipping Bias Reduction"'
_OUTER = (
    "other word vectors, the official split, 60 epochs in batches of 2,000; radius 5 and learning"
    " rate 0.1, as here for abadi"
)
_INNER_OUTER = f"inner-outer momentum, K0 = 2 and gamma0 = 0.08 (--inner-steps 2); {_OUTER}"


def imdb() -> Recipe:
    """The enhanced network: both projections standardized before the gates."""
    return _recipe(
        "imdb",
        enhanced=True,
        references=(
            Reference(f"{_BIAS}, Table 1", "abadi", 4.0, 0.775, note=_INNER_OUTER),
            Reference(f"{_BIAS}, Table 1", "abadi", 8.0, 0.792, note=_INNER_OUTER),
        ),
    )


def imdb_plain() -> Recipe:
    """An ordinary GRU."""
    return _recipe(
        "imdb-plain",
        enhanced=False,
        references=(
            Reference(f"{_BIAS}, Table 2", "abadi", 4.0, 0.696, note=_OUTER),
            Reference(f"{_BIAS}, Table 2", "abadi", 8.0, 0.735, note=_OUTER),
        ),
    )


def _recipe(name: str, *, enhanced: bool, references: tuple[Reference, ...]) -> Recipe:
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
