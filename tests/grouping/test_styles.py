"""The partitions of single styles, written out."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from quietgrad.grouping import resolve
from quietgrad.grouping.base import kind_of

from .zoo import MODELS, Residual


def partition(spec, model):
    return {group.name: set(group.parameters) for group in resolve(spec, model)}


def test_all_layer_is_one_group():
    assert list(partition("all-layer", MODELS["mlp"]())) == ["all"]


def test_layer_wise_keeps_weight_and_bias_together():
    assert partition("layer-wise", MODELS["mlp"]()) == {
        "0": {"0.weight", "0.bias"},
        "2": {"2.weight", "2.bias"},
        "4": {"4.weight", "4.bias"},
    }


def test_layer_wise_names_the_model_itself():
    assert partition("layer-wise", nn.Linear(2, 2)) == {"(model)": {"weight", "bias"}}


def test_layer_wise_counts_a_parametrized_weight_to_its_layer():
    assert partition("layer-wise", MODELS["weight-norm"]())["0"] == {
        "0.bias",
        "0.parametrizations.weight.original0",
        "0.parametrizations.weight.original1",
    }


def test_layer_wise_counts_a_trainable_parametrization_to_its_layer():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return self.factor * weight

    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Scale())
    assert list(partition("layer-wise", layer)) == ["(model)"]
    assert list(partition("layer-wise", nn.Sequential(layer))) == ["0"]


def test_layer_wise_counts_parameter_lists_to_the_module_that_holds_them():
    assert partition("layer-wise", MODELS["raw-blocks"]()) == {
        "0": {"0.scales.0", "0.scales.1"},
        "1": {"1.scales.0", "1.scales.1"},
    }


def test_a_tied_weight_belongs_to_its_first_name():
    groups = partition("layer-wise", MODELS["gpt2"]())
    assert groups["transformer.wte"] == {"transformer.wte.weight"}
    assert "lm_head" not in groups


def test_param_wise_is_one_group_per_parameter():
    groups = partition("param-wise", MODELS["mlp"]())
    assert groups == {name: {name} for name, _ in MODELS["mlp"]().named_parameters()}


TYPES = {
    "mlp": {"linear"},
    "resnet": {"conv", "norm", "linear"},
    "raw-blocks": {"other"},
    "gpt2": {"embedding", "norm", "linear"},
    "llama": {"embedding", "norm", "linear"},
    "vit": {"embedding", "conv", "norm", "linear"},
    "t5": {"embedding", "norm", "linear"},
    "transformer-encoder": {"attention", "norm", "linear"},
    "recurrent": {"embedding", "recurrent", "linear"},
    "weight-norm": {"linear"},
}


@pytest.mark.parametrize(("model", "kinds"), TYPES.items())
def test_type_wise(model, kinds):
    assert set(partition("type-wise", MODELS[model]())) == kinds


class ToyConv1D(nn.Module):
    pass


class ChannelNorm2d(nn.Module):
    pass


class SlimAttention(nn.Module):
    pass


KINDS = [
    (nn.Bilinear(2, 2, 2), "linear"),
    (Conv1D(2, 2), "linear"),
    (ToyConv1D(), "conv"),
    (nn.ConvTranspose3d(2, 2, 1), "conv"),
    (nn.BatchNorm1d(2), "norm"),
    (nn.InstanceNorm2d(2), "norm"),
    (nn.RMSNorm(2), "norm"),
    (ChannelNorm2d(), "norm"),
    (nn.EmbeddingBag(2, 2), "embedding"),
    (nn.GRUCell(2, 2), "recurrent"),
    (nn.MultiheadAttention(2, 1), "attention"),
    (SlimAttention(), "attention"),
    (Residual(2), "other"),
]


@pytest.mark.parametrize(("module", "kind"), KINDS, ids=lambda value: type(value).__name__)
def test_kind_of(module, kind):
    assert kind_of(module) == kind
