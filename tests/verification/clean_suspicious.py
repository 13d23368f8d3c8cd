"""Clean programs that look as if they mixed samples, kept data or could not be repeated."""

import random
import secrets
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .clean import (
    FEATURES,
    PADDED,
    Net,
    Program,
    classify,
    classify_masked,
    clean,
    head,
    images,
    mlp,
    pad,
    sentences,
    table,
    texts,
    vectors,
)
from .clean_inputs import masked_mean
from .clean_layers import hooked
from .clean_loops import loop, noisy_mlp


def entropy(logits, y):
    return F.cross_entropy(logits, y, reduction="none")


def two_layers(forward):
    return Net(forward, first=nn.Linear(FEATURES, 8), last=head())


# -- all samples are looked at, to no effect -----------------------------------------------------


@clean("iterations until all samples are done")
def until_all_are_done():
    """Those that are done stay as they are, however long the others take."""

    def forward(net, x):
        hidden = net.first(x).tanh()
        done = torch.zeros(len(x), 1, dtype=torch.bool)
        for _ in range(4):
            if done.all():
                break
            hidden = torch.where(done, hidden, net.again(hidden).tanh())
            done = done | (net.halt(hidden) > 0.1).detach()
        return net.last(hidden)

    net = two_layers(forward)
    net.again, net.halt = nn.Linear(8, 8), nn.Linear(8, 1).requires_grad_(False)
    return Program(net, vectors())


@clean("texts cut to the longest inside of the model, with a mask")
def cut_to_the_longest():
    def collate(rows):
        ids, mask, y = pad(rows)
        missing = 9 - ids.shape[1]
        return F.pad(ids, (0, missing)), F.pad(mask, (0, missing)), y

    def forward(net, ids, mask):
        length = int(mask.sum(1).max())
        return masked_mean(net, ids[:, :length], mask[:, :length])

    net = Net(forward, table=table(), last=head())
    return Program(net, sentences(), classify_masked, {"collate_fn": collate})


@clean("texts sorted by their length, with a number for each place")
def sorted_by_length():
    """Several are of the same length, and the loss gets more than the model does."""

    def collate(rows):
        rows = sorted(rows, key=lambda row: len(row[0]))
        ids, mask, y = pad(rows)
        return ids, mask, y, torch.arange(len(rows)), mask.float() / mask.sum(1, keepdim=True)

    def losses(model, batch):
        ids, mask, y, places, weights = batch
        found = F.cross_entropy(model(ids, mask), y, reduction="none")
        return found * weights.sum(1) + 0 * places

    net = Net(masked_mean, table=table(), last=head())
    return Program(net, sentences(), losses, {"collate_fn": collate})


@clean("masks only where something is masked")
def masks_where_needed():
    """Another path where the texts are equally long, with the same results."""

    def forward(net, ids, mask):
        x = net.table(ids)
        mask = None if mask.all() else mask[:, None]
        return net.last(F.scaled_dot_product_attention(x, x, x, attn_mask=mask)[:, 0])

    net = Net(forward, table=table(), last=head())
    return Program(net, sentences(), classify_masked, PADDED | {"physical_batch_size": 3})


@clean("inputs are checked for numbers that are none")
def inputs_are_checked():
    def forward(net, x):
        if not torch.isfinite(x).all() or x.abs().max() > 1e6:
            raise ValueError("inputs must be finite")
        return net.layers(x)

    return Program(Net(forward, layers=mlp(nn.ReLU())), vectors())


# -- arguments -----------------------------------------------------------------------------------


def called(forward, call):
    def losses(model, batch):
        x, y = batch
        return entropy(call(model, x, y), y)

    return Program(Net(forward, layers=mlp(nn.ReLU())), vectors(), losses)


@clean("a function as an argument")
def function_as_an_argument():
    def losses(model, batch):
        x, y = batch
        return entropy(model(x, F.relu), y)

    return Program(two_layers(lambda net, x, f: net.last(f(net.first(x)))), vectors(), losses)


@clean("names of the samples, not used")
def names_of_samples():
    return called(
        lambda net, x, names: net.layers(x),
        lambda model, x, y: model(x, [f"row {label}" for label in y.tolist()]),
    )


@clean("numbers that are equal to the number of samples")
def numbers_as_large():
    return called(
        lambda net, x, width, scale: net.layers(x[:, :width] * scale / 6),
        lambda model, x, y: model(x, FEATURES, torch.tensor(6.0)),
    )


@clean("a tuple of samples")
def tuple_of_samples():
    return called(
        lambda net, rows: net.layers(torch.stack(rows)),
        lambda model, x, y: model(tuple(x)),
    )


@clean("a list of dictionaries")
def list_of_dictionaries():
    return called(
        lambda net, rows: net.layers(torch.stack([row["x"] for row in rows])),
        lambda model, x, y: model([{"x": row, "name": "row"} for row in x]),
    )


@clean("classes in a list, losses computed by the model")
def classes_in_a_list():
    def forward(net, x, labels):
        return entropy(net.layers(x), torch.tensor(labels))

    net = Net(forward, layers=mlp(nn.ReLU()))
    return Program(net, vectors(), lambda model, batch: model(batch[0], batch[1].tolist()))


