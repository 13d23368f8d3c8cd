"""In large batches others are left out instead of replaced: every two samples are told apart."""

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad import PrivacyEngine
from quietgrad.capture.choice import displace
from quietgrad.errors import SampleMixingError

BATCH = 12


class Model(nn.Module):
    """Two layers with dropout; what ``between`` adds to the hidden values has no gradient."""

    def __init__(self, between, rate=0.5):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.dropout, self.between = nn.Dropout(rate), between

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(self.dropout(h + self.between(h.detach())))


def train(model, *, batch=BATCH):
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(batch, 4), torch.arange(batch) % 2)
    engine = PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        batch_size=batch,
        sampling="full-batch",
        noise_multiplier=1.0,
        delta=1e-5,
        verification="once",
    )
    for content in next(engine.batches()):
        x, y = content
        engine.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
    engine.step()
    engine.detach()


def one_from_another(one, other):
    def between(h):
        shift = torch.zeros_like(h)
        shift[one % len(h)] = h[other % len(h)]
        return shift

    return between


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("pair", [(0, 11), (11, 0), (3, 4), (7, 2)], ids=str)
def test_one_sample_that_sees_one_other_is_refused(pair, rate):
    with pytest.raises(SampleMixingError):
        train(Model(one_from_another(*pair), rate))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_sample_that_sees_its_place_is_refused(rate):
    with pytest.raises(SampleMixingError, match="place"):
        train(Model(lambda h: torch.arange(float(len(h)))[:, None] / 4, rate))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_sample_that_sees_their_number_is_refused(rate):
    with pytest.raises(SampleMixingError, match="number of samples"):
        train(Model(lambda h: torch.full_like(h, 1 / len(h)), rate))


def test_a_model_for_one_size_of_batch_is_verified_by_replacing():
    def only_whole(h):
        assert len(h) == BATCH
        return 0 * h

    train(Model(only_whole))

    def mixing(h):
        only_whole(h)
        return one_from_another(5, 6)(h)

    with pytest.raises(SampleMixingError):
        train(Model(mixing))


def test_what_all_copies_have_in_common_is_seen():
    with pytest.raises(SampleMixingError):
        train(Model(lambda h: torch.full_like(h, float((h == h[:1]).all()))))


def scaled_by_the_largest(x):
    return (x / x.abs().amax() * 63).round().long() + 64


def spectrum_by_the_largest(x):
    modes = torch.fft.rfft(x)
    return torch.view_as_real(modes / modes.abs().amax()).flatten(1).mul(9).long().abs() % 128


def of_many_one_by_the_largest(x):
    """One id in 512 depends on another sample."""
    own = (x * 9).round().long().clamp(-64, 63).repeat(1, 64) + 64
    return torch.cat([scaled_by_the_largest(x)[:, :1], own[:, 1:]], 1)


def of_all_one_by_another(x):
    """One id of one sample does."""
    ids = (x * 9).round().long().clamp(-64, 63) + 64
    ids[5 % len(x), 2] = ids[7 % len(x), 2]
    return ids


class Frozen(nn.Module):
    """A part without parameters that the loop calls without gradients; what it gives are ids."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Tokens(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.tokenizer, self.table, self.head = (
            Frozen(function),
            nn.Embedding(128, 4),
            nn.Linear(4, 3),
        )

    def forward(self, ids):
        return self.head(self.table(ids).mean(1)).square().sum(1)


def samples_with_an_outlier(count=16):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    x[3] *= 20
    return x


def sum_of_tokens(function, count=16):
    model, x = Tokens(function), samples_with_an_outlier(count)

    def losses():
        with torch.no_grad():
            ids = model.tokenizer(x)
        return model(ids)

    qg.clipped_sum(model, losses)


@pytest.mark.parametrize(
    "function",
    [
        scaled_by_the_largest,
        spectrum_by_the_largest,
        of_many_one_by_the_largest,
        of_all_one_by_another,
    ],
)
def test_ids_of_a_frozen_part_that_depend_on_another_sample(function):
    for _ in range(6):
        with pytest.raises(SampleMixingError):
            sum_of_tokens(function)


def test_ids_of_a_frozen_part_that_depend_on_the_number_of_samples():
    with pytest.raises(SampleMixingError, match="number of samples"):
        sum_of_tokens(lambda x: (x.abs().round().long() + len(x)) % 128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ids_of_the_nearest_entry_are_not_refused(dtype):
    torch.manual_seed(0)
    encoder, entries = nn.Linear(8, 256 * 16).to(dtype), torch.randn(128, 16, dtype=dtype)

    def nearest(x):
        h = torch.tanh(encoder(x.to(dtype))).view(-1, 16)
        return (h @ entries.mT - entries.square().sum(1) / 2).argmax(1).view(len(x), -1)

    for count in (12, 33):
        sum_of_tokens(nearest, count)


class Labelling(nn.Module):
    """Returns outputs, and labels for them: one sample gets that of another."""

    def __init__(self, one, other):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.pair = nn.Linear(16, 16), (one, other)

    def forward(self, x):
        h, (one, other) = self.layer(x), self.pair
        labels = x.argmax(1)
        labels[one % len(x)] = x[other % len(x)].argmax()
        return h, labels


@pytest.mark.parametrize("pair", [(0, 11), (2, 1), (7, 9)], ids=str)
def test_one_label_that_is_that_of_another_sample(pair):
    x = torch.eye(16)  # every sample has a label of its own

    def losses(model):
        return nn.functional.cross_entropy(*model(x), reduction="none")

    model = Labelling(*pair)
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: losses(model))
    own = Labelling(3, 3)
    qg.clipped_sum(own, lambda: losses(own))


class Largest(nn.Module):
    """Real or complex outputs, less the largest value of all samples."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.layer = kind, nn.Linear(8, 6)
        self.filter = nn.Parameter(torch.randn(8, 6, dtype=torch.complex64))
        self.rectifier, self.last = nn.RReLU(), nn.Linear(6, 2)

    def forward(self, x):
        top, h = x.detach().abs().amax(), self.layer(x)
        match self.kind:
            case "complex":
                return x.to(torch.complex64) @ self.filter - top
            case "leaky":
                return self.rectifier(h) - top
            case "backward":
                h = torch.stack([nn.functional.dropout(row, 0.3) for row in h])
                if h.requires_grad:
                    h.register_hook(lambda grad: grad / top)
                return self.last(h)
            case _:
                return torch.stack([row if torch.rand(()).item() < 0.5 else row + top for row in h])


