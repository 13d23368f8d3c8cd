"""Samples joined into rows of one argument: mixed, counted or moved, beside other arguments."""

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.errors import QuietgradError, SampleMixingError

from .helpers import assert_exact, squares


class Views(nn.Module):
    """Two rows of each sample in one argument, and something with one entry for each in another."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.change = nn.Linear(3, 3).double(), change

    def forward(self, x, y):
        hidden = self.layer(self.change(x)).tanh()
        return hidden.view(len(y), 2, 3).sum(1) + y[:, None]


STATISTICS = {
    "standardized": lambda x: (x - x.mean(0)) / x.std(0),
    "centred by what is detached": lambda x: x - x.detach().mean(0),
    "scaled by the largest": lambda x: x / x.detach().abs().max(),
    "divided by the number of rows": lambda x: x / len(x),
    "ranked": lambda x: x * x.argsort(0).argsort(0),
    "swapped across the border of samples": lambda x: x.roll(1, 0),
}


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 2], [2, 0, 1, 1, 0, 2], [0, 0, 1, 1, 2, 2]])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_rows_beside_labels_are_refused(name, labels):
    model, x, y = Views(STATISTICS[name]), torch.randn(12, 3).double(), torch.tensor(labels)
    if name == "divided by the number of rows" and labels == sorted(labels):
        pytest.skip("labels in order may be places of first rows, so that none is left out")
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: squares(model, x, y))


class Ids(nn.Module):
    """Two ids of each sample, weighted by how often the whole batch has them."""

    def __init__(self, *, is_looked_up):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = nn.Embedding(7, 3).double(), nn.Linear(7, 3).double()
        self.is_looked_up = is_looked_up

    def forward(self, ids, y):
        often = torch.bincount(ids, minlength=7)[ids].double()
        one_hot = nn.functional.one_hot(ids, 7).double()
        hidden = self.table(ids) if self.is_looked_up else self.layer(one_hot)
        return (hidden * often[:, None]).tanh().view(len(y), 2, 3).sum(1) + y[:, None]


@pytest.mark.parametrize("is_looked_up", [True, False])
def test_counts_of_ids_beside_labels_are_refused(is_looked_up):
    model, y = Ids(is_looked_up=is_looked_up), torch.tensor([2, 0, 1, 1, 0, 2])
    ids = torch.randint(7, (12,), generator=torch.Generator().manual_seed(0))
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: squares(model, ids, y))


@pytest.mark.parametrize("length", [6, 7, 8, 12])
def test_a_mask_that_all_samples_share_is_exact(length):
    """It has as many rows as positions, which may be a multiple of the samples."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

        def forward(self, x, mask):
            return self.layer(x, src_mask=mask)

    model, x = Masked().double(), torch.randn(4, length, 6).double()
    mask = torch.full((length, length), -torch.inf).triu(1).double()
    found = qg.per_sample_grads(model, lambda: model(x, mask).square().sum((1, 2)))
    (loss,) = model(x[2:3], mask).square().sum((1, 2))
    loss.backward()
    torch.testing.assert_close(found["layer.linear1.weight"][2], model.layer.linear1.weight.grad)


def test_rows_beside_labels_are_exact():
    model = Views(lambda x: x.sin())
    x, y = torch.randn(6, 2, 3).double(), torch.arange(6) % 3

    def losses(model, x, y):
        return model(x.flatten(0, 1), y).square().sum(1)

    assert_exact(model, losses, x, y)


