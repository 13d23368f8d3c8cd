"""Clean programs by what their loops do around a step: calls, evaluation, averages, sizes."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .clean import (
    CLASSES,
    FEATURES,
    PADDED,
    VOCABULARY,
    Net,
    Program,
    classify,
    clean,
    head,
    images,
    mlp,
    sentences,
    table,
    train,
    vectors,
)

# -- several calls -------------------------------------------------------------------------------


def contrast(one, other, y):
    distance = (one - other).square().sum(1)
    return torch.where(y == 0, distance, (1 - distance).relu())


@clean("the model is called twice, for two views")
def two_views():
    def losses(model, batch):
        x, y = batch
        return contrast(model(x), model(x + 0.1 * torch.randn_like(x)), y)

    return Program(mlp(nn.Tanh(), nn.Dropout(0.1)), vectors(), losses)


@clean("the second call gets what the first returned")
def called_with_its_own_output():
    def losses(model, batch):
        x, y = batch
        logits = model(x)
        again = model(torch.cat([x[:, :CLASSES], logits.softmax(1)], 1))
        return F.cross_entropy(logits + again, y, reduction="none")

    return Program(mlp(nn.Tanh()), vectors(), losses)


@clean("two views in one call, one after the other")
def two_views_in_one_call():
    def forward(net, x, other):
        one, two = net.layers(torch.stack([x, other], 1)).unbind(1)
        return one, two

    def losses(model, batch):
        x, y = batch
        return contrast(*model(x, -x), y)

    return Program(Net(forward, layers=mlp(nn.Tanh())), vectors(), losses)


@clean("encoder and decoder are called by the loop")
def encoder_and_decoder():
    def losses(model, batch):
        x, _ = batch
        code = model.encoder(x).tanh()
        return (model.decoder(code + 0.1 * torch.randn_like(code)) - x).square().sum(1)

    encoder, decoder = nn.Linear(FEATURES, 4), nn.Linear(4, FEATURES)
    layers = {"encoder": encoder, "decoder": decoder}
    return Program(Net(lambda net, x: net.decoder(net.encoder(x)), **layers), vectors(), losses)


@clean("a decoder with the encoder's states, padded")
def sequence_to_sequence():
    def forward(net, ids, mask):
        memory, padding = net.table(ids), ~mask
        start = net.start.expand(len(ids), 1, 8)
        return net.last(net.layer(start, memory, memory_key_padding_mask=padding)[:, 0])

    def losses(model, batch):
        ids, mask, y = batch
        return F.cross_entropy(model(ids, mask), y, reduction="none")

    layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True)
    net = Net(forward, table=table(), layer=layer, last=head())
    net.start = nn.Parameter(torch.randn(1, 1, 8))
    return Program(net, sentences(), losses, PADDED)


@clean("text is generated without gradients, then scored")
def generated():
    def forward(net, ids):
        return net.out(net.gru(net.table(ids))[0])

    def losses(model, batch):
        ids = batch[0][:, None] + 1
        with torch.no_grad():
            for _ in range(3):
                last = model(ids)[:, -1].softmax(1)
                ids = torch.cat([ids, torch.multinomial(last, 1)], 1)
        logits = model(ids[:, :-1]).transpose(1, 2)
        return F.cross_entropy(logits, ids[:, 1:], reduction="none").sum(1)

    gru, out = nn.GRU(8, 8, batch_first=True), nn.Linear(8, VOCABULARY)
    data = [(place % CLASSES,) for place in range(24)]
    return Program(Net(forward, table=table(), gru=gru, out=out), data, losses)


@clean("a teacher that is trained on other data")
def teacher():
    older = mlp(nn.ReLU(), nn.Dropout(0.1))

    def losses(model, batch):
        x, _ = batch
        with torch.no_grad():
            wanted = older(x).softmax(1)
        return F.cross_entropy(model(x), wanted, reduction="none")

    return Program(mlp(nn.ReLU()), vectors(), losses)


# -- between steps -------------------------------------------------------------------------------


def loop(after_backward=None, after_step=None):
    """The ordinary loop, with something done in between."""

    def run(engine, program, optimizer):
        for batch in engine.batches():
            for micro_batch in batch:
                engine.backward(program.losses(program.model, micro_batch))
                if after_backward is not None:
                    after_backward(program.model)
            engine.step()
            if after_step is not None:
                after_step(program.model)

    return run


def noisy_mlp():
    return mlp(nn.ReLU(), nn.Dropout(0.2))


@clean("evaluation between steps")
def evaluation_between_steps():
    held_out = torch.randn(9, FEATURES)

    def evaluate(model):
        model.eval()
        with torch.no_grad():
            model(held_out)
        model.train()

    return Program(noisy_mlp(), vectors(), train=loop(after_step=evaluate))


@clean("evaluation without gradients in training mode")
def evaluation_in_training_mode():
    held_out = torch.randn(6, FEATURES)
    return Program(
        noisy_mlp(), vectors(), train=loop(after_step=torch.no_grad()(lambda m: m(held_out)))
    )


@clean("evaluation between micro-batches")
def evaluation_between_micro_batches():
    held_out = torch.randn(5, FEATURES)

    def evaluate(model):
        model.eval()
        with torch.inference_mode():
            model(held_out)
        model.train()

    options = {"physical_batch_size": 3}
    return Program(noisy_mlp(), vectors(), classify, options, loop(after_backward=evaluate))


@clean("an average of the weights")
def average():
    model = noisy_mlp()
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return Program(model, vectors(), train=loop(after_step=mean.update_parameters))


@clean("a copy of the weights that gives targets")
def copy_gives_targets():
    model = mlp(nn.ReLU())
    older = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def follow(model):
        for old, new in zip(older.parameters(), model.parameters(), strict=True):
            old.lerp_(new, 0.1)

    def losses(model, batch):
        x, _ = batch
        return (model(x) - older(x + 0.1 * torch.randn_like(x))).square().sum(1)

    return Program(model, vectors(), losses, train=loop(after_step=follow))


@clean("a schedule of the learning rate")
def schedule():
    def run(engine, program, optimizer):
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        loop(after_step=lambda model: scheduler.step())(engine, program, optimizer)

    return Program(noisy_mlp(), vectors(), train=run)


@clean("losses given as a function")
def losses_as_a_function():
    def run(engine, program, optimizer):
        for batch in engine.batches():
            for micro_batch in batch:
                engine.backward(lambda batch=micro_batch: classify(program.model, batch))
            engine.step()

    return Program(noisy_mlp(), vectors(), train=run)


# -- sizes ---------------------------------------------------------------------------------------


def recurrent():
    def forward(net, x):
        return net.last(net.gru(x)[0][:, -1])

    return Net(forward, gru=nn.GRU(3, 8, batch_first=True), last=head())


@clean("micro-batches of one sample")
def one_sample():
    return Program(noisy_mlp(), vectors(), options={"physical_batch_size": 1})


@clean("nine samples as eight and one")
def eight_and_one():
    rows = torch.utils.data.Subset(images(5, 3), range(9))
    options = {"sampling": "full-batch", "batch_size": 9, "physical_batch_size": 8}
    return Program(recurrent(), rows, options=options)


@clean("micro-batches of two")
def two_samples():
    return Program(recurrent(), images(5, 3), options={"physical_batch_size": 2})


@clean("batches of which some are empty")
def empty_batches():
    return Program(recurrent(), images(5, 3), options={"batch_size": 1})


@clean("layer-wise groups, several epochs")
def layer_wise():
    def run(engine, program, optimizer):
        for _ in range(3):
            train(engine, program, optimizer)

    options = {"grouping": "layer-wise", "physical_batch_size": 4}
    return Program(noisy_mlp(), vectors(), options=options, train=run)
