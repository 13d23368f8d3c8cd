"""nn.MultiheadAttention and the transformers built from it; attention with trainable parts."""

import torch
import torch.nn.functional as F
from torch import nn, randn

from .table import B, Net, case

_CAUSAL = nn.Transformer.generate_square_subsequent_mask


def _attend(name, forward=None, inputs=((7, 6),), **options):
    """A case of ``forward(attention, *inputs)``, with self-attention as the default."""
    forward = forward or (lambda attention, x: attention(x, x, x)[0])

    def build():
        attention = nn.MultiheadAttention(6, 2, **{"batch_first": True} | options)
        net = Net(lambda m, *x: forward(m.attention, *x), attention=attention)
        return net, tuple(randn(B, *shape) for shape in inputs)

    case(f"attention-{name}", build)


def _padding(x):
    """A mask of padded keys: never the first."""
    return (x[..., 0] > 0.5) & (torch.arange(x.shape[1]) > 0)


_attend("self")
_attend("self-no-bias", bias=False)
_attend("self-positions-like-samples", inputs=((B, 6),))
_attend("self-sequence-first", lambda f, x: _first(f, x, x, x), batch_first=False)
_attend(
    "self-sequence-first-like-samples",
    lambda f, x: _first(f, x, x, x),
    ((B, 6),),
    batch_first=False,
)
_attend("self-returning-weights", lambda f, x: _both(*f(x, x, x)))
_attend("self-weights-per-head", lambda f, x: _both(*f(x, x, x, average_attn_weights=False)))
_attend("self-no-weights", lambda f, x: f(x, x, x, need_weights=False)[0])
_attend("cross", lambda f, x, y: f(x, y, y)[0], ((7, 6), (3, 6)))
_attend("three-inputs", lambda f, x, y: f(x, y, y.sin())[0], ((7, 6), (3, 6)))
_attend("query-is-key", lambda f, x: f(x, x, x.sin())[0])
_attend(
    "cross-sequence-first", lambda f, x, y: _first(f, x, y, y), ((7, 6), (3, 6)), batch_first=False
)
_attend("own-widths", lambda f, x, y, z: f(x, y, z)[0], ((7, 6), (3, 5), (3, 2)), kdim=5, vdim=2)
_attend("bias-kv", add_bias_kv=True)
_attend(
    "bias-kv-sequence-first", lambda f, x: _first(f, x, x, x), add_bias_kv=True, batch_first=False
)
_attend("zero-attention", add_zero_attn=True)
_attend(
    "bias-kv-zero-and-masks",
    lambda f, x: f(x, x, x, key_padding_mask=_padding(x), attn_mask=_CAUSAL(7))[0],
    add_bias_kv=True,
    add_zero_attn=True,
)
_attend("padding-bool", lambda f, x: f(x, x, x, key_padding_mask=_padding(x))[0])
_attend("padding-float", lambda f, x: f(x, x, x, key_padding_mask=_padding(x).to(x.dtype) * -2)[0])
_attend("mask-bool", lambda f, x: f(x, x, x, attn_mask=torch.ones(7, 7).triu(1).bool())[0])
_attend("mask-float", lambda f, x: f(x, x, x, attn_mask=_CAUSAL(7), need_weights=False)[0])
_attend(
    "mask-causal-hint",
    lambda f, x: f(x, x, x, attn_mask=_CAUSAL(7), is_causal=True, need_weights=False)[0],
)
_attend(
    "mask-per-head",
    lambda f, x: f(x, x, x, attn_mask=x[:, :, :1].repeat(1, 1, 7).repeat_interleave(2, 0))[0],
    ((7, 6),),
)
_attend("used-twice", lambda f, x: f(*[f(x, x, x)[0]] * 3)[0])


def _first(attention, *inputs):
    return attention(*(x.transpose(0, 1) for x in inputs))[0].transpose(0, 1)


def _both(output, weights):
    return torch.cat([output.flatten(1), weights.flatten(1)], 1)


