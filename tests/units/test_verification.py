"""Records of a unit may mix, in the model and in the loss; records of different units may not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg
from quietgrad.errors import SampleMixingError

from .helpers import CLASSES, FEATURES, attach, clipped_loop, data, train, without_noise

COUNTS = {
    "ragged": (2, 1, 4, 3, 1, 2, 4, 1, 3, 2, 4, 3),
    "regular": (3,) * 12,
    "few": (4, 3, 1),
}


slow = [pytest.param(name, marks=pytest.mark.slow) for name in COUNTS if name != "ragged"]
every_kind = pytest.mark.parametrize("counts", ["ragged", *slow])


class Model(nn.Module):
    """A function of the model, of records and of the numbers of their units."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
        self.dropout, self._forward = nn.Dropout(0.3), forward
        self.double()

    def forward(self, *inputs):
        return self._forward(self, *inputs)


def plain(m, x, owners):
    return m.last(m.first(x).tanh())


def means(values, owners):
    """Of each record the mean over its unit."""
    count = int(owners.max()) + 1
    total = values.new_zeros(count, values.shape[1]).index_add(0, owners, values)
    return (total / torch.bincount(owners, minlength=count)[:, None])[owners]


def attention(m, x, owners):
    hidden = m.first(x).unsqueeze(0)
    own = owners[:, None] == owners[None, :]
    return m.last(F.scaled_dot_product_attention(hidden, hidden, hidden, own).squeeze(0))


def pooled(m, x, owners):
    """One row for each unit."""
    hidden = m.first(x).tanh()
    return m.last(hidden.new_zeros(int(owners.max()) + 1, 6).index_add_(0, owners, hidden))


def shifted(owners):
    """The last record of a unit is taken for one of the next."""
    return torch.cat([owners[:1], owners[:-1]])


def cross_entropy(output, y, owners):
    return F.cross_entropy(output, y, reduction="none")


def softmax_of_unit(output, y, owners):
    sums = output.new_zeros(int(owners.max()) + 1).index_add(0, owners, output[:, 0].exp())
    return sums[owners].log() - output[:, 0]


def padded(m, x, owners, means):
    """Records laid out by unit, and what ``means`` makes of each beside its mask."""
    counts = torch.bincount(owners)
    places = torch.arange(len(owners)) - (counts.cumsum(0) - counts)[owners]
    laid_out = x.new_zeros(len(counts), int(counts.max()), FEATURES)
    laid_out[owners, places] = x
    hidden = m.first(laid_out).tanh()
    is_there = (torch.arange(hidden.shape[1]) < counts[:, None])[..., None]
    return m.last(hidden + means(hidden, is_there))[owners, places]


def before(m, x, owners, share):
    """Beside each record the one before it, in part."""
    hidden = m.first(x)
    return m.last(hidden + share(owners)[:, None] * hidden.roll(1, 0))


def scaled_gradients(m, x, owners, center):
    hidden = m.first(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda grad: grad - center(grad))
    return m.last(hidden)


