"""Clean programs by their layers and gradients: hooks, custom functions, gates, precisions."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from .clean import (
    CLASSES,
    FEATURES,
    VOCABULARY,
    Net,
    Program,
    clean,
    head,
    images,
    labels,
    mlp,
    table,
    texts,
    vectors,
)

# -- gradients by sample -------------------------------------------------------------------------


def hooked(hook):
    def forward(net, x):
        hidden = net.first(x).tanh()
        if hidden.requires_grad:
            hidden.register_hook(hook)
        return net.last(hidden)

    return Program(Net(forward, first=nn.Linear(FEATURES, 8), last=head()), vectors())


@clean("a hook that normalizes the gradient of each row")
def hook_normalizes():
    return hooked(lambda grad: grad / (grad.norm(dim=-1, keepdim=True) + 1e-6))


@clean("a hook that clamps gradients")
def hook_clamps():
    return hooked(lambda grad: grad.clamp(-0.1, 0.1))


@clean("a hook that scales gradients")
def hook_scales():
    return hooked(lambda grad: 0.5 * grad)


@clean("a hook of a module that clamps gradients")
def hook_of_a_module():
    model = mlp(nn.Tanh())
    model[1].register_full_backward_hook(lambda _, inside, outside: (inside[0].clamp(-0.1, 0.1),))
    return Program(model, vectors())


class Rounded(torch.autograd.Function):
    """Rounds; gradients pass straight through."""

    @staticmethod
    def forward(ctx, x):
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx, grad):
        return grad


class Reversed(torch.autograd.Function):
    """The identity; gradients change their sign."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Quantized(torch.autograd.Function):
    """Steps of a fixed size; gradients pass where nothing is cut off."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward((x / step).abs() <= 8)
        return (x / step).clamp(-8, 8).round() * step

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None


def through(function, *options):
    def forward(net, x):
        return net.last(function.apply(net.first(x), *options))

    return Program(Net(forward, first=nn.Linear(FEATURES, 8), last=head()), vectors())


@clean("rounding, straight through")
def rounding():
    return through(Rounded)


@clean("quantization with a fixed step")
def quantization():
    return through(Quantized, 0.25)


@clean("gradient reversal")
def reversal():
    def forward(net, x):
        hidden = net.first(x).tanh()
        return net.last(hidden), net.domain(Reversed.apply(hidden, 0.3))

    def losses(model, batch):
        x, y = batch
        logits, domain = model(x)
        wrong = F.binary_cross_entropy_with_logits(domain[:, 0], (y == 0).float(), reduction="none")
        return F.cross_entropy(logits, y, reduction="none") + wrong

    layers = {"first": nn.Linear(FEATURES, 8), "last": head(), "domain": nn.Linear(8, 1)}
    return Program(Net(forward, **layers), vectors(), losses)


@clean("straight through by detaching")
def detached():
    def forward(net, x):
        hidden = net.first(x)
        return net.last(hidden + (hidden.sign() - hidden).detach())

    return Program(Net(forward, first=nn.Linear(FEATURES, 8), last=head()), vectors())


@clean("a codebook, the nearest entry for each sample")
def codebook():
    def forward(net, x):
        hidden = net.first(x)
        nearest = torch.cdist(hidden.detach(), net.codes.weight.detach()).argmin(1)
        code = net.codes(nearest)
        return net.last(hidden + (code - hidden).detach()), (hidden.detach() - code).square().sum(1)

    def losses(model, batch):
        x, y = batch
        logits, distance = model(x)
        return F.cross_entropy(logits, y, reduction="none") + distance

    codes = nn.Embedding(5, 8)
    return Program(
        Net(forward, first=nn.Linear(FEATURES, 8), codes=codes, last=head()), vectors(), losses
    )


# -- gates that are closed at first --------------------------------------------------------------


@clean("LoRA, whose second matrix is zero at first")
def lora():
    def forward(net, x):
        return net.last((net.first(x) + net.up(net.down(x))).tanh())

    first, last = nn.Linear(FEATURES, 8).requires_grad_(False), head().requires_grad_(False)
    down, up = nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, 8, bias=False)
    nn.init.zeros_(up.weight)
    return Program(Net(forward, first=first, down=down, up=up, last=last), vectors())


@clean("scales of layers that begin at 1e-6")
def layer_scale():
    def forward(net, x):
        x = net.first(x)
        return net.last(x + net.scale * net.block(x).relu())

    net = Net(forward, first=nn.Linear(FEATURES, 8), block=nn.Linear(8, 8), last=head())
    net.scale = nn.Parameter(torch.full((8,), 1e-6))
    return Program(net, vectors())


@clean("a last layer of zeros")
def last_layer_of_zeros():
    model = mlp(nn.ReLU())
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    return Program(model, vectors())


# -- precision and memory ------------------------------------------------------------------------


@clean("channels last")
def channels_last():
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, stride=2)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))

    def losses(model, batch):
        x, y = batch
        logits = model(x.to(memory_format=torch.channels_last))
        return F.cross_entropy(logits, y, reduction="none")

    return Program(model.to(memory_format=torch.channels_last), images(3, 8, 8), losses)


@clean("autocast to bfloat16")
def autocast():
    def losses(model, batch):
        x, y = batch
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float(), y, reduction="none")

    return Program(mlp(nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.1)), vectors(), losses)


@clean("parameters in bfloat16")
def bfloat16():
    def losses(model, batch):
        x, y = batch
        return F.cross_entropy(model(x.bfloat16()).float(), y, reduction="none")

    return Program(mlp(nn.GELU(), nn.LayerNorm(8)).bfloat16(), vectors(), losses)


@clean("double precision")
def double():
    data = TensorDataset(torch.randn(24, FEATURES).double(), labels())
    return Program(mlp(nn.Tanh(), nn.Dropout(0.1)).double(), data)


@clean("activations in place")
def in_place():
    return Program(
        mlp(nn.Dropout(0.2, inplace=True), nn.LayerNorm(8), nn.ReLU(inplace=True)), vectors()
    )


# -- architectures -------------------------------------------------------------------------------


@clean("convolutions of odd sizes")
def odd_convolutions():
    layers = nn.Conv2d(1, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), nn.GELU()
    layers += nn.GroupNorm(1, 3), nn.Conv2d(3, 6, 3, groups=3), nn.MaxPool2d(2, ceil_mode=True)
    layers += nn.AdaptiveMaxPool2d((1, 2)), nn.Flatten(), nn.Linear(12, CLASSES)
    return Program(nn.Sequential(*layers), images(1, 11, 9))


@clean("as many channels and pixels as samples")
def as_many_channels():
    layers = nn.Conv2d(6, 6, 3, padding=1), nn.InstanceNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1)
    layers += nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)
    return Program(nn.Sequential(*layers), images(6, 6, 6))


@clean("a transposed convolution, up and down")
def up_and_down():
    layers = nn.Conv1d(2, 4, 3, stride=2), nn.SiLU(), nn.ConvTranspose1d(4, 2, 3, stride=2)

    def losses(model, batch):
        x, _ = batch
        return (model(x) - x).square().flatten(1).mean(1)

    return Program(nn.Sequential(*layers), images(2, 9), losses)


@clean("an LSTM in both directions")
def lstm():
    def forward(net, ids):
        return net.last(net.lstm(net.table(ids))[1][0].transpose(0, 1).flatten(1))

    recurrent = nn.LSTM(8, 4, bidirectional=True, batch_first=True)
    return Program(Net(forward, table=table(), lstm=recurrent, last=head()), texts())


@clean("a GRU, positions first, with a state of zeros")
def gru():
    def forward(net, ids):
        start = torch.zeros(1, len(ids), 8)
        return net.last(net.gru(net.table(ids).transpose(0, 1), start)[0][-1])

    return Program(Net(forward, table=table(), gru=nn.GRU(8, 8), last=head()), texts())


@clean("tied weights of a language model")
def tied():
    def forward(net, ids):
        return net.out(net.gru(net.table(ids))[0])

    def losses(model, batch):
        ids, _ = batch
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)

    net = Net(forward, table=table(), gru=nn.GRU(8, 8, batch_first=True))
    net.out = nn.Linear(8, VOCABULARY)
    net.out.weight = net.table.weight
    return Program(net, texts(), losses)


@clean("experts, all of them, weighted for each sample")
def experts():
    def forward(net, x):
        weights = net.gate(x).softmax(1)
        each = torch.stack([expert(x) for expert in net.experts], 1)
        return (weights[..., None] * each).sum(1)

    layers = nn.ModuleList(mlp(nn.ReLU()) for _ in range(3))
    return Program(Net(forward, gate=nn.Linear(FEATURES, 3), experts=layers), vectors())


@clean("the best expert for each sample")
def best_expert():
    def forward(net, x):
        scores = net.gate(x).softmax(1)
        best = scores.argmax(1, keepdim=True)
        each = torch.stack([expert(x) for expert in net.experts], 1)
        chosen = each.gather(1, best[..., None].expand(-1, 1, CLASSES)).squeeze(1)
        return chosen * scores.gather(1, best)

    layers = nn.ModuleList(mlp(nn.ReLU()) for _ in range(3))
    return Program(Net(forward, gate=nn.Linear(FEATURES, 3), experts=layers), vectors())