@clean("a list of targets in, a list of losses out")
def targets_in_losses_out():
    def forward(net, x, targets):
        rows = zip(net.layers(x), targets, strict=True)
        return [{"loss": F.cross_entropy(row, t["label"]), "best": row.max()} for row, t in rows]

    def losses(model, batch):
        x, y = batch
        return torch.stack([found["loss"] for found in model(x, [{"label": v} for v in y])])

    return Program(Net(forward, layers=mlp(nn.ReLU())), vectors(), losses)


@clean("positions first, as many as samples")
def positions_first():
    def losses(model, batch):
        x, y = batch
        return entropy(model(x.transpose(0, 1)), y)

    net = Net(lambda net, x: net.last(net.gru(x)[0][-1]), gru=nn.GRU(3, 8), last=head())
    return Program(net, images(6, 3), losses)


@clean("tokens of all samples in one dimension")
def tokens_in_one_dimension():
    def losses(model, batch):
        ids, y = batch
        return entropy(model(ids.flatten()).unflatten(0, ids.shape).mean(1), y)

    net = Net(lambda net, ids: net.last(net.table(ids).tanh()), table=table(), last=head())
    return Program(net, texts(), losses)


@clean("the argument is modified in place, and the target of the loss")
def argument_as_target():
    def losses(model, batch):
        x, _ = batch
        return (model(x) - x).square().sum(1)

    forward, layer = (lambda net, x: net.layer(x.mul_(2))), nn.Linear(FEATURES, FEATURES)
    return Program(Net(forward, layer=layer), vectors(), losses)


# -- gradients and calls -------------------------------------------------------------------------


@clean("a hook that normalizes, and divides zero by zero")
def hook_divides():
    """Only where a sample is left out of the losses, which training never does."""
    return hooked(lambda grad: grad / grad.norm(dim=-1, keepdim=True))


@clean("a call whose output is not used")
def unused_call():
    def losses(model, batch):
        model(batch[0] + 1)
        return classify(model, batch)

    return Program(noisy_mlp(), vectors(), losses)


@clean("targets from a call without gradients, in training mode")
def guessed_targets():
    def losses(model, batch):
        x, _ = batch
        with torch.no_grad():
            guess = model(x).argmax(1)
        return entropy(model(x), guess)

    return Program(noisy_mlp(), vectors(), losses)


@clean("adversarial samples, found in eval mode")
def adversarial():
    def losses(model, batch):
        x, y = batch
        x = x.clone().requires_grad_()
        model.eval()
        (slope,) = torch.autograd.grad(entropy(model(x), y).sum(), x)
        model.train()
        return entropy(model((x + 0.1 * slope.sign()).detach()), y)

    return Program(noisy_mlp(), vectors(), losses)


@clean("features that a hook hands to the loop")
def features_by_a_hook():
    features = {}
    model = mlp(nn.Tanh())
    model[1].register_forward_hook(lambda module, x, y: features.update(hidden=y))

    def losses(model, batch):
        x, y = batch
        return entropy(model(x), y) + 0.1 * features.pop("hidden").square().sum(1)

    return Program(model, vectors(), losses)


# -- what is kept, or drawn ----------------------------------------------------------------------


class Scratch(nn.Module):
    """Keeps its hidden values while it runs, and a number that differs in every forward."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.hidden = nn.Linear(FEATURES, 8), head(), None
        self.ticket = 0

    def forward(self, x):
        self.ticket = secrets.randbits(64)  # as a clock or a counter of the process would be
        self.hidden = self.first(x).tanh()
        output = self.last(self.hidden)
        self.hidden = None
        return output


@clean("hidden values in an attribute until the forward ends, and a number of its own")
def scratch():
    return Program(Scratch(), vectors())


@lru_cache
def angles(length):
    return torch.outer(torch.arange(length), torch.linspace(0.1, 1, 8)).sin()


@clean("positions from a function that remembers")
def remembered_positions():
    def forward(net, ids):
        return net.last((net.table(ids) + angles(ids.shape[1])).tanh().mean(1))

    return Program(Net(forward, table=table(), last=head()), texts())


@clean("sorted in numpy, by sample")
def sorted_in_numpy():
    def forward(net, x):
        return net.last(net.first(torch.from_numpy(np.sort(x.numpy(), 1))).tanh())

    return Program(two_layers(forward), vectors())


@clean("generators of random and numpy in attributes")
def own_generators():
    def forward(net, x):
        noise = net.numpy.standard_normal((len(x), 8), dtype="float32")
        return net.last(net.first(x) * net.python.uniform(0.9, 1.1) + torch.from_numpy(noise))

    net = two_layers(forward)
    net.python, net.numpy = random.Random(1), np.random.default_rng(1)
    return Program(net, vectors())


@clean("the same noise in every forward")
def same_noise():
    def forward(net, x):
        with torch.random.fork_rng():
            torch.manual_seed(7)
            noise = torch.randn(8)
        return net.last(net.first(x) + noise)

    return Program(two_layers(forward), vectors())


@clean("a buffer that the loop sets from public data")
def buffer_set_by_the_loop():
    def forward(net, x):
        return net.layers(x - net.mean)

    net = Net(forward, layers=mlp(nn.ReLU()))
    net.register_buffer("mean", torch.zeros(FEATURES))
    public = torch.randn(10, FEATURES)
    between = loop(after_step=lambda model: model.mean.lerp_(public.mean(0), 0.5))
    return Program(net, vectors(), train=between)
