"""ResNet-18: the stock names and sizes, frozen for good, normalized by public constants."""

import pytest
import torch
from torch import nn

from quietgrad.nn import imagenet_normalized, resnet18


def test_names_and_sizes_are_the_stock_ones():
    model = resnet18()
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    state = model.state_dict()
    assert len(state) == 122
    assert state["conv1.weight"].shape == (64, 3, 7, 7)
    assert state["layer1.0.conv1.weight"].shape == (64, 64, 3, 3)
    assert state["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)
    assert state["layer4.1.bn2.num_batches_tracked"].shape == ()
    assert state["fc.weight"].shape == (1000, 512)
    assert not any("downsample" in name for name in state if name.startswith("layer1"))


def test_the_head_is_on_the_features():
    model = resnet18(classes=7).eval()
    images = torch.randn(2, 3, 64, 64)
    features = model.features(images)
    assert features.shape == (2, 512)
    assert torch.equal(model(images), model.fc(features))


def test_strides_halve_five_times():
    model = resnet18().eval()
    sizes = []
    for name in "conv1 maxpool layer1 layer2 layer3 layer4".split():
        stage = model.get_submodule(name)
        stage.register_forward_hook(lambda m, i, out: sizes.append(out.shape[-1]))
    model(torch.zeros(1, 3, 224, 224))
    assert sizes == [112, 56, 56, 28, 14, 7]


def test_weights_are_loaded_strictly():
    state = resnet18().state_dict()
    model = resnet18(weights=state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    del state["bn1.bias"]
    with pytest.raises(RuntimeError, match=r"bn1\.bias"):
        resnet18(weights=state)


def test_a_frozen_one_stays_frozen():
    model = nn.Sequential(resnet18(frozen=True), nn.Linear(1000, 2)).train()
    backbone = model[0]
    assert not any(module.training for module in backbone.modules())
    assert not any(p.requires_grad for p in backbone.parameters())
    images = torch.randn(4, 3, 32, 32)
    before = backbone.bn1.running_mean.clone()
    alone = torch.cat([backbone.features(image[None]) for image in images])
    torch.testing.assert_close(backbone.features(images), alone)  # no sample sees another
    assert torch.equal(backbone.bn1.running_mean, before)
    assert resnet18().train().bn1.training


def test_normalized():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    found = imagenet_normalized(images)
    assert found[0, 0, 0, 0].item() == pytest.approx(-0.485 / 0.229)
    assert found[1, 2, 0, 0].item() == pytest.approx((1 - 0.406) / 0.225)
    for wrong in (images.float(), images[:, :1], images[0]):
        with pytest.raises(ValueError, match=r"expected torch.uint8 \[B, 3, H, W\]"):
            imagenet_normalized(wrong)


def test_classes_are_counted():
    with pytest.raises(ValueError, match="classes"):
        resnet18(classes=0)
