"""Names, registration, and the validation that every grouping passes."""

from dataclasses import dataclass

import pytest
from torch import nn

from quietgrad.clipping import AutoS, Clipping
from quietgrad.grouping import AllLayer, Group, Grouping, names, register, resolve, sensitivity

from .zoo import MODELS

pytestmark = pytest.mark.usefixtures("scratch_registry")

MODEL = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@dataclass(frozen=True)
class Fixed(Grouping):
    """A user's grouping with whatever partition a test gives it."""

    parts: dict[str, list[str]]

    def partition(self, model: nn.Module) -> dict[str, list[str]]:
        return self.parts


@dataclass(frozen=True, kw_only=True)
class Reversed(Grouping):
    """A user's grouping without options."""

    def partition(self, model: nn.Module) -> dict[str, list[str]]:
        return {"everything": [name for name, _ in model.named_parameters()][::-1]}


@dataclass(frozen=True, kw_only=True)
class Stubborn(Reversed):
    """Ignores the radius it is asked for."""

    def groups(self, model: nn.Module) -> tuple[Group, ...]:
        return (Group("all", tuple(name for name, _ in model.named_parameters()), 5.0),)


def test_a_users_grouping():
    groups = resolve(Fixed({"a": ["0.weight", "1.bias"], "b": ["0.bias", "1.weight"]}), MODEL)
    assert [group.name for group in groups] == ["a", "b"]


BROKEN = {
    "missing": ({"a": ["0.weight", "1.weight"]}, r"in no group: \['0.bias', '1.bias'\]"),
    "twice": (
        {"a": ["0.weight", "0.bias", "1.weight"], "b": ["1.bias", "0.bias"]},
        r"in several groups: \['0.bias'\]",
    ),
    "twice in one group": (
        {"a": ["0.weight", "0.bias", "1.weight", "1.bias", "1.bias"]},
        r"in several groups: \['1.bias'\]",
    ),
    "unknown": (
        {"a": ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"]},
        r"not in the model: \['2.bias'\]",
    ),
    "empty group": (
        {"a": ["0.weight", "0.bias", "1.weight", "1.bias"], "b": []},
        "'b' has no parameters",
    ),
}


@pytest.mark.parametrize(("parts", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_groups_that_do_not_fit_are_refused(parts, reason):
    with pytest.raises(ValueError, match=reason):
        resolve(Fixed(parts), MODEL)


def test_frozen_and_tied_names_are_refused():
    model = MODELS["partly-frozen"]()
    every_name = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    with pytest.raises(ValueError, match=r"frozen, or tied.*wpe.*lm_head"):
        resolve(Fixed({"all": every_name}), model)


def test_group_names_are_unique():
    @dataclass(frozen=True, kw_only=True)
    class SameName(Reversed):
        def groups(self, model: nn.Module) -> tuple[Group, ...]:
            return tuple(Group("g", (name,), 1.0) for name, _ in model.named_parameters())

    with pytest.raises(ValueError, match=r"group names used twice: \['g'\]"):
        resolve(SameName(), MODEL)


def test_only_group_objects_are_groups():
    @dataclass(frozen=True, kw_only=True)
    class Pairs(Reversed):
        def groups(self, model: nn.Module) -> tuple[Group, ...]:
            return (("all", 1.0),)

    with pytest.raises(TypeError, match="Group objects, got tuple"):
        resolve(Pairs(), MODEL)


def test_registered_groupings_have_a_name():
    register("reversed", Reversed)
    assert "reversed" in names()
    assert resolve("reversed", MODEL, radius=0.5)[0].radius == 0.5


def test_a_factory_may_be_a_function():
    register("pair", lambda radius: Fixed({"a": ["0.weight"]}, radius=radius))
    with pytest.raises(ValueError, match="in no group"):
        resolve("pair", MODEL)


def test_a_registered_grouping_keeps_to_the_radius_asked_for():
    register("stubborn", Stubborn)
    with pytest.raises(ValueError, match="asked for radius 1 but has 5"):
        resolve("stubborn", MODEL)
    assert resolve("stubborn", MODEL, radius=5.0)[0].radius == 5.0


@pytest.mark.parametrize("name", [*names(), "uniform"])
def test_existing_names_are_not_replaced(name):
    with pytest.raises(ValueError, match="exists already"):
        register(name, Reversed)


@pytest.mark.parametrize("name", ["", "uniform:3", None])
def test_names_are_strings_without_colon(name):
    with pytest.raises(ValueError, match="without ':'"):
        register(name, Reversed)


def test_a_factory_is_called_with_a_radius_and_returns_a_grouping():
    with pytest.raises(TypeError, match="takes a factory"):
        register("mine", AllLayer())
    with pytest.raises(TypeError, match="must return a Grouping"):
        register("mine", lambda radius: [radius])
    with pytest.raises(TypeError):
        register("mine", lambda: AllLayer())
    assert "mine" not in names()


@pytest.mark.parametrize("name", ["layerwise", "Layer-Wise", "layer_wise"])
def test_an_unknown_name_suggests_the_nearest(name):
    with pytest.raises(ValueError, match=r"Did you mean 'layer-wise'\?.*all-layer.*uniform:4"):
        resolve(name, MODEL)


@pytest.mark.parametrize("name", ["uniform", "uniform:", "uniform:x", "uniform:-1", "nonsense"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="unknown grouping"):
        resolve(name, MODEL)


def test_uniform_by_name_needs_a_group():
    with pytest.raises(ValueError, match="at least one group"):
        resolve("uniform:0", MODEL)


@pytest.mark.parametrize("wrong", [AllLayer, None, 1.0, ("all-layer",)])
def test_resolve_refuses_other_types(wrong):
    with pytest.raises(TypeError, match="name or a Grouping instance"):
        resolve(wrong, MODEL)


def test_the_radius_is_given_once():
    with pytest.raises(ValueError, match="given twice"):
        resolve(AllLayer(radius=2.0), MODEL, radius=2.0)


def test_sensitivity_refuses_an_unverified_clipping():
    @dataclass(frozen=True)
    class Unclipped(Clipping):
        def weights(self, norms, radius):
            return norms * 0 + 1

    groups = resolve("all-layer", MODEL)
    assert sensitivity(groups, AutoS()) == 1.0
    with pytest.raises(ValueError, match="exceeds the bound"):
        sensitivity(groups, Unclipped())
