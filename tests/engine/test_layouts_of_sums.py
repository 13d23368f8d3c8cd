"""Sums and gradients in whatever layout they come: expanded, permuted, not batch-first."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg


class Summed(nn.Module):
    """Uses a weight through its sum, whose gradient is the same number everywhere."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x):
        return self.lin(x).sum(1) + x.sum(1) * self.lin.weight.sum()


def engine_for(model, optimizer, *data, **options):
    return qg.PrivacyEngine(
        model,
        optimizer,
        TensorDataset(*data),
        batch_size=len(data[0]),
        sampling="full-batch",
        adjacency="zero-out-one",
        noise_multiplier=1e-6,
        delta=1e-3,
        seed=0,
        **options,
    )


def test_expanded_sums_are_added_up_over_micro_batches():
    torch.manual_seed(0)
    model, x = Summed(), torch.randn(8, 3)
    expected = qg.clipped_sum(model, lambda: model(x).square()).grads
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    engine = engine_for(model, optimizer, x, physical_batch_size=3)
    for batch in engine.batches():
        for (part,) in batch:
            engine.backward(model(part).square())
        engine.step()
    for name, parameter in model.named_parameters():
        moved = before[name] - parameter.detach()
        torch.testing.assert_close(moved, expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_gradients_have_the_layout_of_their_parameters(kind, fused):
    def trained(**layout):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2)).to(**layout)
        x, y = torch.randn(6, 3, 8, 8).to(**layout), torch.arange(6) % 2
        engine = engine_for(model, kind(model.parameters(), lr=0.1, fused=fused), x, y)
        for batch in engine.batches():
            for images, labels in batch:
                images = images.to(**layout)
                engine.backward(F.cross_entropy(model(images), labels, reduction="none"))
            engine.step()
        return model[0].weight.detach()

    last = trained(memory_format=torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last.contiguous(), trained(), atol=1e-3, rtol=1e-3)


class Tagger(nn.Module):
    """The gradient of the embedding arrives with the positions first."""

    def __init__(self, recurrent):
        super().__init__()
        self.words, self.recurrent = nn.Embedding(11, 4), recurrent
        self.head = nn.Linear(5, 2)

    def forward(self, ids):
        return self.head(self.recurrent(self.words(ids))[0][:, -1])


@pytest.mark.parametrize("strategy", ["auto", "ghost", "keep", "discard"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_embeddings_before_recurrent_layers(kind, strategy):
    torch.manual_seed(0)
    model = Tagger(kind(4, 5, batch_first=True)).double()
    ids = torch.randint(11, (5, 7))
    found = qg.clipped_sum(model, lambda: model(ids).square().sum(1), strategy=strategy)
    alone = [
        qg.clipped_sum(model, lambda i=i: model(ids[i : i + 1]).square().sum(1)).grads
        for i in range(len(ids))
    ]
    for name, total in found.grads.items():
        torch.testing.assert_close(total, sum(each[name] for each in alone))


def test_group_norm_of_images_that_come_in_channels_last():
    torch.manual_seed(0)
    model, images = nn.GroupNorm(2, 6), torch.randn(5, 6, 4, 3)
    expected, found = (
        qg.per_sample_grads(model, lambda x=x: model(x).sin().flatten(1).sum(1))
        for x in (images, images.to(memory_format=torch.channels_last))
    )
    assert found.keys() == expected.keys() == {"weight", "bias"}
    for name, grads in expected.items():
        torch.testing.assert_close(found[name], grads)
