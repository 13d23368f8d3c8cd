"""Clean programs that draw at random, for each sample or once for all."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

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

# -- dropout -------------------------------------------------------------------------------------


@clean("dropout")
def dropout():
    return Program(mlp(nn.ReLU(), nn.Dropout(0.3)), vectors())


@clean("alpha dropout")
def alpha_dropout():
    return Program(mlp(nn.SELU(), nn.AlphaDropout(0.2)), vectors())


@clean("dropout of whole channels")
def dropout_of_channels():
    layers = nn.Conv2d(2, 4, 3), nn.Dropout2d(0.4), nn.Flatten(), nn.LazyLinear(CLASSES)
    model = nn.Sequential(*layers)
    model(torch.zeros(1, 2, 6, 5))
    return Program(model, images(2, 6, 5))


@clean("functional dropout, rare")
def functional_dropout():
    def forward(net, x):
        return net.last(F.dropout(net.first(x).tanh(), 0.01, training=net.training))

    return Program(Net(forward, first=nn.Linear(FEATURES, 8), last=head()), vectors())


@clean("dropout of the input, before any layer")
def dropout_of_the_input():
    return Program(nn.Sequential(nn.Dropout(0.2), mlp(nn.Tanh())), vectors())


@clean("dropout in a recurrent layer")
def dropout_in_lstm():
    def forward(net, ids):
        return net.last(net.lstm(net.table(ids))[0][:, -1])

    lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.3, batch_first=True)
    return Program(Net(forward, table=table(), lstm=lstm, last=head()), texts())


@clean("dropout in attention")
def dropout_in_attention():
    def forward(net, ids):
        x = net.table(ids)
        return net.last(net.attention(x, x, x, need_weights=False)[0].mean(1))

    attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
    return Program(Net(forward, table=table(), attention=attention, last=head()), texts())


@clean("a transformer's layers, samples first")
def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = Net(
        lambda net, ids: net.last(net.encoder(net.table(ids)).mean(1)),
        table=table(),
        encoder=encoder,
        last=head(),
    )
    return Program(net, texts())


@clean("a transformer's layers, positions first")
def transformer_positions_first():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, norm_first=True)
    net = Net(
        lambda net, ids: net.last(net.layer(net.table(ids).transpose(0, 1)).mean(0)),
        table=table(),
        layer=layer,
        last=head(),
    )
    return Program(net, texts())


@clean("scaled dot products with dropout, causal")
def scaled_dot_products():
    def forward(net, ids):
        q, k, v = net.inside(net.table(ids)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
        return net.last(mixed.transpose(1, 2).flatten(2)[:, -1])

    return Program(Net(forward, table=table(), inside=nn.Linear(8, 24), last=head()), texts())


# -- depth ---------------------------------------------------------------------------------------


def residual(keep):
    """A block that is left out where ``keep(x)`` is zero."""

    def forward(net, x):
        x = net.first(x)
        x = x + keep(x) * net.block(x).tanh()
        return net.last(x)

    first, block = nn.Linear(FEATURES, 8), nn.Linear(8, 8)
    return Program(Net(forward, first=first, block=block, last=head()), vectors())


@clean("depth at random, by sample")
def depth_by_sample():
    return residual(lambda x: torch.bernoulli(torch.full((len(x), 1), 0.8)) / 0.8)


@clean("depth at random, by batch, torch")
def depth_by_torch():
    return residual(lambda x: float(torch.rand(()) < 0.8))


@clean("depth at random, by batch, random")
def depth_by_random():
    return residual(lambda x: float(random.random() < 0.8))


@clean("depth at random, by batch, numpy")
def depth_by_numpy():
    return residual(lambda x: float(np.random.rand() < 0.8))  # noqa: NPY002


@clean("a scale at random, by sample, numpy")
def scale_by_numpy():
    def scale(x):
        return torch.from_numpy(np.random.uniform(0.5, 1.5, (len(x), 1)).astype("float32"))  # noqa: NPY002

    return residual(scale)


@clean("layers that are left out as a whole, at random")
def layers_left_out():
    def forward(net, x):
        x = net.first(x)
        for layer in net.layers:
            if random.random() < 0.7:
                x = x + layer(x).relu()
        return net.last(x)

    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    return Program(
        Net(forward, first=nn.Linear(FEATURES, 8), layers=layers, last=head()), vectors()
    )


# -- checkpoints ---------------------------------------------------------------------------------


def checkpointed(reentrant):
    def forward(net, x):
        return net.last(checkpoint(net.block, net.first(x), use_reentrant=reentrant))

    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh())
    return Program(Net(forward, first=nn.Linear(FEATURES, 8), block=block, last=head()), vectors())


@clean("dropout in a checkpoint, reentrant")
def checkpoint_reentrant():
    return checkpointed(True)


@clean("dropout in a checkpoint, not reentrant")
def checkpoint_not_reentrant():
    return checkpointed(False)


# -- generative models ---------------------------------------------------------------------------


@clean("a variational autoencoder")
def autoencoder():
    def forward(net, x):
        mean, log_variance = net.encoder(x).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return net.decoder(z), mean, log_variance

    def losses(model, batch):
        x, _ = batch
        y, mean, log_variance = model(x)
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(1) / 2
        return (x - y).square().sum(1) + 0.1 * divergence

    encoder = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 4))
    decoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, FEATURES))
    return Program(Net(forward, encoder=encoder, decoder=decoder), vectors(), losses)


def denoise(net, x, t):
    return net.last((net.first(x) + net.times(t)).relu())


def denoiser(forward):
    layers = {"first": nn.Linear(FEATURES, 8), "last": nn.Linear(8, FEATURES)}
    return Net(forward, times=nn.Embedding(10, 8), **layers)


@clean("diffusion, noise drawn by the loop")
def diffusion_in_the_loop():
    def losses(model, batch):
        x, _ = batch
        noise, t = torch.randn_like(x), torch.randint(10, (len(x),))
        share = (t + 1)[:, None] / 10
        return (model((1 - share).sqrt() * x + share.sqrt() * noise, t) - noise).square().mean(1)

    return Program(denoiser(denoise), vectors(), losses)


@clean("diffusion, noise and times drawn by the model")
def diffusion_in_the_model():
    def forward(net, x):
        t, noise = torch.randint(10, (len(x),)), torch.randn_like(x)
        share = (t + 1)[:, None] / 10
        found = denoise(net, (1 - share).sqrt() * x + share.sqrt() * noise, t)
        return (found - noise).square().mean(1)

    return Program(denoiser(forward), vectors(), lambda model, batch: model(batch[0]))


@clean("diffusion, one time for the whole batch")
def diffusion_one_time():
    def losses(model, batch):
        x, _ = batch
        t, noise = torch.randint(10, (1,)), torch.randn_like(x)
        return (model(x + noise * (t + 1) / 10, t) - noise).square().mean(1)

    return Program(denoiser(denoise), vectors(), losses)


@clean("a choice by gumbel softmax")
def gumbel():
    return Program(
        Net(
            lambda net, x: net.last(F.gumbel_softmax(net.first(x), hard=True)),
            first=nn.Linear(FEATURES, 8),
            last=head(),
        ),
        vectors(),
    )


@clean("random masking, as of a masked autoencoder")
def masked_autoencoder():
    def forward(net, x):
        patches = net.first(x)
        order = torch.rand(patches.shape[:2]).argsort(1)
        kept, back = order[:, :3], order.argsort(1)
        width = patches.shape[2]
        seen = net.encoder(patches.gather(1, kept[..., None].expand(-1, -1, width)))
        blank = net.blank.expand(len(x), patches.shape[1] - 3, width)
        both = torch.cat([seen, blank], 1).gather(1, back[..., None].expand(-1, -1, width))
        return net.decoder(both + net.places), (back >= 3).float()

    def losses(model, batch):
        x, _ = batch
        found, hidden = model(x)
        return ((found - x).square().mean(2) * hidden).sum(1) / hidden.sum(1)

    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    net = Net(forward, first=nn.Linear(FEATURES, 8), encoder=layer, decoder=nn.Linear(8, FEATURES))
    net.blank = nn.Parameter(torch.randn(1, 1, 8))
    net.places = nn.Parameter(torch.randn(1, LONGEST, 8))
    return Program(net, images(LONGEST, FEATURES), losses)


# -- noise ---------------------------------------------------------------------------------------


class Noise(nn.Module):
    """Adds noise while it trains."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) if self.training else x


