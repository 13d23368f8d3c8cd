"""The recipe adult: income over 50,000 dollars from a table of the census of 1994, by an MLP."""

import torch
from torch import Tensor, nn

from quietgrad.data.datasets import load
from quietgrad.recipes.recipe import Places, Recipe, Settings, Smoke, Split, synthetic

_NUMBERS = 6
_CATEGORIES = (9, 16, 7, 15, 6, 5, 2, 42)


def adult() -> Recipe:
    """20 epochs in batches of 1,000 at epsilon 3."""
    return Recipe(
        name="adult",
        summary="income over 50,000 dollars from a census table, MLP",
        data="fetch `adult`",
        load_data=_load_data,
        build_model=lambda places: TableClassifier(_NUMBERS, _CATEGORIES),
        settings=Settings(
            epochs=20, batch_size=1000, learning_rate=0.5, momentum=0.9, epsilon=3.0, delta=1e-5
        ),
        smoke=Smoke(synthetic(_draw_rows)),
    )


class TableClassifier(nn.Module):
    """Numbers unchanged, a vector for each category, two layers."""

    def __init__(self, numbers: int, categories: tuple[int, ...]) -> None:
        super().__init__()
        hidden, vector = 64, 4
        self.vectors = nn.ModuleList(nn.Embedding(size, vector) for size in categories)
        self.layers = nn.Sequential(
            nn.Linear(numbers + vector * len(categories), hidden),
            nn.Tanh(),
            nn.Linear(hidden, 2),
        )

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Rows of both kinds of columns to logits."""
        columns = zip(self.vectors, categories.unbind(1), strict=True)
        parts = [numbers, *(vector(column) for vector, column in columns)]
        logits: Tensor = self.layers(torch.cat(parts, 1))
        return logits


def _load_data(places: Places) -> Split:
    """The official split."""
    table = load("adult", places.data)
    return Split.of_columns(
        (table.train_numbers, table.train_categories, table.train_labels),
        (table.test_numbers, table.test_categories, table.test_labels),
    )


def _draw_rows(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    numbers = torch.rand(64, _NUMBERS, generator=generator, device="cpu")
    columns = [
        torch.randint(size, (64,), generator=generator, device="cpu") for size in _CATEGORIES
    ]
    labels = torch.randint(2, (64,), generator=generator, device="cpu")
    return numbers, torch.stack(columns, 1), labels
