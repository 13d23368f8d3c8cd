"""Stock networks with BatchNorm, made fit for private training."""

from collections import OrderedDict

import pytest
import torch
import transformers as hf
from tests.nn.networks import losses
from torch import nn
from torch.nn.utils import parametrizations

import quietgrad
from quietgrad.errors import SampleMixingError
from quietgrad.nn import harden

LABELS = torch.arange(3)


class BasicBlock(nn.Module):
    """As torchvision writes it."""

    def __init__(self, width: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1:
            projection = nn.Conv2d(width, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


def stock() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)
    model = nn.Sequential(*stem, BasicBlock(12, 12), BasicBlock(12, 48, 2), *head)
    for norm in batch_norms(model):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return model


def batch_norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def images(size: int = 8) -> torch.Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_batch_norm_becomes_group_norm():
    model = stock()
    hardened = harden(model)
    assert len(batch_norms(model)) == 6
    assert not batch_norms(hardened.model)
    assert [str(change) for change in hardened.changes[-1:]] == [
        "4.downsample.1: BatchNorm2d(48 channels) -> GroupNorm(12 groups, 48 channels)"
    ]
    assert [c.path for c in hardened.changes] == "1 3.bn1 3.bn2 4.bn1 4.bn2 4.downsample.1".split()
    assert str(hardened).startswith("Sequential: 6 changed\n  1: BatchNorm2d(12 channels) -> ")


def test_everything_else_is_carried_over():
    model = stock()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = harden(model).model.state_dict()
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    kept = {name for name in before if name.rpartition(".")[2] not in statistics}
    assert set(after) == kept
    for name in kept:
        assert torch.equal(after[name], before[name])
        assert after[name].data_ptr() != model.state_dict()[name].data_ptr()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("order", [None, "activation-first"])
@pytest.mark.parametrize("activation", [None, nn.ELU])
def test_the_hardened_network_is_fit_for_private_training(order, activation):
    batch = (images(), LABELS)
    assert not quietgrad.check(stock(), batch, losses).ok
    hardened = harden(stock(), order=order, activation=activation)
    quietgrad.check(hardened.model, batch, losses).require_ok()


def test_a_network_of_transformers():
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
    )
    hardened = harden(hf.ResNetForImageClassification(config), activation=nn.ELU)
    assert not batch_norms(hardened.model)
    report = quietgrad.check(
        hardened.model, (images(32), LABELS), lambda m, b: losses(lambda x: m(x).logits, b)
    )
    report.require_ok()


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(128, 32), (64, 16), (48, 12), (30, 6), (33, 3), (37, 1), (16, 4), (7, 1), (1, 1), (320, 32)],
)
def test_groups_of_four_channels_or_more_and_up_to_32(channels, groups):
    assert harden(nn.BatchNorm2d(channels)).model.num_groups == groups
    assert harden(nn.BatchNorm3d(channels)).model.num_groups == groups


def test_vectors_are_normalized_as_a_whole():
    """A group of one channel of a vector is one number: it would become zero."""
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    hardened = harden(model).model
    assert hardened[1].num_groups == 1
    assert hardened[:2](torch.randn(3, 4)).std(1).min() > 0.5