@clean("layers of noise")
def noise():
    return Program(nn.Sequential(Noise(), mlp(nn.ReLU(), Noise())), vectors())


@clean("slopes at random")
def random_slopes():
    return Program(mlp(nn.RReLU()), vectors())


@clean("noise on the weights, the same for all samples")
def noisy_weights():
    def forward(net, x):
        weight = net.first.weight + 0.1 * torch.randn(8, FEATURES)
        return net.last(F.linear(x, weight, net.first.bias).tanh())

    return Program(Net(forward, first=nn.Linear(FEATURES, 8), last=head()), vectors())


@clean("a generator of the model's own")
def own_generator():
    def forward(net, x):
        return net.last(net.first(x) * (torch.rand(len(x), 8, generator=net.generator) > 0.2))

    net = Net(forward, first=nn.Linear(FEATURES, 8), last=head())
    net.generator = torch.Generator().manual_seed(3)
    return Program(net, vectors())


@clean("a draw for each sample, in a loop")
def draws_in_a_loop():
    def forward(net, x):
        return net.last(torch.stack([row * torch.rand(()) for row in net.first(x)]))

    return Program(Net(forward, first=nn.Linear(FEATURES, 8), last=head()), vectors())


@clean("draws by rejection")
def gamma():
    def forward(net, x):
        scales = torch.distributions.Gamma(2.0, torch.ones(len(x), 8)).sample()
        return net.last(net.first(x) * scales.to(x))

    return Program(Net(forward, first=nn.Linear(FEATURES, 8), last=head()), vectors())
