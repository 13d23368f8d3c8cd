"""Operations along the positions of ``[B, T, WIDTH]``: the number of positions may change."""

import torch
import torch.nn.functional as F
from torch import nn

from .pointwise import Operation
from .pool import LONGEST, WIDTH

SEQUENCES: dict[str, Operation] = {
    # without parameters
    "mean over time": lambda p, k, h: h.mean(1, keepdim=True),
    "first position": lambda p, k, h: h[:, :1],
    "reversed": lambda p, k, h: h.flip(1),
    "cumulative": lambda p, k, h: h.cumsum(1),
    "softmax over time": lambda p, k, h: h.softmax(1),
    "doubled": lambda p, k, h: torch.cat([h, h.sin()], 1),
    "largest": lambda p, k, h: h.amax(1, keepdim=True),
    # convolutions and normalization over channels
    "conv1d": lambda p, k, h: F.conv1d(h.mT, p.tensor(k, WIDTH, WIDTH, 3), p.row(k), padding=1).mT,
    "depthwise": lambda p, k, h: (
        F.conv1d(h.mT, p.tensor(k, WIDTH, 1, 3), groups=WIDTH, padding=1).mT
    ),
    "conv2d": lambda p, k, h: F.conv2d(h[:, None], p.tensor(k, 2, 1, 3, 3), padding=1).mean(1),
    "strided conv": lambda p, k, h: F.conv1d(h.mT, p.square(k)[..., None], p.row(k), 2).mT,
    "transposed conv": lambda p, k, h: (
        F.conv_transpose1d(h.mT, p.tensor(k, WIDTH, WIDTH, 3), padding=1).mT
    ),
    "group_norm": lambda p, k, h: F.group_norm(h.mT, 2, p.row(k), p.row(k).exp()).mT,
    # attention
    "nn.MultiheadAttention": lambda p, k, h: p.layer(k, attention)(h, h, h)[0],
    "attention, time first": lambda p, k, h: p.layer(k, attention_time_first)(
        *[h.transpose(0, 1)] * 3
    )[0].transpose(0, 1),
    "nn.TransformerEncoderLayer": lambda p, k, h: p.layer(k, encoder)(h),
    "attention by hand": lambda p, k, h: (h @ p.square(k) @ h.mT).tanh().softmax(-1) @ h,
    "sdpa": lambda p, k, h: F.scaled_dot_product_attention(h @ p.square(k), h, h),
    "trained queries": lambda p, k, h: (p.tensor(k, 2, WIDTH) @ h.mT).softmax(-1) @ h,
    # recurrence
    "nn.LSTM": lambda p, k, h: p.layer(k, lstm)(h)[0],
    "nn.GRU": lambda p, k, h: p.layer(k, gru)(h)[0],
    "nn.RNN, time first": lambda p, k, h: p.layer(k, rnn)(h.transpose(0, 1))[0].transpose(0, 1),
    "last state": lambda p, k, h: p.layer(k, gru)(h)[1].transpose(0, 1).flatten(1)[:, None],
    # parameters that run over time
    "class token": lambda p, k, h: torch.cat([p.row(k).expand(len(h), 1, -1), h], 1),
    "derived token": lambda p, k, h: torch.cat(
        [h, p.square(k).mean(0).sin().repeat(len(h), 1, 1)], 1
    ),
    "positions": lambda p, k, h: h + p.tensor(k, LONGEST, WIDTH)[: h.shape[1]],
    "embedded positions": lambda p, k, h: (
        h + F.embedding(torch.arange(h.shape[1]), p.tensor(k, LONGEST, WIDTH))[None]
    ),
    "mixing in time": lambda p, k, h: torch.einsum(
        "ts,bsd->btd", p.tensor(k, LONGEST, LONGEST)[: h.shape[1], : h.shape[1]], h
    ),
    "time from the left": lambda p, k, h: (
        p.tensor(k, LONGEST, LONGEST)[: h.shape[1], : h.shape[1]].tril() @ h
    ),
}


def attention() -> nn.Module:
    return nn.MultiheadAttention(WIDTH, 2, batch_first=True)


def attention_time_first() -> nn.Module:
    return nn.MultiheadAttention(WIDTH, 2)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 5, 0.0, batch_first=True)


def lstm() -> nn.Module:
    return nn.LSTM(WIDTH, WIDTH, batch_first=True)


def gru() -> nn.Module:
    return nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)


def rnn() -> nn.Module:
    return nn.RNN(WIDTH, WIDTH)
