"""Clean programs with a state: counters, schedules, caches, frozen parts, fixed statistics.

Where a count of forwards changes what the model does, each step is one forward of all samples: with
micro-batches a sample more could make it one forward more.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from .clean import (
    CLASSES,
    FEATURES,
    LONGEST,
    Net,
    Program,
    clean,
    head,
    images,
    mlp,
    table,
    texts,
    vectors,
)

WHOLE = {"sampling": "full-batch", "batch_size": 24, "physical_batch_size": None}

# -- counters ------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Counts its forwards, for a log."""

    def __init__(self):
        super().__init__()
        self.layers, self.forwards, self.log = mlp(nn.ReLU()), 0, {"calls": 0}

    def forward(self, x):
        self.forwards += 1
        self.log["calls"] += 1
        return self.layers(x)


@clean("a counter that nothing depends on")
def counter():
    return Program(Counting(), vectors())


class CountingBatches(nn.Module):
    """Counts its forwards in a buffer, as batch normalization does."""

    def __init__(self):
        super().__init__()
        self.layers = mlp(nn.ReLU())
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.batches += 1
        return self.layers(x)


@clean("a buffer that counts batches")
def counter_in_a_buffer():
    return Program(CountingBatches(), vectors())


class Annealed(nn.Module):
    """A temperature that falls from forward to forward."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.steps = nn.Linear(FEATURES, 8), head(), 0

    def forward(self, x):
        self.steps += 1
        return self.last((self.first(x) / max(0.2, 0.8**self.steps)).softmax(1))


class AnnealedElsewhere(nn.Module):
    """The same, with the count in an object."""

    def __init__(self):
        super().__init__()
        self.layers, self.state = mlp(nn.Tanh()), SimpleNamespace(steps=0, history=[])

    def forward(self, x):
        self.state.steps += 1
        self.state.history.append(self.state.steps)
        return self.layers(x) * 0.9**self.state.steps


@clean("a temperature by a counter of forwards")
def annealed():
    return Program(Annealed(), vectors(), options=WHOLE)


@clean("a temperature by a counter in a namespace")
def annealed_in_a_namespace():
    return Program(AnnealedElsewhere(), vectors(), options=WHOLE)


def counting(changes):
    """A count in a closure; the model asks for the next one in each forward."""
    steps = 0

    def tick():
        nonlocal steps
        steps += 1
        return 0.9**steps if changes else 1.0

    def forward(net, x):
        return net.layers(x) * tick()

    return Net(forward, layers=mlp(nn.ReLU()))


@clean("a counter in a closure that nothing depends on")
def counter_in_a_closure():
    return Program(counting(changes=False), vectors())


@clean("a scale by a counter in a closure")
def annealed_in_a_closure():
    return Program(counting(changes=True), vectors(), options=WHOLE)


@clean("a temperature that the loop sets, by the step")
def annealed_by_the_loop():
    def forward(net, x):
        return net.last((net.first(x) / net.temperature).softmax(1))

    def train(engine, program, optimizer):
        for batch in engine.batches():
            program.model.temperature = 0.8**engine.steps_taken
            for micro_batch in batch:
                engine.backward(program.losses(program.model, micro_batch))
            engine.step()

    net = Net(forward, first=nn.Linear(FEATURES, 8), last=head())
    net.temperature = 1.0
    return Program(net, vectors(), train=train)


# -- caches --------------------------------------------------------------------------------------


class Placed(nn.Module):
    """Sines by position, kept for each length that was asked for, in an attribute."""

    def __init__(self):
        super().__init__()
        self.table, self.last, self.cache = table(), head(), {}

    def forward(self, ids):
        length = ids.shape[1]
        if length not in self.cache:
            angles = torch.arange(length)[:, None] / 10 ** torch.arange(0, 1, 0.25)
            self.cache[length] = torch.cat([angles.sin(), angles.cos()], 1)
        return self.last((self.table(ids) + self.cache[length]).tanh().mean(1))


class Rotated(nn.Module):
    """Rotary embeddings; their angles grow with the longest text so far, in buffers."""

    def __init__(self):
        super().__init__()
        self.table, self.inside, self.last, self.longest = table(), nn.Linear(8, 24), head(), 0

    def angles(self, length):
        if length > self.longest:
            self.longest = length
            angle = torch.outer(torch.arange(length), 1 / 100 ** torch.arange(0, 1, 0.25))
            angle = torch.cat([angle, angle], 1)
            self.register_buffer("cosine", angle.cos(), persistent=False)
            self.register_buffer("sine", angle.sin(), persistent=False)
        return self.cosine[:length], self.sine[:length]

    def forward(self, ids):
        cosine, sine = self.angles(ids.shape[1])
        q, k, v = self.inside(self.table(ids)).chunk(3, -1)
        q, k = (x * cosine + torch.cat([-x[..., 4:], x[..., :4]], -1) * sine for x in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.last(mixed.mean(1))


class Masked(nn.Module):
    """Causal attention by a mask that is kept as long as it fits."""

    def __init__(self):
        super().__init__()
        self.table, self.last, self.mask = table(), head(), None

    def forward(self, ids):
        x, length = self.table(ids), ids.shape[1]
        if self.mask is None or self.mask.shape[0] != length:
            self.mask = torch.full((length, length), -math.inf).triu(1)
        return self.last(((x @ x.mT + self.mask).softmax(-1) @ x)[:, -1])


def cropped(model):
    """Texts cut to one of a few lengths, by turns, whatever is in them."""

    def losses(model, batch):
        ids, y = batch
        lengths.append(lengths.pop(0))
        return F.cross_entropy(model(ids[:, : lengths[0]]), y, reduction="none")

    lengths = [5, LONGEST, 4, 6]
    return Program(model, texts(), losses)


@clean("positional encodings kept by length")
def encodings():
    return cropped(Placed())


@clean("rotary embeddings kept in buffers that grow")
def rotary():
    return cropped(Rotated())


@clean("a causal mask kept while it fits")
def kept_mask():
    return cropped(Masked())


# -- frozen parts --------------------------------------------------------------------------------


def backbone(norm):
    """Frozen, in eval mode, with statistics of other data."""
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    layers.append(nn.Flatten())
    for _ in range(3):
        layers(3 * torch.randn(8, 2, 6, 5) + 1)
    return layers.requires_grad_(False).eval()


def on_features(norm, extract, *, inside=True):
    """The loop runs a frozen backbone without gradients, and trains a head."""
    frozen = backbone(norm)
    net = Net(lambda net, x: net.head(x), head=nn.Sequential(nn.Linear(4, 8), nn.Tanh(), head()))
    if inside:
        net.backbone = frozen

    def losses(model, batch):
        x, y = batch
        with torch.no_grad():
            features = extract(frozen, x)
        return F.cross_entropy(model(features), y, reduction="none")

    return Program(net, images(2, 6, 5), losses)


@clean("a frozen backbone called by the loop, fixed batch norm")
def frozen_batch_norm():
    return on_features(nn.BatchNorm2d(4), lambda frozen, x: frozen(x))


@clean("a frozen backbone called by the loop, group norm")
def frozen_group_norm():
    return on_features(nn.GroupNorm(2, 4), lambda frozen, x: frozen(x))


@clean("a frozen backbone that is no part of the model")
def frozen_outside():
    return on_features(nn.BatchNorm2d(4), lambda frozen, x: frozen(x), inside=False)


@clean("a frozen backbone called in chunks")
def frozen_in_chunks():
    def extract(frozen, x):
        return torch.cat([frozen(chunk) for chunk in x.split(2)])

    return on_features(nn.GroupNorm(2, 4), extract)


@clean("a frozen backbone called with one sample at a time")
def frozen_one_by_one():
    def extract(frozen, x):
        return torch.cat([frozen(row[None]) for row in x])

    return on_features(nn.BatchNorm2d(4), extract)


@clean("a frozen backbone called twice, with noise")
def frozen_twice():
    def extract(frozen, x):
        return (frozen(x) + frozen(x + 0.1 * torch.randn_like(x))) / 2

    return on_features(nn.BatchNorm2d(4), extract)


@clean("a frozen backbone inside of the model's forward")
def frozen_inside():
    def forward(net, x):
        with torch.no_grad():
            features = net.backbone(x)
        return net.last(features)

    net = Net(forward, backbone=backbone(nn.BatchNorm2d(4)), last=nn.Linear(4, CLASSES))
    return Program(net, images(2, 6, 5))


@clean("frozen layers with gradients through them")
def frozen_between():
    middle = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).requires_grad_(False)
    return Program(mlp(nn.Tanh(), middle, nn.Dropout(0.1)), vectors())


@clean("batch norm kept in eval mode, its scales trained")
def batch_norm_fixed():
    norm = nn.BatchNorm1d(8)
    norm.running_mean.normal_()
    norm.eval()
    norm.train = lambda mode=True: norm  # stays as it is when the model is put into training mode
    return Program(mlp(norm, nn.ReLU()).train(), vectors())


# -- normed weights ------------------------------------------------------------------------------


@clean("weight norm")
def weight_norm():
    first = nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, 8))
    return Program(nn.Sequential(first, nn.ReLU(), head()), vectors())


@clean("spectral norm in eval mode")
def spectral_norm_fixed():
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 8)).eval()
    return Program(nn.Sequential(first, nn.ReLU(), head()), vectors())


@clean("spectral norm whose vectors move with the weights")
def spectral_norm():
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 8))
    return Program(nn.Sequential(first, nn.ReLU(), head()), vectors(), options=WHOLE)