def _transformed(name, build, forward, *shapes):
    case(
        name,
        lambda: (
            Net(lambda m, *x: forward(m.block, *x), block=build()),
            tuple(randn(B, *s) for s in shapes),
        ),
    )


_OPTIONS = {"d_model": 6, "nhead": 2, "dim_feedforward": 5, "dropout": 0.0, "batch_first": True}
_transformed(
    "encoder-layer", lambda: nn.TransformerEncoderLayer(**_OPTIONS), lambda f, x: f(x), (7, 6)
)
_transformed(
    "encoder-layer-norm-first",
    lambda: nn.TransformerEncoderLayer(**_OPTIONS, norm_first=True, activation="gelu"),
    lambda f, x: f(x, src_key_padding_mask=_padding(x)),
    (B, 6),
)
_transformed(
    "encoder",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**_OPTIONS), 2, nn.LayerNorm(6)),
    lambda f, x: f(x, mask=_CAUSAL(7), is_causal=True),
    (7, 6),
)
_transformed(
    "decoder-layer",
    lambda: nn.TransformerDecoderLayer(**_OPTIONS),
    lambda f, x, y: f(x, y),
    (7, 6),
    (3, 6),
)
_transformed(
    "decoder-layer-causal",
    lambda: nn.TransformerDecoderLayer(**_OPTIONS),
    lambda f, x, y: f(
        x, y, tgt_mask=_CAUSAL(B), tgt_is_causal=True, memory_key_padding_mask=_padding(y)
    ),
    (B, 6),
    (3, 6),
)
_transformed(
    "transformer",
    lambda: nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **_OPTIONS),
    lambda f, x, y: f(x, y, tgt_mask=_CAUSAL(3)),
    (7, 6),
    (3, 6),
)
_transformed(
    "transformer-sequence-first",
    lambda: nn.Transformer(
        num_encoder_layers=1, num_decoder_layers=1, **_OPTIONS | {"batch_first": False}
    ),
    lambda f, x, y: f(x.transpose(0, 1), y.transpose(0, 1)).transpose(0, 1),
    (B, 6),
    (B, 6),
)


def _biased(forward, **parts):
    return Net(forward, f=nn.Linear(6, 6), **parts), randn(B, 2, 7, 6)


case(
    "attention-trainable-bias-sdpa",
    lambda: _biased(
        lambda m, x: F.scaled_dot_product_attention(m.f(x), x, x, attn_mask=m.bias),
        bias=randn(2, 7, 7),
    ),
)
case(
    "attention-trainable-bias-added",
    lambda: _biased(lambda m, x: (m.f(x) @ x.mT + m.bias).softmax(-1) @ x, bias=randn(1, 2, 7, 7)),
)
case(
    "attention-relative-position-bias",
    lambda: _biased(
        lambda m, x: F.scaled_dot_product_attention(
            m.f(x), x, x, m.table[_distances(7)].permute(2, 0, 1)[None]
        ),
        table=randn(13, 2),
    ),
)
case(
    "attention-relative-position-embedding",
    lambda: _biased(
        lambda m, x: (
            (m.f(x) @ x.mT + m.table(_distances(7)).permute(2, 0, 1)[None]).softmax(-1) @ x
        ),
        table=nn.Embedding(13, 2),
    ),
)
case(
    "attention-relative-keys",
    lambda: _biased(
        lambda m, x: torch.einsum("bhqd,qkd->bhqk", m.f(x), m.table(_distances(7))).softmax(-1) @ x,
        table=nn.Embedding(13, 6),
    ),
)
case(
    "attention-trainable-queries-sdpa",
    lambda: (
        Net(
            lambda m, x: F.scaled_dot_product_attention(m.q.expand(len(x), -1, -1), x, x),
            q=randn(1, 3, 6),
        ),
        randn(B, 7, 6),
    ),
)


def _distances(length):
    places = torch.arange(length)
    return places[:, None] - places + length - 1
