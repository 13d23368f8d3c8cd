"""Clean programs by what their models return, and what becomes of it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .clean import (
    CLASSES,
    FEATURES,
    LONGEST,
    PADDED,
    VOCABULARY,
    Net,
    Program,
    classify_masked,
    clean,
    head,
    mlp,
    sentences,
    table,
    texts,
    vectors,
)


def first_and_last(forward):
    return Net(forward, first=nn.Linear(FEATURES, 8), last=head())


def on(read):
    """Losses of what ``read`` makes of the output and of the classes."""

    def losses(model, batch):
        x, y = batch
        return read(model(x), y)

    return losses


def entropy(logits, y):
    return F.cross_entropy(logits, y, reduction="none")


# -- kinds of outputs ----------------------------------------------------------------------------


@clean("a dictionary of outputs, one of them used")
def dictionary():
    def forward(net, x):
        hidden = net.first(x).tanh()
        return {"logits": net.last(hidden), "hidden": hidden, "name": "net", "scale": 0.5}

    losses = on(lambda output, y: entropy(output["logits"], y))
    return Program(first_and_last(forward), vectors(), losses)


class Output(NamedTuple):
    logits: Tensor
    attentions: tuple[Tensor, ...]
    loss: Tensor | None = None


@clean("a named tuple with attentions and nothing")
def named_tuple():
    def forward(net, ids):
        x = net.table(ids)
        weights = (x @ x.mT).softmax(-1)
        return Output(net.last((weights @ x)[:, 0]), (weights,))

    net = Net(forward, table=table(), last=head())
    return Program(net, texts(), on(lambda output, y: entropy(output.logits, y)))


@dataclass
class Prediction:
    logits: Tensor
    certain: Tensor


@clean("a dataclass of outputs")
def dataclass_of_outputs():
    def forward(net, x):
        logits = net.last(net.first(x).relu())
        return Prediction(logits, logits.softmax(1).amax(1) > 0.5)

    losses = on(lambda output, y: entropy(output.logits, y))
    return Program(first_and_last(forward), vectors(), losses)


@clean("a list with an entry for each sample")
def list_of_samples():
    def forward(net, x):
        return list(net.last(net.first(x).relu()))

    def read(rows, y):
        return torch.stack(
            [F.cross_entropy(row, label) for row, label in zip(rows, y, strict=True)]
        )

    return Program(first_and_last(forward), vectors(), on(read))


@clean("a list of entries of unequal length")
def list_of_lengths():
    def forward(net, ids, mask):
        logits = net.last(net.table(ids).tanh())
        return [row[kept] for row, kept in zip(logits, mask, strict=True)]

    def losses(model, batch):
        ids, mask, y = batch
        return torch.stack(
            [
                F.cross_entropy(rows.mean(0), label)
                for rows, label in zip(model(ids, mask), y, strict=True)
            ]
        )

    return Program(Net(forward, table=table(), last=head()), sentences(), losses, PADDED)


@clean("logits, a mask and a table that all share")
def mask_and_table():
    def forward(net, ids, mask):
        kept = mask[..., None].float()
        hidden = (net.table(ids) * kept).sum(1) / kept.sum(1)
        return net.last(hidden), mask, net.places[: ids.shape[1]], net.table.weight.detach()

    def losses(model, batch):
        ids, mask, y = batch
        return entropy(model(ids, mask)[0], y)

    net = Net(forward, table=table(), last=head())
    net.register_buffer("places", torch.randn(LONGEST, 8))
    return Program(net, sentences(), losses, PADDED)


@clean("a table of as many rows as there are samples")
def table_of_as_many_rows():
    def forward(net, x):
        return net.last(net.first(x).tanh()), net.prototypes

    def read(output, y):
        return entropy(output[0], y) + 0.01 * output[1].square().sum()

    net = first_and_last(forward)
    net.register_buffer("prototypes", torch.randn(6, 4))
    return Program(net, vectors(), on(read))


@clean("logits beside a column of 1e9")
def large_column():
    def forward(net, x):
        return torch.cat([net.last(net.first(x).tanh()), 1e9 * x[:, :1]], 1)

    losses = on(lambda output, y: entropy(output[:, :CLASSES], y))
    return Program(first_and_last(forward), vectors(), losses)


@clean("scores masked with the smallest number")
def smallest_number():
    def forward(net, ids, mask):
        x = net.table(ids)
        scores = net.score(x).squeeze(-1).masked_fill(~mask, torch.finfo(x.dtype).min)
        return net.last((scores.softmax(1)[..., None] * x).sum(1)), scores

    def losses(model, batch):
        ids, mask, y = batch
        return entropy(model(ids, mask)[0], y)

    net = Net(forward, table=table(), score=nn.Linear(8, 1, bias=False), last=head())
    return Program(net, sentences(), losses, PADDED)


@clean("not a number where there is padding")
def not_a_number():
    def forward(net, ids, mask):
        logits = net.last(net.table(ids))
        return torch.where(mask[..., None], logits, torch.nan)

    def losses(model, batch):
        ids, mask, y = batch
        logits = model(ids, mask).masked_fill(~mask[..., None], 0).sum(1)
        return entropy(logits / mask.sum(1, keepdim=True), y)

    return Program(Net(forward, table=table(), last=head()), sentences(), losses, PADDED)


# -- losses --------------------------------------------------------------------------------------


@clean("losses computed by the model")
def losses_in_the_model():
    def forward(net, x, y):
        return entropy(net.last(net.first(x).relu()), y)

    return Program(first_and_last(forward), vectors(), lambda model, batch: model(*batch))


@clean("several tasks")
def several_tasks():
    def forward(net, x):
        hidden = net.body(x)
        return net.kind(hidden), net.size(hidden), net.rank(hidden)

    def read(output, y):
        kind, size, rank = output
        wrong = F.binary_cross_entropy_with_logits(rank[:, 0], (y > 0).float(), reduction="none")
        return entropy(kind, y) + 0.5 * (size[:, 0] - y).square() + 0.1 * wrong

    layers = {"kind": head(), "size": nn.Linear(8, 1), "rank": nn.Linear(8, 1)}
    net = Net(forward, body=nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU()), **layers)
    return Program(net, vectors(), on(read))


@clean("losses of a part of the output")
def part_of_the_output():
    def forward(net, ids):
        return net.out(net.gru(net.table(ids))[0])

    def losses(model, batch):
        ids, _ = batch
        return F.cross_entropy(model(ids)[:, -2], ids[:, -1], reduction="none")

    gru = nn.GRU(8, 8, batch_first=True)
    net = Net(forward, table=table(), gru=gru, out=nn.Linear(8, VOCABULARY))
    return Program(net, texts(), losses)


@clean("losses that ignore some samples by their class")
def ignored_samples():
    losses = on(lambda logits, y: F.cross_entropy(logits, y, ignore_index=1, reduction="none"))
    return Program(mlp(nn.ReLU()), vectors(), losses)


@clean("a margin over the best wrong class")
def margin():
    def read(logits, y):
        right = logits.gather(1, y[:, None])[:, 0]
        wrong = logits.scatter(1, y[:, None], -torch.inf).amax(1)
        return (1 - right + wrong).relu()

    return Program(mlp(nn.ReLU()), vectors(), on(read))


@clean("logits that the loop divides in place")
def divided_in_place():
    def read(logits, y):
        logits /= 2
        return entropy(logits, y)

    return Program(mlp(nn.ReLU()), vectors(), on(read))


@clean("logits of which the loop closes one in place")
def closed_in_place():
    def read(logits, y):
        logits[:, 0] = -torch.inf
        return entropy(logits, y.clamp(min=1))

    return Program(mlp(nn.ReLU()), vectors(), on(read))


@clean("targets from the model's own detached output")
def own_targets():
    def read(logits, y):
        guess = logits.detach().softmax(1)
        return -(guess * logits.log_softmax(1)).sum(1) + entropy(logits, y)

    return Program(mlp(nn.ReLU()), vectors(), on(read))


@clean("tokens folded into the batch inside of the model")
def folded():
    def forward(net, ids, mask):
        logits = net.last(net.table(ids.flatten()).tanh()).unflatten(0, ids.shape)
        return (logits * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    net = Net(forward, table=table(), last=head())
    return Program(net, sentences(), classify_masked, PADDED)