def test_maps_of_one_pixel_keep_something():
    """A group of one channel would be one number here, and all outputs alike."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 28), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10)
    hardened = harden(nn.Sequential(*layers))
    assert "GroupNorm(4 groups, 16 channels)" in str(hardened)
    x = torch.randn(4, 1, 28, 28)
    assert hardened.model(x).std(0).min() > 0.01
    quietgrad.check(hardened.model, (x, torch.arange(4)), losses).require_ok()


def test_groups_as_asked():
    model = stock()
    assert {m.num_groups for m in harden(model, groups=4).model.modules() if is_norm(m)} == {4}
    with pytest.raises(ValueError, match=r"groups=8 .* the 12 channels of BatchNorm2d '1'"):
        harden(model, groups=8)


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.GroupNorm)


def test_options_of_the_norm_are_kept():
    model = nn.Sequential(nn.BatchNorm2d(4, eps=0.1, affine=False), nn.BatchNorm2d(4)).double()
    model[1].weight.requires_grad_(False)
    first, second = harden(model.eval()).model
    assert (first.eps, first.affine, first.weight, first.training) == (0.1, False, None, False)
    assert second.weight.dtype == torch.float64
    assert (second.weight.requires_grad, second.bias.requires_grad) == (False, True)


def test_what_is_shared_stays_shared():
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(norm, nn.Sequential(norm, nn.BatchNorm2d(4)), norm)
    model[1][1].weight = norm.weight
    hardened = harden(model)
    one, (two, other), three = hardened.model
    assert one is two
    assert two is three
    assert other.weight is one.weight
    assert len(hardened.changes) == 2


def test_an_unchanged_model_has_no_changes():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ELU(), nn.Tanh())
    hardened = harden(model, activation=nn.ELU)
    assert not hardened.changes
    assert str(hardened) == "Sequential: nothing changed"
    assert hardened.model is not model
    assert harden(nn.Linear(2, 2), order="activation-first").changes == ()


def test_activations_are_replaced_and_gates_are_not():
    model = nn.Sequential(nn.ReLU6(), nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.2), nn.PReLU())
    hardened = harden(model, activation=lambda: nn.ELU(0.5))
    kinds = [type(m) for m in hardened.model]
    assert kinds == [nn.ELU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.PReLU]
    assert [str(c) for c in hardened.changes] == [
        "0: ReLU6() -> ELU(alpha=0.5)",
        "3: LeakyReLU(negative_slope=0.2) -> ELU(alpha=0.5)",
    ]


def test_activations_that_are_no_modules_are_told_of():
    (change,) = harden(nn.Linear(2, 2), activation=nn.ELU).changes
    assert not change.made
    assert "none of the kind of ReLU is a module" in str(change)


def test_normalization_behind_the_activation():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    nn.init.normal_(model[1].weight)
    hardened = harden(model, order="activation-first")
    assert [type(m) for m in hardened.model] == [nn.Conv2d, nn.ReLU, nn.GroupNorm, nn.MaxPool2d]
    assert list(dict(hardened.model.named_children())) == ["0", "1", "2", "3"]
    assert torch.equal(hardened.model[2].weight, model[1].weight)
    x = torch.randn(2, 3, 8, 8)
    behind = hardened.model[2](torch.relu(model[0](x)))
    assert torch.equal(hardened.model(x), nn.functional.max_pool2d(behind, 2))
    assert str(hardened.changes[-1]) == (
        "the model itself: GroupNorm(1 group, 4 channels), ReLU() -> "
        "ReLU(), GroupNorm(1 group, 4 channels)"
    )


def test_layers_with_names_keep_them():
    layers = OrderedDict(conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4), relu=nn.ReLU())
    hardened = harden(nn.Sequential(layers), order="activation-first").model
    assert list(dict(hardened.named_children())) == ["conv", "relu", "norm"]
    assert isinstance(hardened.norm, nn.GroupNorm)


def test_what_cannot_be_moved_is_told_of():
    hardened = harden(stock(), order="activation-first")
    left = {change.path: change.left_because for change in hardened.changes if not change.made}
    assert list(left) == ["3.bn1", "3.bn2", "4.bn1", "4.bn2", "4.downsample.1"]
    assert "by the code that calls it" in left["3.bn1"]
    assert "does not stand between" in left["4.downsample.1"]
    assert "7 changed, 5 left unchanged" in str(hardened)


def test_a_sequential_with_code_of_its_own_is_not_reordered():
    class Own(nn.Sequential):
        def forward(self, x):
            return self[2](self[1](self[0](x)))

    model = Own(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU())
    (change,) = harden(model, order="activation-first").changes
    assert not change.made


def test_what_is_behind_an_activation_already_stays():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.GroupNorm(2, 4))
    assert not harden(model, order="activation-first").changes


class NormAct(nn.BatchNorm2d):
    """Normalization, dropout and activation in one class, as timm writes it."""

    def __init__(self, channels: int, act: nn.Module, drop: nn.Module | None = None) -> None:
        super().__init__(channels)
        self.drop = nn.Identity() if drop is None else drop
        self.act = act

    def forward(self, x):
        assert x.ndim == 4
        return self.act(self.drop(super().forward(x)))


class NormBehind(NormAct):
    """The activation comes before the dropout, though it is registered later."""

    def forward(self, x):
        return self.drop(self.act(nn.BatchNorm2d.forward(self, x)))


class OwnNorm(nn.BatchNorm2d):
    """Nothing but a name."""


@pytest.mark.parametrize(
    ("norm", "children"),
    [
        (OwnNorm(8), []),
        (NormAct(8, nn.SiLU()), ["drop", "act"]),
        (NormAct(8, nn.ReLU(inplace=True), nn.Dropout(0.5)), ["drop", "act"]),
        (NormBehind(8, nn.Sigmoid(), nn.Dropout(0.5)), ["act", "drop"]),
    ],
    ids=["name-only", "activation", "dropout", "other-order"],
)
def test_what_a_subclass_adds_is_kept(norm, children):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Flatten(), nn.Linear(8 * 16, 3))
    nn.init.normal_(norm.weight)
    before = list(model.state_dict())
    hardened = harden(model)
    new = hardened.model[1]
    assert isinstance(new, nn.GroupNorm)
    assert list(new._modules) == children
    kept = [name for name in before if "running" not in name and "batches" not in name]
    assert list(hardened.model.state_dict()) == kept
    assert hardened.changes[0].made
    x = torch.randn(4, 8, 4, 4)
    expected = nn.functional.group_norm(x, new.num_groups, norm.weight, norm.bias, norm.eps)
    new.eval()
    for name in children:
        expected = getattr(new, name)(expected)
    torch.testing.assert_close(new(x), expected)
    assert list(model.state_dict()) == before
    images = torch.randn(4, 3, 6, 6)
    quietgrad.per_sample_grads(
        hardened.model.eval(), lambda: hardened.model(images).square().sum(1)
    )


def test_an_activation_inside_of_a_normalization_can_be_replaced_but_not_moved():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), NormAct(8, nn.ReLU()))
    hardened = harden(model, activation=nn.ELU, order="activation-first")
    assert isinstance(hardened.model[1].act, nn.ELU)
    assert "what follows it is part of the same module" in str(hardened)


class FunctionAfter(nn.BatchNorm2d):
    def forward(self, x):
        return torch.relu(super().forward(x))


class FunctionInTraining(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) * (2.0 if self.training else 1.0)


class WithScale(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return super().forward(x) * self.scale


def with_a_forward() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    norm.forward = lambda x: x
    return norm


def hooked() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda *_: None)
    return norm


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (nn.SyncBatchNorm(4), "SyncBatchNorm '1' normalizes over several processes"),
        (nn.LazyBatchNorm2d(), "LazyBatchNorm2d '1' does not know its channels yet"),
        (FunctionAfter(4), "FunctionAfter '1' computes something else than BatchNorm"),
        (FunctionInTraining(4), "FunctionInTraining '1' computes something else"),
        (WithScale(4), "WithScale '1' has 'scale' besides"),
        (parametrizations.weight_norm(nn.BatchNorm2d(4), dim=None), "'parametrizations'"),
        (hooked(), "BatchNorm2d '1' has hooks"),
        (with_a_forward(), "BatchNorm2d '1' has a forward of its own"),
        (nn.InstanceNorm2d(4, track_running_stats=True), "InstanceNorm2d '1' keeps running"),
    ],
    ids=[
        "sync",
        "lazy",
        "function",
        "in-training",
        "scale",
        "parametrized",
        "hooked",
        "forward",
        "instance",
    ],
)
def test_refusals_name_the_layer(norm, message):
    with pytest.raises(SampleMixingError, match=message):
        harden(nn.Sequential(nn.Conv2d(3, 4, 3), norm))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"normalization": "batch"}, ValueError),
        ({"order": "norm-first"}, ValueError),
        ({"groups": 0}, ValueError),
        ({"activation": nn.ELU()}, TypeError),
        ({"activation": lambda: None}, TypeError),
        ({"activation": "elu"}, TypeError),
    ],
    ids=["normalization", "order", "groups", "instance", "no-module", "name"],
)
def test_wrong_arguments(options, error):
    with pytest.raises(error, match=next(iter(options))):
        harden(stock(), **options)


def test_no_model():
    with pytest.raises(TypeError, match="got dict"):
        harden({})
