"""The recipes movielens and movielens-records: who likes which film, by person or by rating.

Both learn the same, whether a rating is of four stars or more, from the same ratings. They differ
in what is protected: a person with all ratings, or each rating by itself.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad.data.datasets import load
from quietgrad.data.movielens import FILMS, GENRES, OCCUPATIONS
from quietgrad.recipes.recipe import Places, Recipe, Settings, Smoke, Split

_NUMBERS = 2 + len(GENRES)
_LIKED = 4  # stars


def movielens() -> Recipe:
    """20 epochs in batches of 200 people at epsilon 3; of each at most 50 ratings take part."""
    return Recipe(
        name="movielens",
        summary="whether a person likes a film, people with all ratings as units, linear model",
        data="fetch `movielens`",
        load_data=_load_people,
        build_model=lambda places: RatingModel(),
        settings=Settings(
            epochs=20,
            batch_size=200,
            learning_rate=0.5,
            momentum=0.9,
            epsilon=3.0,
            delta=1e-4,
            physical_batch_size=4000,
            records_per_unit=50,
            ordinary_learning_rate=4.0,
        ),
        smoke=Smoke(_draw_people, changes={"records_per_unit": 4}),
        unit="user",
    )


def movielens_records() -> Recipe:
    """10 epochs in batches of 2,000 ratings at epsilon 3; a person's ratings count one by one."""
    return replace(
        movielens(),
        name="movielens-records",
        summary="the same with each rating as a unit, which protects no person",
        load_data=_load_ratings,
        settings=Settings(
            epochs=10,
            batch_size=2000,
            learning_rate=8.0,
            momentum=0.9,
            epsilon=3.0,
            delta=1e-6,
            ordinary_learning_rate=2.0,
        ),
        smoke=Smoke(lambda places: replace(_draw_people(places), units=None)),
        unit=None,
    )


class RatingModel(nn.Module):
    """Logits from the film, its genres by gender, the occupation, age and year; linear in all."""

    def __init__(self) -> None:
        super().__init__()
        self.films = nn.Embedding(FILMS, 1)
        self.occupations = nn.Embedding(len(OCCUPATIONS), 1)
        self.genres_by_gender = nn.Embedding(2, len(GENRES))
        self.numbers = nn.Linear(_NUMBERS, 1)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Rows of both kinds of columns to two logits each, the first of which is zero."""
        gender, occupation, film = categories.unbind(1)
        genres = numbers[:, -len(GENRES) :]
        score = self.numbers(numbers) + self.films(film) + self.occupations(occupation)
        score = score + (self.genres_by_gender(gender) * genres).sum(1, keepdim=True)
        return F.pad(score, (1, 0))


def _load_people(places: Places) -> Split:
    """Of the people that are not held out, all ratings."""
    found = load("movielens", places.data)
    train = found.train_numbers, found.train_categories, _are_liked(found.train_ratings)
    test = found.test_numbers, found.test_categories, _are_liked(found.test_ratings)
    return Split.of_columns(train, test, units=found.train_users)


def _load_ratings(places: Places) -> Split:
    return replace(_load_people(places), units=None)


def _are_liked(ratings: Tensor) -> Tensor:
    return (ratings >= _LIKED).long()


def _draw_people(places: Places) -> Split:
    generator = torch.Generator().manual_seed(0)
    people = torch.randint(24, (96,), generator=generator, device="cpu")
    numbers = torch.rand(96, _NUMBERS, generator=generator, device="cpu")
    columns = [
        torch.randint(n, (96,), generator=generator, device="cpu")
        for n in (2, len(OCCUPATIONS), FILMS)
    ]
    labels = torch.randint(2, (96,), generator=generator, device="cpu")
    drawn = numbers, torch.stack(columns, 1), labels
    return Split.of_columns(drawn, drawn, units=people)
