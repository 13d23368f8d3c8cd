"""Clean programs by what their models are called with: padding, lengths, objects, lists."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
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
    pad,
    sentences,
    table,
    texts,
    vectors,
)

# -- padding with masks --------------------------------------------------------------------------


def masked_mean(net, ids, mask):
    kept = mask[..., None].float()
    return net.last((net.table(ids).tanh() * kept).sum(1) / kept.sum(1))


@clean("padding, a masked mean")
def padding_mean():
    net = Net(masked_mean, table=table(), last=head())
    return Program(net, sentences(), classify_masked, PADDED)


@clean("padding, micro-batches by length")
def padding_by_length():
    data = sentences()
    options = {**PADDED, "lengths": [len(ids) for ids, _ in data], "physical_batch_size": 3}
    return Program(Net(masked_mean, table=table(), last=head()), data, classify_masked, options)


@clean("padding, a maximum of what is not masked")
def padding_maximum():
    def forward(net, ids, mask):
        return net.last(net.table(ids).masked_fill(~mask[..., None], -torch.inf).amax(1))

    net = Net(forward, table=table(), last=head())
    return Program(net, sentences(), classify_masked, PADDED)


@clean("padding, attention with a mask of keys")
def padding_attention():
    def forward(net, ids, mask):
        x = net.table(ids)
        x, _ = net.attention(x, x, x, key_padding_mask=~mask, need_weights=False)
        return net.last(x[:, 0])

    attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
    net = Net(forward, table=table(), attention=attention, last=head())
    return Program(net, sentences(), classify_masked, PADDED)


@clean("padding, a transformer's layer")
def padding_transformer():
    def forward(net, ids, mask):
        x = net.layer(net.table(ids), src_key_padding_mask=~mask)
        return net.last((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    net = Net(forward, table=table(), layer=layer, last=head())
    return Program(net, sentences(), classify_masked, PADDED)


@clean("padding, the last state of an LSTM by gather")
def padding_lstm():
    def forward(net, ids, mask):
        states, _ = net.lstm(net.table(ids))
        last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, states.shape[2])
        return net.last(states.gather(1, last).squeeze(1))

    net = Net(forward, table=table(), lstm=nn.LSTM(8, 8, batch_first=True), last=head())
    return Program(net, sentences(), classify_masked, PADDED)


@clean("padding, the last state of a GRU by index")
def padding_gru():
    def forward(net, ids, mask):
        states, _ = net.gru(net.table(ids))
        return net.last(states[torch.arange(len(ids)), mask.sum(1) - 1])

    net = Net(forward, table=table(), gru=nn.GRU(8, 8, batch_first=True), last=head())
    return Program(net, sentences(), classify_masked, PADDED)


@clean("padding inside the model, by id")
def padding_by_id():
    def forward(net, ids):
        kept = (ids != 0)[..., None]
        return net.last((net.table(ids) * kept).sum(1) / kept.sum(1))

    def losses(model, batch):
        ids, _, y = batch
        return F.cross_entropy(model(ids), y, reduction="none")

    embedding = nn.Embedding(VOCABULARY, 8, padding_idx=0)
    return Program(Net(forward, table=embedding, last=head()), sentences(), losses, PADDED)


def small(kind, **options):
    transformers = __import__("transformers")
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **options)
    config.num_labels, config.pad_token_id = CLASSES, 0
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)


def classify_by_keywords(model, batch):
    ids, mask, y = batch
    logits = model(input_ids=ids, attention_mask=mask.long()).logits
    return F.cross_entropy(logits, y, reduction="none")


@clean("BERT with a mask")
def bert():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = small("Bert", **sizes, intermediate_size=12, max_position_embeddings=8).train()
    return Program(model, sentences(), classify_by_keywords, PADDED)


@clean("GPT-2 with a mask, losses of tokens")
def gpt2():
    transformers = __import__("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).train()

    def losses(model, batch):
        ids, mask, _ = batch
        logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        return (each * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)

    return Program(model, sentences(), losses, PADDED)


# -- lengths -------------------------------------------------------------------------------------


def mean_up_to(net, ids, lengths):
    lengths = torch.as_tensor(lengths)
    return masked_mean(net, ids, torch.arange(ids.shape[1]) < lengths[:, None])


def with_lengths(make, forward=mean_up_to):
    def losses(model, batch):
        ids, mask, y = batch
        return F.cross_entropy(model(ids, make(mask.sum(1))), y, reduction="none")

    return Program(Net(forward, table=table(), last=head()), sentences(), losses, PADDED)


@clean("lengths in a tensor")
def lengths_in_a_tensor():
    return with_lengths(lambda lengths: lengths)


@clean("lengths in a list")
def lengths_in_a_list():
    return with_lengths(lambda lengths: lengths.tolist())


@clean("lengths in a tuple")
def lengths_in_a_tuple():
    return with_lengths(lambda lengths: tuple(lengths.tolist()))


@clean("lengths in an array")
def lengths_in_an_array():
    return with_lengths(lambda lengths: lengths.numpy())


@clean("lengths in a list, one sample after the other")
def lengths_one_by_one():
    def forward(net, ids, lengths):
        hidden = net.table(ids).tanh()
        rows = [row[:length].mean(0) for row, length in zip(hidden, lengths, strict=True)]
        return net.last(torch.stack(rows))

    return with_lengths(lambda lengths: lengths.tolist(), forward)


# -- objects -------------------------------------------------------------------------------------


@dataclass
class Batch:
    ids: Tensor
    mask: Tensor
    label: Tensor


def with_batches(make, read):
    """Batches of a kind, which go to the model as they are."""

    def losses(model, batch):
        return F.cross_entropy(model(batch), read(batch, "label"), reduction="none")

    def forward(net, batch):
        return masked_mean(net, read(batch, "ids"), read(batch, "mask"))

    options = {"collate_fn": lambda rows: make(*pad(rows))}
    return Program(Net(forward, table=table(), last=head()), sentences(), losses, options)


@clean("a dictionary as a batch")
def batch_dictionary():
    def make(ids, mask, label):
        return {"ids": ids, "mask": mask, "label": label}

    return with_batches(make, lambda batch, name: batch[name])


@clean("a dataclass as a batch")
def batch_dataclass():
    return with_batches(Batch, getattr)


@clean("a namespace as a batch")
def batch_namespace():
    def make(ids, mask, label):
        return SimpleNamespace(ids=ids, mask=mask, label=label)

    return with_batches(make, getattr)


@clean("keywords beside flags and names")
def keywords():
    def forward(net, *, pixels, scale, kind="plain", flags=(True, False)):
        assert kind == "plain"
        return net.layers(pixels * scale if flags[0] else pixels)

    def losses(model, batch):
        x, y = batch
        return F.cross_entropy(model(pixels=x, scale=0.5, kind="plain"), y, reduction="none")

    return Program(Net(forward, layers=mlp(nn.ReLU())), vectors(), losses)


@clean("a causal mask shared by all, beside the samples")
def shared_mask():
    def forward(net, ids, mask):
        return net.last(net.layer(net.table(ids), src_mask=mask)[:, -1])

    def losses(model, batch):
        ids, y = batch
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return F.cross_entropy(model(ids, mask), y, reduction="none")

    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    return Program(Net(forward, table=table(), layer=layer, last=head()), texts(), losses)


@clean("ids of positions in one row, shared by all")
def shared_positions():
    def forward(net, ids, positions):
        return net.last((net.table(ids) + net.places(positions)).tanh().mean(1))

    def losses(model, batch):
        ids, y = batch
        positions = torch.arange(ids.shape[1])[None]
        return F.cross_entropy(model(ids, positions), y, reduction="none")

    places = nn.Embedding(LONGEST, 8)
    return Program(Net(forward, table=table(), places=places, last=head()), texts(), losses)


# -- lists ---------------------------------------------------------------------------------------


@clean("a list of samples of unequal length")
def list_of_samples():
    def forward(net, rows):
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return masked_mean(net, ids, ids != 0)

    def losses(model, batch):
        rows, y = batch
        return F.cross_entropy(model(rows), y, reduction="none")

    options = {
        "collate_fn": lambda rows: ([r for r, _ in rows], torch.tensor([y for _, y in rows]))
    }
    return Program(Net(forward, table=table(), last=head()), sentences(), losses, options)


@clean("two lists of samples, compared with each other")
def siamese_lists():
    def forward(net, left, right):
        one, other = net.layers(torch.stack(left)), net.layers(torch.stack(right))
        return (one - other).square().sum(1)

    def losses(model, batch):
        x, y = batch
        distance = model(list(x), list(x.flip(1)))
        return torch.where(y == 0, distance, (1 - distance).relu())

    return Program(Net(forward, layers=mlp(nn.Tanh())), vectors(), losses)


@clean("the argument is modified in place")
def argument_in_place():
    def forward(net, x):
        x.mul_(2).sub_(0.1)
        return net.layers(x)

    return Program(Net(forward, layers=mlp(nn.ReLU())), vectors())


@clean("a copy of the argument is modified in place")
def copy_in_place():
    def forward(net, x):
        x = x.clone()
        x.mul_(2)
        x[:, 0] = 0
        return net.layers(x)

    return Program(Net(forward, layers=mlp(nn.ReLU(inplace=True))), vectors())


@clean("an array as a constant beside the samples")
def constant_array():
    scale = np.linspace(0.5, 1, FEATURES, dtype="float32")

    def losses(model, batch):
        x, y = batch
        return F.cross_entropy(model(x, scale), y, reduction="none")

    def forward(net, x, scale):
        return net.layers(x * torch.from_numpy(scale))

    return Program(Net(forward, layers=mlp(nn.ReLU())), vectors(), losses)
