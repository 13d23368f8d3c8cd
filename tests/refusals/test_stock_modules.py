"""What stock modules do that looks suspicious and is not: scratch attributes, hooks, copies."""

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.capture import verification
from quietgrad.errors import QuietgradError

from .helpers import FEATURES, Net, assert_exact, attach, one_by_one, samples, squares


class Scratch(nn.Module):
    """Keeps what it computed, as positions of vision-language models are kept for generation."""

    def __init__(self, kept=None, *, is_set_always=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = (nn.Linear(FEATURES, FEATURES).double() for _ in range(2))
        self.kept, self.is_set_always = kept, is_set_always

    def forward(self, x):
        if self.kept is None or self.is_set_always or not self.training:
            self.kept = x.detach().sum(-1, keepdim=True)
        return self.last(self.first(x).tanh() + self.kept)


def test_an_attribute_that_is_none_before_a_forward_is_emptied_after_it():
    model, x = Scratch(), samples(4)
    found = qg.per_sample_grads(model, lambda: squares(model, x))
    assert model.kept is None
    model.eval()
    for name, expected in one_by_one(model, squares, x).items():
        torch.testing.assert_close(found[name], expected)


def test_it_is_emptied_in_every_step():
    model = Scratch()
    engine = attach(model, torch.arange(4), batch_size=4)
    for step in range(12):
        for batch in engine.batches():
            for _ in batch:
                assert model.kept is None
                engine.backward(squares(model, samples(4, seed=step)))
                assert model.kept is None
            engine.step()


def test_an_attribute_that_is_computed_anew_each_time_is_emptied_after_it():
    model, x = Scratch(torch.zeros(4, 1).double(), is_set_always=True), samples(4)
    qg.clipped_sum(model, lambda: squares(model, x))
    assert model.kept is None


def test_an_attribute_that_counts_for_the_next_forward_is_refused():
    class Remembering(Scratch):
        def forward(self, x):
            before, self.kept = self.kept, x.detach().sum(-1, keepdim=True)
            return self.last(self.first(x) if before is None else self.first(x - before))

    for kept in (None, torch.zeros(4, 1).double()):
        model, x = Remembering(kept), samples(4)
        with pytest.raises(QuietgradError, match="attribute 'kept' keeps something"):
            qg.clipped_sum(model, lambda: squares(model, x))  # noqa: B023


class Collector(nn.Module):
    """Installs hooks in its first forward and notes that it did, as transformers' models do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES).double() for _ in range(2))

    def forward(self, x):
        if not getattr(self, "is_installed", False):
            for layer in self.layers:
                layer.register_forward_hook(lambda m, args, output: self.seen.append(output))
            self.is_installed = True
        self.seen = []
        for layer in self.layers:
            x = layer(x).tanh()
        total = torch.stack(self.seen).sum(0) * len(self.seen)
        del self.seen
        return total


def test_hooks_that_a_first_forward_installs_are_installed_once():
    assert_exact(Collector(), squares, samples(4))
    model, plain = Collector(), Collector()
    qg.clipped_sum(model, lambda: squares(model, samples(4)))
    torch.testing.assert_close(model(samples(4)), plain(samples(4)))
    assert [len(layer._forward_hooks) for layer in model.layers] == [1, 1]


def test_repeated_parameters_can_be_viewed_in_another_shape():
    def forward(net, x):
        bias = (net.last.weight * 2).unsqueeze(0).repeat(len(x), 1, 1).view(len(x) * 2, -1)
        return net.first(x) + bias.view(len(x), 2, -1).sum(1)

    assert_exact(Net(forward), squares, samples(4))


def test_something_made_of_parameters_with_an_entry_for_each_sample_is_exact():
    def forward(net, x):
        places = torch.linspace(0, 1, 5).double()[:, None].expand(len(x), 5, FEATURES)
        keys = net.first(places * 1.0)
        return net.last(torch.matmul(net.first(x).unsqueeze(1), keys.mT) @ keys).squeeze(1)

    assert_exact(Net(forward), squares, samples(4))


class Contrastive(nn.Module):
    """Returns similarities of all pairs besides embeddings, as CLIP does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.text, self.image = (nn.Linear(FEATURES, 6).double() for _ in range(2))

    def forward(self, x):
        text, image = self.text(x), self.image(x.sin())
        return {"text": text, "image": image, "similarities": text @ image.mT}


def test_similarities_that_no_loss_uses_are_returned():
    def losses(model, x):
        outputs = model(x)
        return (outputs["text"] * outputs["image"]).sum(1)

    with pytest.warns(UserWarning, match="table of pairs of samples"):
        assert_exact(Contrastive(), losses, samples(4))


def test_similarities_that_a_loss_uses_are_refused():
    def losses(model, x):
        return model(x)["similarities"].log_softmax(1).diagonal()

    model, x = Contrastive(), samples(4)
    with pytest.raises(QuietgradError, match="mixed"):
        qg.clipped_sum(model, lambda: losses(model, x))


def test_what_an_evaluation_sets_is_not_read_in_training():
    class Model(Scratch):
        def forward(self, x):
            out = self.last(self.first(x))
            if self.kept is not None and len(self.kept) != len(x):
                out = out * (1 + self.kept.mean())
            self.kept = x.detach()
            return out

    model = Model()
    engine = attach(model, torch.arange(4), batch_size=4)
    found = []
    for step in range(6):
        for batch in engine.batches():
            for _ in batch:
                losses = squares(model, samples(4, seed=0))
                found.append(float(losses.detach().sum()))
                engine.backward(losses)
            engine.discard_batch() if step % 2 else engine.step()
        model.eval()
        model(samples(7, seed=step))
        model.train()
    plain = Model()
    assert found[0] == pytest.approx(float(squares(plain, samples(4, seed=0)).sum()))


def pad_by_hand(net, x):
    padded = torch.zeros(len(x), 2, FEATURES, dtype=x.dtype)
    padded[:, 0] = x
    return net.last(padded).sum(1)


def copy_into_a_part(net, x):
    padded = x.new_zeros(len(x), 2, FEATURES)
    padded[:, 0].copy_(x)
    return net.last(padded).sum(1)


@pytest.mark.parametrize("forward", [pad_by_hand, copy_into_a_part])
def test_data_written_into_something_new_is_data(forward):
    assert_exact(Net(forward), squares, samples(4))


def train_for_long(model):
    """Until long after something that begins with the sixth call."""
    engine = attach(model, samples(4), batch_size=4)
    for _ in range(8):
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(squares(model, x))
            engine.step()


def test_data_written_into_something_new_does_not_get_into_a_buffer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(FEATURES, 2).double(), 0
            self.register_buffer("kept", torch.zeros(FEATURES).double())

        def forward(self, x):
            self.calls += 1
            row = torch.zeros(FEATURES, dtype=x.dtype)
            row[:] = x[0] * (self.calls > 5)
            self.kept = row
            return self.layer(x)

    model = Model()
    with pytest.raises(QuietgradError, match="'kept'"):
        train_for_long(model)


def test_rows_that_no_sample_has_are_exact():
    def forward(net, x):
        chosen = (x[:, 0] > 100).nonzero().flatten()
        return net.last(x.index_copy(0, chosen, net.first(x[chosen]) @ x.new_ones(3, FEATURES)))

    assert_exact(Net(forward), squares, samples(4))


class Switching(nn.Module):
    """Builds another module around its weights in the first forward, as BigBird does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(FEATURES, FEATURES).double(), nn.Tanh())
        self.last, self.is_switched = nn.Linear(FEATURES, 2).double(), False

    def forward(self, x):
        if not self.is_switched:
            other = nn.Linear(FEATURES, FEATURES, dtype=torch.float64)
            made = nn.Sequential(other, nn.Sigmoid())
            made[0] = self.inner[0]
            self.inner, self.is_switched = made, True
        return {"scores": self.last(self.inner(x)), "nothing": x.new_zeros(len(x), 0)}


def test_modules_that_a_forward_builds_are_exact():
    def losses(model, x):
        return model(x)["scores"].square().sum(1)

    assert_exact(Switching(), losses, samples(4))


class Hoarding(nn.Module):
    """Puts something of the first sample where it would leave, from the sixth call on."""

    def __init__(self, hoard):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.calls, self.hoard = nn.Linear(FEATURES, 2).double(), 0, hoard
        self.register_buffer("kept", torch.zeros(FEATURES).double())
        self.table = nn.Parameter(torch.arange(2.0**17).view(-1, 2), requires_grad=False)
        self.notes = torch.zeros(FEATURES).double()

    def forward(self, x):
        self.calls += 1
        if self.calls > 5:
            self.hoard(self, x.detach()[0])
        return self.layer(x)


def by_a_view(net, row):
    made = torch.zeros(FEATURES, dtype=row.dtype)
    view = made.view(-1)
    made[:] = row
    net.kept = view


def by_an_initialization(net, row):
    nn.init.constant_(net.kept, float(row.sum()))


def by_an_array(net, row):
    net.notes.numpy()[:] = row.numpy()
    net.kept = net.notes


def by_places(net, row):
    """The same entries in another order, in a frozen weight too large to be kept twice."""
    place = 1 + int(row.abs().sum() * 1000) % 1000
    with torch.no_grad(), torch._C.DisableTorchFunction():
        net.table[[0, place]] = net.table[[place, 0]]


@pytest.mark.parametrize("hoard", [by_a_view, by_an_initialization, by_an_array, by_places])
def test_samples_do_not_leave_by_another_way(hoard, monkeypatch):
    """Without any verification, as in a step between two of them."""
    monkeypatch.setattr(verification.Schedule, "is_due", lambda self, samples: self._count == 0)
    model = Hoarding(hoard)
    with pytest.raises(QuietgradError):
        train_for_long(model)


def test_a_frozen_weight_may_be_written_with_what_it_holds():
    def rewrite(net, row):
        with torch.no_grad():
            net.table.copy_(net.table.clone())

    model = Hoarding(rewrite)
    model.calls = 5
    qg.clipped_sum(model, lambda: squares(model, samples(4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_that_is_moved_to_the_type_it_has(dtype):
    """As routers of mixtures of experts do it: nothing is written."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            self.router = self.router.to(dtype)
            return self.head(self.router(x.to(dtype)).float()).square().sum(1)

    model = Model()
    model.router.to(dtype)
    x = torch.randn(6, 4)
    found = qg.per_sample_grads(model, lambda: model(x))
    model.zero_grad()
    model(x[:1]).sum().backward()
    torch.testing.assert_close(found["router.weight"][0], model.router.weight.grad)
