"""The networks of the papers: their numbers of parameters, their layers, their gradients."""

import pytest
import torch
from tests.contract.oracle import TOLERANCES, assert_same_grads, loop
from tests.nn.networks import NETWORKS, SAMPLES, losses
from torch import nn
from torch.nn import functional as F

import quietgrad
from quietgrad.nn import (
    WeightStandardization,
    gru_classifier,
    models,
    resnet9,
    resnet20,
    tanh_cnn_28,
    tanh_cnn_32,
)

every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def order_of(model: nn.Module, x: torch.Tensor) -> list[str]:
    """The layers without children, in the order in which they run."""
    ran: list[str] = []
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda m, *_: ran.append(type(m).__name__))
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and list(module.children()):
            module.register_forward_hook(lambda *_: ran.append("Conv2d"))
    model(x)
    return [name for name in ran if name not in {"WeightStandardization", "Identity"}]


@every_network
def test_parameters(network):
    assert trained(network.build()) == network.parameters


@every_network
def test_every_trained_parameter_gets_a_gradient(network):
    model, inputs, labels = network.made()
    logits = model(inputs)
    assert logits.shape == (SAMPLES, network.classes)
    F.cross_entropy(logits, labels).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


@every_network
def test_per_sample_gradients_are_those_of_batches_of_one(network):
    model, inputs, labels = network.made()
    truth = loop(model, lambda i: losses(model, (inputs[i], labels[i])), SAMPLES)
    found = quietgrad.per_sample_grads(model, lambda: losses(model, (inputs, labels)))
    assert_same_grads(found, truth, TOLERANCES[torch.float64])


@pytest.mark.parametrize("name", ["resnet20-enhanced", "resnet9-scale-norm", "gru-enhanced"])
def test_fit_for_private_training(name):
    model, inputs, labels = NETWORKS[name].made()
    quietgrad.check(model, (inputs, labels), losses).require_ok()


@pytest.mark.parametrize("build", [resnet20, resnet9, tanh_cnn_28, tanh_cnn_32])
def test_other_classes_and_channels(build):
    size = 28 if build is tanh_cnn_28 else 32
    assert build(classes=7, channels=2)(torch.randn(1, 2, size, size)).shape == (1, 7)
    with pytest.raises(ValueError, match="classes=0"):
        build(classes=0)
    with pytest.raises(ValueError, match="channels=0"):
        build(channels=0)


def test_layers_of_the_plain_resnet20():
    ran = order_of(resnet20(), torch.randn(1, 3, 32, 32))
    block = ["Conv2d", "GroupNorm", "ReLU", "Conv2d", "GroupNorm", "ReLU"]
    wider = [*block[:-1], "Shortcut", "ReLU"]
    stages = [*block * 3, *wider, *block * 2, *wider, *block * 2]
    head = ["AdaptiveAvgPool2d", "Flatten", "Linear"]
    assert ran == ["Conv2d", "GroupNorm", "ReLU", *stages, *head]


def test_layers_of_the_enhanced_resnet20():
    ran = order_of(resnet20(enhanced=True), torch.randn(1, 3, 32, 32))
    block = ["Conv2d", "ELU", "GroupNorm", "Conv2d", "GroupNorm", "ELU", "GroupNorm"]
    wider = [*block[:-2], "Shortcut", "ELU", "GroupNorm"]
    stages = [*block * 3, *wider, *block * 2, *wider, *block * 2]
    head = ["AdaptiveAvgPool2d", "Flatten", "Standardize", "Linear"]
    assert ran == ["Conv2d", "ELU", "GroupNorm", *stages, *head]


def test_the_enhanced_resnet20_standardizes_all_weights_and_normalizes_without_parameters():
    model = resnet20(enhanced=True)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert all(m.num_groups == 4 and not m.affine for m in norms)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 19
    for convolution in convolutions:
        trained_as = convolution.parametrizations.weight.original
        expected = WeightStandardization()(trained_as)
        assert torch.equal(convolution.weight, expected)
        assert convolution.bias is None


def test_the_shortcut_has_zeros_on_either_side():
    (shortcut, *_) = (m for m in resnet20().modules() if type(m).__name__ == "Shortcut")
    x = torch.randn(1, 16, 8, 8)
    found = shortcut(x)
    assert found.shape == (1, 32, 4, 4)
    assert torch.equal(found[:, 8:24], x[:, :, ::2, ::2])
    assert not found[:, :8].any()
    assert not found[:, 24:].any()


def test_scale_norm_is_after_the_addition():
    block = resnet9(scale_norm=True)[2].double()
    x = torch.randn(2, 128, 4, 4).double()
    torch.testing.assert_close(block(x), F.group_norm(block.branch(x) + x, 32))


def test_the_enhanced_gru_is_a_gru_with_standardized_projections(monkeypatch):
    torch.manual_seed(0)
    plain, own = nn.GRU(5, 4, batch_first=True).double(), models.StandardizedGRU(5, 4).double()
    own.from_input.load_state_dict({"weight": plain.weight_ih_l0, "bias": plain.bias_ih_l0})
    own.from_state.load_state_dict({"weight": plain.weight_hh_l0, "bias": plain.bias_hh_l0})
    x = torch.randn(3, 6, 5).double()
    assert not torch.allclose(own(x), plain(x)[0][:, -1])
    monkeypatch.setattr(models, "standardized", lambda projected: projected)
    torch.testing.assert_close(own(x), plain(x)[0][:, -1])


def test_word_vectors_are_copied_and_not_trained():
    vectors = torch.randn(20, 100)
    model = gru_classifier(vectors)
    assert not model.words.weight.requires_grad
    assert torch.equal(model.words.weight, vectors)
    assert model.words.weight.data_ptr() != vectors.data_ptr()


@pytest.mark.parametrize("vectors", [torch.randn(4), torch.ones(4, 3, dtype=torch.long)])
def test_word_vectors_that_are_none(vectors):
    with pytest.raises(ValueError, match="one row of floating-point numbers for each word"):
        gru_classifier(vectors)