@pytest.mark.parametrize("count", [6, 16])
@pytest.mark.parametrize("kind", ["complex", "leaky", "backward", "depth"])
def test_a_value_of_the_largest_sample(kind, count):
    model, x = Largest(kind), samples_with_an_outlier(count)
    for seed in range(3):  # with which some rows are drawn to get it
        torch.manual_seed(seed)
        with pytest.raises(SampleMixingError):
            qg.clipped_sum(model, lambda: model(x).abs().square().sum(1))


class FilledExperts(nn.Module):
    """What is dropped in an expert is filled with a mean over all samples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 6) for _ in range(2))

    def forward(self, x):
        value, chosen = self.router(x).softmax(1).max(1)
        out, fill = torch.zeros(len(x), 6), x.detach().mean() * 5
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            if len(rows):
                keep = torch.rand(len(rows), 1) < 0.7
                filled = torch.where(keep, expert(x[rows]), fill) * value[rows, None]
                out = out.index_add(0, rows, filled)
        return out.square().sum(1)


@pytest.mark.parametrize("count", [8, 16, 32])
def test_experts_that_fill_in_a_mean(count):
    model, x = FilledExperts(), samples_with_an_outlier(count)
    for seed in range(5):
        torch.manual_seed(seed)
        with pytest.raises(SampleMixingError):
            qg.clipped_sum(model, lambda: model(x))


def test_a_sampler_that_rejects_is_not_refused():
    layer = nn.Linear(8, 3)

    def losses(x):
        return torch.distributions.Dirichlet(layer(x).exp() + 0.5).rsample().square().sum(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return losses(x)

    model, x = Model(), torch.randn(12, 8)
    for _ in range(3):
        qg.clipped_sum(model, lambda: model(x))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_samples_that_are_apart_train(rate):
    train(Model(lambda h: 0.1 * h.sign(), rate))


@pytest.mark.parametrize(
    "samples", [[], [0], [1], [0, 1], [0, 2], [1, 0], [0, 1, 2], [*range(9)], [*range(9, 20)]]
)
def test_no_sample_stays_at_its_place(samples):
    for _ in range(20):
        found = displace(torch.tensor(samples, dtype=torch.long), 20).tolist()
        assert sorted(found) == sorted(samples)
        assert len(found) < 2 or all(sample != place for place, sample in enumerate(found))
        from_the_end = range(20 - len(found), 20)
        assert len(found) < 4 or all(s != p for p, s in zip(from_the_end, found, strict=True))


class Placed(nn.Module):
    """Adds a number at one place, sooner or later."""

    def __init__(self, place):
        super().__init__()
        self.layer, self.size = nn.Linear(4, 2), 0.0
        self.shift = torch.eye(4)[place, :, None]

    def forward(self, x):
        return self.layer(x) + self.size * self.shift[: len(x)]


@pytest.mark.parametrize("place", [0, 1])
def test_what_happens_to_one_place_is_seen_whenever_it_begins(place):
    """Two of four samples run alone, in the two first places: never as they were."""
    torch.manual_seed(0)
    for _ in range(12):
        model = Placed(place)
        data = torch.utils.data.TensorDataset(torch.randn(4, 4))
        engine = PrivacyEngine(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data,
            batch_size=4,
            epochs=2,
            sampling="full-batch",
            noise_multiplier=1.0,
            delta=1e-5,
            verification="every",
        )

        def step(engine=engine, model=model):
            for batch in engine.batches():
                for (x,) in batch:
                    engine.backward(model(x).square().sum(1))
                engine.step()

        step()
        model.size = 1.0
        with pytest.raises(SampleMixingError, match="place"):
            step()
        engine.detach()
