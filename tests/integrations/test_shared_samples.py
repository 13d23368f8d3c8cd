"""Data that is trained on is recognized when it is to be evaluated, as far as can be told."""

import pytest
import torch
from tests.integrations.lightning_jobs import data, fit, loader
from torch.utils.data import Subset, TensorDataset, random_split

from quietgrad.errors import IntegrationError
from quietgrad.integrations.common import shares_samples


def test_subsets_and_lists():
    whole = TensorDataset(torch.zeros(10))
    one, other = random_split(whole, [0.5, 0.5])
    assert shares_samples(whole, whole)
    assert shares_samples(whole, one)
    assert shares_samples(Subset(one, [0]), whole)
    assert not shares_samples(one, other)
    assert not shares_samples(Subset(whole, [1, 2]), Subset(whole, [3]))
    rows = [{"number": number} for number in range(5)]
    assert shares_samples(rows, rows[3:])
    assert shares_samples(Subset(rows, [1]), rows)
    assert not shares_samples(rows[:2], rows[2:])
    assert not shares_samples([1, 2, "a"], [1, 2, "a"])  # which may be other samples
    assert not shares_samples(rows, None)


def test_selections_of_a_table():
    datasets = pytest.importorskip("datasets")
    rows = [{"number": number, "word": f"w{number}", "list": [number]} for number in range(20)]
    table = datasets.Dataset.from_list(rows)
    split = table.train_test_split(0.5, seed=0)
    of_the_table = [
        table.select(range(5)), table.select([1, 3]), table.shuffle(seed=1), split["train"],
        table.with_format("torch"), table.remove_columns("number"), Subset(table, [3]),
        Subset(split["test"], [0]),
    ]  # fmt: skip
    assert all(shares_samples(table, each) for each in of_the_table)
    assert all(shares_samples(each, table) for each in of_the_table)
    assert not shares_samples(split["train"], split["test"])
    assert not shares_samples(table.select(range(10)), table.select(range(10, 20)))
    assert not shares_samples(table, datasets.Dataset.from_list(rows[:5]))  # a copy


@pytest.mark.parametrize("part", [range(40), [3]], ids=["all", "some"])
def test_lightning_does_not_validate_on_what_it_trains_on(part):
    trained = data()
    own = loader(Subset(trained, part), shuffle=False)
    with pytest.raises(IntegrationError, match="has samples that are trained on"):
        fit(train=loader(trained), val=own)
    module, engine, trainer = fit(train=loader(trained), val=loader(shuffle=False), max_epochs=1)
    with pytest.raises(IntegrationError, match="has samples that are trained on"):
        trainer.validate(module, own, verbose=False)
    engine.detach()
