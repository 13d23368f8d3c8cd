"""What kind of layer a module is: linear, conv, norm, embedding, recurrent, attention or other."""

import re

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

_BY_CLASS: dict[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear, nn.Bilinear),
    "conv": (_ConvNd,),
    "norm": (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
}

# Libraries write their own layers (LlamaRMSNorm, T5LayerNorm, ViTEmbeddings): the name tells.
_BY_SUFFIX = {
    "linear": "linear",
    "conv": "conv",
    "norm": "norm",
    "embedding": "embedding",
    "embeddings": "embedding",
    "rnn": "recurrent",
    "lstm": "recurrent",
    "gru": "recurrent",
    "attention": "attention",
}

# A linear layer with a transposed weight, despite its name.
_TRANSPOSED_LINEAR = "transformers.pytorch_utils.Conv1D"


def kind_of(module: nn.Module) -> str:
    """The kind of a layer: by its class where torch defines it, else by the name of its class."""
    for kind, classes in _BY_CLASS.items():
        if isinstance(module, classes):
            return kind
    for cls in type(module).__mro__:
        if named := _kind_by_name(cls):
            return named
    return "other"


def _kind_by_name(cls: type) -> str | None:
    if f"{cls.__module__}.{cls.__qualname__}" == _TRANSPOSED_LINEAR:
        return "linear"
    name = re.sub(r"[123]d$", "", cls.__name__.lower())
    return next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), None)