class Pooled(nn.Module):
    """Rows of unequal number, which lengths divide among the samples."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.change = nn.Linear(3, 3).double(), change

    def forward(self, x, lengths):
        owner = torch.arange(len(lengths)).repeat_interleave(lengths)
        hidden = self.layer(x).tanh()
        pooled = hidden.new_zeros(len(lengths), 3).index_add(0, owner, hidden)
        return self.change(pooled, lengths)


CHANGES = {
    "divided by the number of samples": lambda h, n: h / len(n),
    "divided by the number of rows": lambda h, n: h / n.sum(),
    "shifted by one sample": lambda h, n: h.roll(1, 0),
    "turned around": lambda h, n: h.flip(0),
}


def collate(elements):
    x = torch.cat([x for x, _ in elements])
    lengths = torch.tensor([len(x) for x, _ in elements])
    return x, lengths, torch.stack([y for _, y in elements])


def elements(count=16):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [(draw(1 + i % 4, 3), draw(3)) for i in range(count)]


def train(model, join, steps=8):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine = qg.PrivacyEngine(
        model, optimizer, elements(), batch_size=8, noise_multiplier=1.0, delta=0.1, collate_fn=join
    )
    while engine.steps_taken < steps:
        for batch in engine.batches():
            for x, lengths, y in batch:
                engine.backward((model(x, lengths) - y).square().sum(1))
            engine.step()


@pytest.mark.parametrize("name", CHANGES)
def test_samples_that_notice_their_number_or_place_are_refused(name):
    model = Pooled(CHANGES[name])
    with pytest.raises(SampleMixingError):
        train(model, collate)
    x, lengths, y = collate(elements()[:6])
    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, lambda: (model(x, lengths) - y).square().sum(1))


class ByOwner(Pooled):
    """The same by a vector of owners, which says more than one number for each sample."""

    def forward(self, x, owner):
        hidden = self.layer(x).tanh()
        pooled = hidden.new_zeros(int(owner.max()) + 1, 3).index_add(0, owner, hidden)
        return self.change(pooled, torch.bincount(owner))


def collate_owners(elements):
    x, lengths, y = collate(elements)
    return x, torch.arange(len(lengths)).repeat_interleave(lengths), y


@pytest.mark.parametrize("name", CHANGES)
def test_what_only_collating_shows_is_refused(name):
    with pytest.raises(SampleMixingError):
        train(ByOwner(CHANGES[name]), collate_owners)


def test_pooled_rows_train():
    train(Pooled(lambda h, n: h / n[:, None]), collate)
    train(ByOwner(lambda h, n: h / n[:, None]), collate_owners)


def test_experts_that_no_token_goes_to_are_exact():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weights = nn.Parameter(torch.randn(3, 3, 3).double())
            self.router = nn.Linear(3, 3).double()

        def forward(self, x):
            tokens = x.flatten(0, 1)
            chosen, out = self.router(tokens).argmax(-1).clamp_max(1), torch.zeros_like(tokens)
            for expert in range(3):
                rows = (chosen == expert).nonzero().flatten()
                out = out.index_add(0, rows, tokens[rows] @ self.weights[expert])
            return out.view(x.shape).sum(1)

    for count in (1, 4):
        assert_exact(Experts(), squares, torch.randn(count, 2, 3).double())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_counts_alike_in_ragged_and_regular_batches(value):
    """Otherwise one ragged sample would bring back another one that was dropped."""

    class Saturated(Pooled):
        def forward(self, x, lengths):
            return super().forward(x, lengths)

    model = Saturated(lambda h, n: h)
    x = torch.randn(6, 3).double()
    x[2, 0] = value  # of the second sample, whose other row is finite

    def clipped(lengths):
        return qg.clipped_sum(model, lambda: model(x, lengths).square().sum(1))

    regular = clipped(torch.tensor([2, 2, 2]))
    assert regular.nonfinite == 1
    try:
        ragged = clipped(torch.tensor([1, 3, 2]))
    except QuietgradError:
        return
    assert ragged.nonfinite == 1
    assert not ragged.weights[1]


def test_bags_of_one_word_in_the_middle_of_a_training():
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.bag, self.out = nn.EmbeddingBag(11, 4).double(), nn.Linear(4, 3).double()

        def forward(self, ids, offsets):
            return self.out(self.bag(ids, offsets))

    texts = [torch.randint(11, (1 if i % 4 else 3,)) for i in range(64)]

    def join(some):
        lengths = torch.tensor([len(text) for text in some])
        return torch.cat(some), lengths.cumsum(0) - lengths

    model = Bags()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        texts,
        batch_size=16,
        physical_batch_size=3,
        noise_multiplier=1.0,
        delta=0.1,
        collate_fn=join,
        verification="every",
    )
    seen = []
    for batch in engine.batches():
        for ids, offsets in batch:
            seen.append((len(ids), len(offsets)))
            if len(seen) == 1 and len(ids) == len(offsets):
                pytest.skip("the first micro-batch cannot be told from one with a row each")
            engine.backward(model(ids, offsets).square().sum(1))
        engine.step()
    assert any(rows == bags for rows, bags in seen)


class Batch:
    """A plain object, as some libraries have for graphs."""

    def __init__(self, x, owner, count):
        self.x, self.owner, self.count = x, owner, count


def test_rows_in_a_plain_object_are_exact():
    class Net(ByOwner):
        def forward(self, batch):
            return super().forward(batch.x, batch.owner)

    model = Net(lambda h, n: h)
    x, owner, _ = collate_owners(elements()[:6])
    found = qg.per_sample_grads(model, lambda: model(Batch(x, owner, 6)).square().sum(1))
    for place in range(6):
        mine = x[owner == place]
        model.zero_grad()
        model(Batch(mine, torch.zeros(len(mine)).long(), 1)).square().sum().backward()
        torch.testing.assert_close(found["layer.weight"][place], model.layer.weight.grad)


def test_lora_on_parameters_of_experts():
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    options = {"r": 4, "target_modules": [], "target_parameters": ["mlp.experts.down_proj"]}
    model = peft.get_peft_model(model, peft.LoraConfig(**options)).train()
    ids = torch.randint(50, (4, 7))

    def losses(some=slice(None)):
        logits = model(input_ids=ids[some]).logits[:, :-1]
        targets = ids[some][:, 1:]
        return nn.functional.cross_entropy(logits.mT, targets, reduction="none").sum(1)

    found = qg.per_sample_grads(model, losses)
    for place in range(4):
        model.zero_grad()
        losses(slice(place, place + 1)).sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                torch.testing.assert_close(found[name][place], parameter.grad, rtol=1e-4, atol=1e-6)
