"""Texts of different length: what is not computed would have changed nothing."""

from dataclasses import replace

import pytest
import torch

from quietgrad import PrivacyEngine, recipes
from quietgrad.errors import SampleMixingError
from quietgrad.recipes.encoders import (
    TextClassification,
    require_no_effect_of_padding,
    without_padding,
)
from quietgrad.recipes.recipe import Classification

pytest.importorskip("transformers")
from quietgrad.recipes.encoders import EncoderClassifier, small_encoder

LENGTHS = torch.tensor([3, 20, 9, 1, 24, 17, 8, 2, 12, 5, 23, 4])
MASK = (torch.arange(24) < LENGTHS.unsqueeze(1)).long()


def texts():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 50, MASK.shape, generator=generator) * MASK
    return torch.utils.data.TensorDataset(tokens, MASK, LENGTHS % 2)


def trained(task, lengths):
    """Weights after two epochs, and the widths the encoder was given."""
    torch.manual_seed(0)
    model = EncoderClassifier(small_encoder(50), 2).double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    widths = []
    model.register_forward_pre_hook(lambda module, inputs: widths.append(inputs[0].shape[1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.warns(UserWarning, match="seed=0"):
        engine = PrivacyEngine(
            model, optimizer, texts(), batch_size=6, epochs=2, noise_multiplier=1.0, delta=1e-3,
            physical_batch_size=2, lengths=lengths, seed=0,
        )  # fmt: skip
    for _ in range(2):
        for batch in engine.batches():
            for columns in batch:
                engine.backward(task.losses(model, columns))
            engine.step()
    engine.detach()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), widths


def test_short_texts_together_without_padding_change_nothing():
    padded, full = trained(Classification(), None)
    cut, widths = trained(TextClassification(), LENGTHS)
    torch.testing.assert_close(cut, padded, rtol=1e-9, atol=1e-9)
    assert set(full) == {24}
    assert set(widths) == {8, 16, 24}


def test_only_what_counts_for_nobody_is_cut():
    tokens, mask = without_padding(torch.ones(3, 24), torch.zeros(3, 24))
    assert tokens.shape == mask.shape == (3, 8)
    first_padded = MASK.flip(1)  # as tokenizers of language models do
    assert without_padding(first_padded, first_padded)[0].shape == (12, 24)
    assert without_padding(MASK[[0, 2]], MASK[[0, 2]])[1].shape == (2, 16)


def test_a_limit_cuts_the_lengths_too():
    split = recipes.Split(texts(), texts(), LENGTHS)
    recipe = replace(recipes.load("sst2"), load_data=lambda places: split)
    cut = recipe.changed(limit=5).split(recipes.Places())
    assert len(cut.train) == len(cut.lengths) == 5


class Encoder(torch.nn.Module):
    """Words, and what a convolution makes of each and its neighbours, padding among them."""

    def __init__(self, kernel):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 6)
        self.mixed = torch.nn.Conv1d(6, 6, kernel, padding=kernel // 2)
        self.head = torch.nn.Linear(6, 2)

    def forward(self, tokens, mask):
        states = self.mixed(self.words(tokens).mT).mT * mask.unsqueeze(-1)
        return self.head(states.sum(1))


def test_an_encoder_that_sees_padding_is_refused():
    with pytest.raises(SampleMixingError, match="padded further"):
        require_no_effect_of_padding(Encoder(3), 50, padding=0)
    model = Encoder(1)
    require_no_effect_of_padding(model, 50, padding=0)
    assert model.training


def test_encoders_that_hide_padding_are_taken():
    model = EncoderClassifier(small_encoder(50), 2)
    require_no_effect_of_padding(model, 50, padding=0)
