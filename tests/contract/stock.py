"""Stock models, tiny and unmodified, in training mode: transformers, peft and plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn, randint, randn

B, T, VOCABULARY = 3, 6, 23
"""As many positions as fit twice into the batch: sizes alone do not tell them apart."""

Losses = Callable[[nn.Module, dict[str, Tensor]], Tensor]
Stock = tuple[nn.Module, dict[str, Tensor], Losses]

_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_MEDIUM = {**_SMALL, "intermediate_size": 24}
_BERT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def next_token(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Language modelling of the (decoder's) input ids."""
    ids = batch["decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"]
    logits = model(**batch).logits[:, :-1]
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(1)


def first_class(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Classification, with the first class as everybody's label."""
    logits = model(**batch).logits
    return F.cross_entropy(
        logits, logits.new_zeros(len(logits), dtype=torch.long), reduction="none"
    )


def last_state(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Something of every hidden state."""
    return model(**batch).last_hidden_state.flatten(1).sin().sum(1)


def tokens(padded: bool = True) -> dict[str, Tensor]:
    ids, mask = randint(3, VOCABULARY, (B, T)), torch.ones(B, T, dtype=torch.long)
    mask[0, T - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask} if padded else {"input_ids": ids}


def images() -> dict[str, Tensor]:
    return {"pixel_values": randn(B, 3, 16, 16)}


def gpt2(**options: Any) -> Stock:
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **dropout, **options)), tokens(), next_token


def llama(**options: Any) -> Stock:
    config = hf.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=1, **_MEDIUM, **options)
    return hf.LlamaForCausalLM(config), tokens(), next_token


def opt(**options: Any) -> Stock:
    sizes = {"ffn_dim": 24, "max_position_embeddings": 16, "word_embed_proj_dim": 12}
    config = hf.OPTConfig(vocab_size=VOCABULARY, dropout=0.0, **_SMALL, **sizes, **options)
    return hf.OPTForCausalLM(config), tokens(), next_token


def t5(**options: Any) -> Stock:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = hf.T5Config(
        vocab_size=VOCABULARY, dropout_rate=0.0, decoder_start_token_id=0, **sizes, **options
    )
    batch = tokens() | {"decoder_input_ids": randint(3, VOCABULARY, (B, T))}
    return hf.T5ForConditionalGeneration(config), batch, next_token


def roberta(**options: Any) -> Stock:
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 20}
    config = hf.RobertaConfig(**sizes, **_MEDIUM, **_BERT_DROPOUT, **options)
    return hf.RobertaForSequenceClassification(config), tokens(), first_class


def distilbert(**options: Any) -> Stock:
    sizes = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "vocab_size": VOCABULARY}
    dropout = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = hf.DistilBertConfig(max_position_embeddings=20, **sizes, **dropout, **options)
    return hf.DistilBertForSequenceClassification(config), tokens(), first_class


def deberta_v2(**options: Any) -> Stock:
    """Its relative positions are repeated once per sample, heads and all."""
    positions = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 20, "pooler_dropout": 0.0}
    config = hf.DebertaV2Config(**sizes, **positions, **_MEDIUM, **_BERT_DROPOUT, **options)
    return hf.DebertaV2ForSequenceClassification(config), tokens(), first_class


def vit(**options: Any) -> Stock:
    config = hf.ViTConfig(image_size=16, patch_size=8, **_MEDIUM, **_BERT_DROPOUT, **options)
    return hf.ViTForImageClassification(config), images(), first_class


def beit(**options: Any) -> Stock:
    positions = {"use_relative_position_bias": True, "use_absolute_position_embeddings": True}
    sizes = {"image_size": 16, "patch_size": 8, "drop_path_rate": 0.0}
    config = hf.BeitConfig(**sizes, **positions, **_MEDIUM, **_BERT_DROPOUT, **options)
    return hf.BeitForImageClassification(config), images(), first_class


def beit_shared_bias(**options: Any) -> Stock:
    return beit(use_shared_relative_position_bias=True, **options)


def convnext() -> Stock:
    config = hf.ConvNextConfig(
        hidden_sizes=[8, 12], depths=[1, 2], num_stages=2, drop_path_rate=0.0
    )
    return hf.ConvNextForImageClassification(config), images(), first_class


def whisper(**options: Any) -> Stock:
    layers = {
        f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in _WHISPER.items()
    }
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        max_source_positions=8,
        max_target_positions=16,
        num_mel_bins=5,
        dropout=0.0,
        **layers,
        **ends,
        **options,
    )
    batch = {"input_features": randn(B, 5, 16), "decoder_input_ids": randint(3, 23, (B, T))}
    return hf.WhisperForConditionalGeneration(config), batch, next_token


_WHISPER = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}


def wav2vec2(masked: bool = False, **options: Any) -> Stock:
    convolutions = {"conv_dim": (8, 8), "conv_stride": (2, 2), "conv_kernel": (3, 3)}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    names = ("hidden", "attention", "activation", "feat_proj")
    config = hf.Wav2Vec2Config(
        num_feat_extract_layers=2,
        layerdrop=0.0,
        mask_time_prob=0.5 if masked else 0.0,
        **{f"{name}_dropout": 0.0 for name in names},
        **convolutions,
        **positions,
        **_MEDIUM,
        **options,
    )
    batch = {"input_values": randn(B, 40)}
    if masked:  # drawn once: the model would draw another one in every forward
        batch["mask_time_indices"] = torch.rand(B, 9) > 0.6
    return hf.Wav2Vec2Model(config), batch, last_state


def masked_wav2vec2(**options: Any) -> Stock:
    return wav2vec2(masked=True, **options)


def checkpointed(make: Callable[..., Stock], reentrant: bool) -> Stock:
    model, batch, losses = make()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model, batch, losses


def lora(make: Callable[..., Stock], fresh: bool = False, **options: Any) -> Stock:
    """Low-rank adapters; fresh ones are half zero, which leaves the other half no gradients."""
    model, batch, losses = make()
    adapted = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.0, **options))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name and not fresh:
            nn.init.normal_(parameter)
    return adapted, batch, losses


class Block(nn.Module):
    """Two convolutions and a shortcut, as in torchvision's ResNet."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, out)
        self.shortcut = None
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride), nn.GroupNorm(2, out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += shortcut
        return self.relu(out)


def classified(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Classification by a model that returns logits."""
    logits = model(*batch.values())
    return F.cross_entropy(logits, logits.new_ones(len(logits), dtype=torch.long), reduction="none")


def resnet() -> Stock:
    stem = [nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)]
    blocks = [Block(4, 4, 1), Block(4, 6, 2), Block(6, 6, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)]
    return nn.Sequential(*stem, nn.MaxPool2d(2), *blocks, *head), images(), classified


class Recurrent(nn.Module):
    """Embedding, recurrent layers, and a head on the last hidden state."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 5, padding_idx=0)
        self.recurrent = layer(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        outputs, _ = self.recurrent(self.embed(ids))
        return self.head(outputs[:, -1])


class Encoder(nn.Module):
    """Tokens and positions, encoder layers, and a head on the mean."""

    def __init__(self, nested: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, 6), nn.Embedding(T, 6)
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        hidden = self.layers(hidden, src_key_padding_mask=mask == 0)
        return self.head(hidden.mean(1))


_TWICE = (gpt2, llama, opt, roberta, distilbert, vit, beit, beit_shared_bias, whisper)
_TWICE += (wav2vec2, masked_wav2vec2, t5)

STOCK: dict[str, Callable[[], Stock]] = {
    f"{make.__name__}-{kind}": lambda make=make, kind=kind: make(attn_implementation=kind)
    for make in _TWICE
    for kind in ("eager", "sdpa")
}
STOCK |= {
    f"{make.__name__}-checkpointed-{'reentrant' if reentrant else 'plain'}": (
        lambda make=make, reentrant=reentrant: checkpointed(make, reentrant)
    )
    for make in (gpt2, llama)
    for reentrant in (True, False)
}
STOCK |= {
    "convnext": convnext,
    "deberta-v2": deberta_v2,
    "deberta-v2-shared-keys": lambda: deberta_v2(share_att_key=True),
    "lora-roberta": lambda: lora(roberta, task_type="SEQ_CLS", target_modules=["query", "value"]),
    "lora-llama-fresh": lambda: lora(llama, fresh=True, target_modules=["q_proj", "v_proj"]),
    "lora-gpt2": lambda: lora(gpt2, target_modules=["c_attn"], fan_in_fan_out=True),
    "lora-llama-dora": lambda: lora(llama, target_modules=["q_proj", "down_proj"], use_dora=True),
    "resnet": resnet,
    "lstm": lambda: (Recurrent(nn.LSTM), tokens(padded=False), classified),
    "gru": lambda: (Recurrent(nn.GRU), tokens(padded=False), classified),
    "encoder": lambda: (Encoder(), tokens(), classified),
}
