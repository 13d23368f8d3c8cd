"""Small models of many shapes, by name; a new entry inherits the tests over all of them."""

from collections.abc import Callable
from functools import cache

import transformers
from torch import nn
from torch.nn.utils import parametrizations

TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(2, width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(2, width)


class ResNet(nn.Module):
    """Stages as attributes: stem, two blocks each, a down-sampling layer between, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.stage1 = nn.Sequential(Residual(4), Residual(4))
        self.down = nn.Conv2d(4, 8, 1)
        self.stage2 = nn.Sequential(Residual(8), Residual(8))
        self.fc = nn.Linear(8, 10)


class RawBlock(nn.Module):
    """A block that owns bare parameters instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Linear(2, 2).weight for _ in range(2)])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=8, n_layer=3, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**TINY, vocab_size=11, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def roberta() -> nn.Module:
    config = transformers.RobertaConfig(**TINY, vocab_size=11, max_position_embeddings=10)
    return transformers.RobertaForSequenceClassification(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(**TINY, image_size=8, patch_size=4)
    return transformers.ViTForImageClassification(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=11
    )
    return transformers.T5ForConditionalGeneration(config)


def transformer_encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)


def recurrent() -> nn.Module:
    layers = {"embed": nn.Embedding(5, 4), "lstm": nn.LSTM(4, 4), "fc": nn.Linear(4, 2)}
    return nn.ModuleDict(layers)


def weight_normed() -> nn.Module:
    """Linear layers whose weight lives in `parametrizations.weight.original0` and `original1`."""
    model = mlp()
    for place in (0, 2):
        parametrizations.weight_norm(model[place])
    return model


def partly_frozen() -> nn.Module:
    """GPT2 with the embeddings and the first block frozen."""
    model = gpt2()
    for frozen in (model.transformer.wte, model.transformer.wpe, model.transformer.h[0]):
        frozen.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "single-linear": lambda: nn.Linear(3, 2),
    "resnet": ResNet,
    "raw-blocks": lambda: nn.ModuleList([RawBlock(), RawBlock()]),
    "gpt2": gpt2,
    "llama": llama,
    "roberta": roberta,
    "vit": vit,
    "t5": t5,
    "transformer-encoder": transformer_encoder,
    "recurrent": recurrent,
    "weight-norm": weight_normed,
    "partly-frozen": partly_frozen,
}

WITHOUT_BLOCKS = {"mlp", "single-linear", "recurrent", "weight-norm"}


@cache
def built(name: str) -> nn.Module:
    """One shared model, for tests that only read it."""
    return MODELS[name]()