WITHIN = {
    "padded to the largest unit, and masked": (
        lambda m, x, o: padded(
            m, x, o, lambda h, there: (h * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
        ),
        cross_entropy,
    ),
    "each unit by itself": (
        lambda m, x, o: torch.cat(
            [m.last(m.first(x[o == u] - x[o == u].mean(0))) for u in o.unique()]
        ),
        cross_entropy,
    ),
    "scaled by the number of the unit's records": (
        lambda m, x, o: m.last(m.first(x).tanh() * torch.bincount(o)[o][:, None]),
        cross_entropy,
    ),
    "the record before, in the unit": (
        lambda m, x, o: before(m, x, o, lambda o: torch.cat([o[:1] * 0 - 1, o[:-1]]).eq(o)),
        cross_entropy,
    ),
    "gradients centred by unit": (
        lambda m, x, o: scaled_gradients(m, x, o, lambda grad: means(grad, o)),
        cross_entropy,
    ),
    "records by themselves": (plain, cross_entropy),
    "dropout": (lambda m, x, o: m.last(m.dropout(m.first(x).tanh())), cross_entropy),
    "attention within a unit": (attention, cross_entropy),
    "the mean of a unit subtracted": (
        lambda m, x, o: m.last(m.first(x - means(x, o)).tanh()),
        cross_entropy,
    ),
    "the mean of a unit subtracted from what was computed": (
        lambda m, x, o: m.last(m.first(x) - means(m.first(x), o)),
        cross_entropy,
    ),
    "pooled by unit": (lambda m, x, o: pooled(m, x, o)[o], cross_entropy),
    "one output for each unit": (pooled, lambda out, y, o: cross_entropy(out[o], y, o)),
    "a softmax over the records of a unit": (plain, softmax_of_unit),
}
ACROSS = {
    "padded to the largest unit": (
        lambda m, x, o: padded(m, x, o, lambda h, there: h.mean(1, keepdim=True)),
        cross_entropy,
    ),
    "divided by the records of the largest unit": (
        lambda m, x, o: m.last(m.first(x).tanh() / int(torch.bincount(o).max())),
        cross_entropy,
    ),
    "pooled, and divided by the records of the largest unit": (
        lambda m, x, o: pooled(m, x, o) / int(torch.bincount(o).max()),
        lambda out, y, o: cross_entropy(out[o], y, o),
    ),
    "a little of the record before": (
        lambda m, x, o: before(m, x, o, lambda o: torch.full(o.shape, 1e-3).double()),
        cross_entropy,
    ),
    "gradients centred over the batch": (
        lambda m, x, o: scaled_gradients(m, x, o, lambda grad: grad.mean(0)),
        cross_entropy,
    ),
    "the mean of the batch": (lambda m, x, o: m.last(m.first(x - x.mean(0))), cross_entropy),
    "attention over all": (lambda m, x, o: attention(m, x, torch.zeros_like(o)), cross_entropy),
    "the mean over records of two units": (
        lambda m, x, o: m.last(m.first(x - means(x, shifted(o)))),
        cross_entropy,
    ),
    "the record before": (
        lambda m, x, o: m.last(m.first(x) + m.first(x).roll(1, 0)),
        cross_entropy,
    ),
    "divided by the number of records": (
        lambda m, x, o: m.last(m.first(x).tanh() / len(x)),
        cross_entropy,
    ),
    "divided by the number of units": (
        lambda m, x, o: m.last(m.first(x).tanh() / (int(o.max()) + 1)),
        cross_entropy,
    ),
    "the number of the unit": (
        lambda m, x, o: m.last(m.first(x * (1 + o[:, None])).tanh()),
        cross_entropy,
    ),
    "the mean of the first unit": (
        lambda m, x, o: m.last(m.first(x - x[o == 0].mean(0))),
        cross_entropy,
    ),
    "a detached mean": (
        lambda m, x, o: m.last(m.first(x).tanh() * (1 + m.first(x).detach().mean())),
        cross_entropy,
    ),
    "a softmax over all records": (plain, lambda out, y, o: -out[:, 0].log_softmax(0)),
    "losses of other units": (plain, lambda out, y, o: cross_entropy(out.flip(0), y, o)),
}


def run(forward, loss, counts, steps=3, **options):
    """Train; the largest difference of a weight from a loop in which each unit is alone."""
    model, dataset = Model(forward), data(counts)
    options = {"clipping": "abadi", "radius": 0.3} | options
    _, engine = attach(model, dataset, counts=counts, records_per_unit=4, **options)

    def losses(model, x, y):
        owners = engine.record_owners
        return loss(model(x, owners), y, owners)

    def alone(model, x, y):
        owners = torch.zeros(len(x), dtype=torch.int64)
        return loss(model(x, owners), y, owners)

    apart = []
    for _ in range(steps):
        twin = Model(forward)
        twin.load_state_dict(model.state_dict())
        with without_noise():
            ((*parts,),) = train(model, engine, 1, losses)
        engine.load_state_dict(engine.state_dict())  # goes on with the pass
        records = [record for part in parts for record in part]
        given = dataset, records, engine.groups, "abadi"
        total = clipped_loop(twin, *given, counts=counts, losses=alone) if records else {}
        for name, parameter in twin.named_parameters():
            step = 0.5 * total.get(name, torch.zeros(1)) / engine.batch_size
            apart.append((parameter - step - model.get_parameter(name)).abs().max().item())
    return max(apart)


@every_kind
@pytest.mark.parametrize("name", WITHIN)
def test_records_of_a_unit_may_mix(name, counts):
    apart = run(*WITHIN[name], COUNTS[counts], verification="every")
    assert apart < 1e-12 or name == "dropout"


@every_kind
@pytest.mark.parametrize("name", ACROSS)
def test_records_of_different_units_may_not(name, counts):
    with pytest.raises(SampleMixingError):
        run(*ACROSS[name], COUNTS[counts])


def test_units_of_as_many_records_may_be_reshaped():
    def reshaped(m, x, owners):
        hidden = m.first(x.view(-1, 3, FEATURES)).tanh()
        return m.last(hidden.mean(1, keepdim=True) + hidden).flatten(0, 1)

    def wrongly(m, x, owners):
        hidden = m.first(x.view(3, -1, FEATURES)).tanh()
        return m.last(hidden.mean(0, keepdim=True) + hidden).flatten(0, 1)

    run(reshaped, cross_entropy, COUNTS["regular"], verification="every")
    with pytest.raises(SampleMixingError):
        run(wrongly, cross_entropy, COUNTS["regular"])


class Sequences(torch.utils.data.Dataset):
    """Records of different lengths."""

    def __init__(self, counts):
        self.tensors = data(counts).tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return self.tensors[0][index][: 1 + index % FEATURES], int(self.tensors[1][index])


def collate(elements):
    x, y = zip(*elements, strict=True)
    return nn.utils.rnn.pad_sequence(list(x), batch_first=True, padding_value=0.0), torch.tensor(y)


def collate_by_length(elements):
    return collate(sorted(elements, key=lambda element: -len(element[0])))


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(1, CLASSES).double()

    def forward(self, x):
        return self.last(x.sum(1, keepdim=True))


def train_collated(collate_fn):
    counts = COUNTS["ragged"]
    model, engine = attach(
        Padded(), Sequences(counts), counts=counts, collate_fn=collate_fn, verification="every"
    )
    train(model, engine, 3)


def test_collating_keeps_the_order_of_records():
    """What is sorted would count for other units: the engine knows records by their places."""
    train_collated(collate)
    with pytest.raises(SampleMixingError, match="collate_fn puts records in another order"):
        train_collated(collate_by_length)


def sorted_by_size(x, y):
    order = x[:, 0].argsort()
    return x[order], y[order]


ORDERS = {
    "sorted": sorted_by_size,
    "sorted and of another type": lambda x, y: sorted_by_size(x.float(), y),
    "reversed": lambda x, y: (x.flip(0), y.flip(0)),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("is_custom", [False, True], ids=["", "collate_fn"])
def test_the_loop_must_keep_the_order_of_records(name, is_custom):
    """One person's records in places of another would be clipped as the other's."""
    collate_fn = torch.utils.data.default_collate if is_custom else None
    model, engine = attach(Model(plain), collate_fn=collate_fn)

    def losses(model, x, y):
        x, y = ORDERS[name](x, y)
        return cross_entropy(model(x.double(), None), y, None)

    with pytest.raises(SampleMixingError, match="called with records in another order than they"):
        train(model, engine, 3, losses)


def test_the_loop_may_change_what_keeps_its_place():
    model, engine = attach(Model(plain), verification="every")

    def losses(model, x, y):
        x = torch.where(y[:, None] == 1, x.round(), x).float().double()
        return cross_entropy(model(x, y.flip(0)), y, None)  # few classes: any order is chance

    train(model, engine, 3, losses)


def test_the_same_is_allowed_where_a_record_is_a_sample():
    model = Padded()
    options = {"batch_size": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = Sequences(COUNTS["ragged"])
    engine = qg.PrivacyEngine(model, optimizer, dataset, collate_fn=collate_by_length, **options)
    train(model, engine, 2)
