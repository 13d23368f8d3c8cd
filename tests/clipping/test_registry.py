"""Names, registration, and the functions that are refused."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from quietgrad import clipping as registry_module
from quietgrad.clipping import AutoS, Clipping, names, register, resolve

pytestmark = pytest.mark.usefixtures("scratch_registry")


def soft(norms: Tensor, radius: float) -> Tensor:
    return radius / (norms + 1.0)


def in_place(norms: Tensor, radius: float) -> Tensor:
    return radius / norms.add_(1.0)


def random(norms: Tensor, radius: float) -> Tensor:
    return torch.rand_like(norms) * radius / (norms + 1.0)


def cumulative(norms: Tensor, radius: float) -> Tensor:
    return radius / (norms + norms.flatten().cumsum(0).reshape(norms.shape) + 1.0)


REFUSED = {
    "no bound": (lambda n, R: torch.ones_like(n), "exceeds the bound"),
    "radius ignored": (lambda n, R: 1 / (n + 0.01), "radius 0.001, .* exceeds the bound"),
    "breaks just above the radius": (lambda n, R: (n < 1.02 * R).to(n.dtype), "by a factor 1.0"),
    "negative": (lambda n, R: -R / (n + 1), "weight is -0.001; it must not be negative"),
    "negative at large norms": (lambda n, R: R * (1 - n).clamp(min=-1) / (n + 1) ** 2, "negative"),
    "infinite at zero": (lambda n, R: R / n, "at norm 0 the weight is inf"),
    "nan at zero": (lambda n, R: R * n / n / (n + 1), "at norm 0 the weight is nan"),
    "nan at huge norms": (lambda n, R: R * n / (n * n + 1), "must be finite"),
    "largest of the batch": (lambda n, R: R / (n.max() + 1) + 0 * n, "other samples|raises"),
    "mean of the batch": (lambda n, R: R / (n + n.mean() + 1), "depends on the other samples"),
    "number of samples": (lambda n, R: R / (n + 1) / max(1, n.numel()), "other samples"),
    "neighbours": (cumulative, "depends on the other samples"),
    "random": (random, "two calls"),
    "in place": (in_place, "in place"),
    "wrong dtype": (lambda n, R: (R / (n + 1)).half(), "float16"),
    "wrong shape": (lambda n, R: (R / (n + 1)).sum(), "shape"),
    "not a tensor": (lambda n, R: 0.0, "returns float"),
    "raises": (lambda n, R: n.nonsense, "raises"),
}


@pytest.mark.parametrize(("function", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_function_that_breaks_the_contract_is_refused(function, reason):
    with pytest.raises(ValueError, match=reason):
        register("mine", function)
    assert "mine" not in names()


def test_a_refusal_names_norm_radius_and_excess():
    with pytest.raises(
        ValueError, match=r"^'mine' is not .* radius 0\.001, float32: at .* a factor"
    ):
        register("mine", lambda norms, radius: torch.ones_like(norms))


GOOD = {
    "soft": soft,
    "tanh": lambda n, R: torch.tanh(R / n.clamp(min=R)),
    "exponential": lambda n, R: R / (n + (-n).exp()),
    "zero": lambda n, R: torch.zeros_like(n),
}


@pytest.mark.parametrize("function", GOOD.values(), ids=GOOD.keys())
def test_a_good_function_is_registered(function):
    register("mine", function)
    norms = torch.tensor([0.0, 0.5, 3.0])
    assert "mine" in names()
    assert resolve("mine").weights(norms, 2.0).equal(function(norms, 2.0))
    assert resolve("mine").bound(2.0) == 2.0


def test_an_instance_is_registered():
    register("auto-s-large", AutoS(gamma=1.0))
    assert resolve("auto-s-large") == AutoS(gamma=1.0)


@pytest.mark.parametrize("name", names())
def test_existing_names_are_not_replaced(name):
    with pytest.raises(ValueError, match="exists already"):
        register(name, soft)


@pytest.mark.parametrize("wrong", [AutoS, "auto-s", 3, None])
def test_only_functions_and_instances_are_registered(wrong):
    with pytest.raises(TypeError, match="register takes"):
        register("mine", wrong)


@pytest.mark.parametrize("name", ["", None, 3])
def test_names_are_strings(name):
    with pytest.raises(TypeError, match="non-empty string"):
        register(name, soft)


def test_an_unknown_name_suggests_the_nearest_and_lists_all():
    with pytest.raises(ValueError, match=r"'AutoS'.*Did you mean 'auto-s'\?.*abadi.*psac"):
        resolve("AutoS")


@pytest.mark.parametrize("wrong", [AutoS, soft, 1.0, None])
def test_resolve_refuses_other_types(wrong):
    with pytest.raises(TypeError, match="name or a Clipping instance"):
        resolve(wrong)


@dataclass(frozen=True)
class Doubled(Clipping):
    """Twice the radius, honest or not about it."""

    claimed: float

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        return 2 * radius / (norms + 1)

    def bound(self, radius: float) -> float:
        return self.claimed * radius


def test_a_foreign_instance_is_verified_against_its_own_bound():
    assert resolve(Doubled(claimed=2.0)) == Doubled(claimed=2.0)
    with pytest.raises(ValueError, match="by a factor 2"):
        resolve(Doubled(claimed=1.0))


@pytest.mark.parametrize("claimed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bound_must_be_positive_and_finite(claimed):
    with pytest.raises(ValueError, match="positive and finite"):
        resolve(Doubled(claimed=claimed))


def test_a_subclass_of_a_known_function_is_verified_too():
    @dataclass(frozen=True)
    class Louder(AutoS):
        def weights(self, norms: Tensor, radius: float) -> Tensor:
            return 10 * super().weights(norms, radius)

    with pytest.raises(ValueError, match="exceeds the bound"):
        resolve(Louder())


def test_an_instance_is_verified_once(monkeypatch):
    seen = []
    monkeypatch.setattr(registry_module, "verify", seen.append)
    first, equal, other = AutoS(gamma=0.123), AutoS(gamma=0.123), AutoS(gamma=0.321)
    for clipping in (first, first, equal, other):
        resolve(clipping)
    assert seen == [first, other]


def test_verification_does_not_depend_on_the_default_device():
    with torch.device("meta"):
        resolve(AutoS(gamma=0.456))


def test_what_could_change_after_verification_is_refused():
    @dataclass
    class Mutable(Clipping):
        def weights(self, norms: Tensor, radius: float) -> Tensor:
            return radius / (norms + 1)

    class Undecorated(AutoS):
        pass

    @dataclass(frozen=True)
    class Unhashable(Clipping):
        scales: list[float] = field(default_factory=list)

        def weights(self, norms: Tensor, radius: float) -> Tensor:
            return radius / (norms + 1)

    for clipping in (Mutable(), Undecorated()):
        with pytest.raises(TypeError, match="frozen dataclass"):
            resolve(clipping)
    with pytest.raises(TypeError, match="hashable"):
        resolve(Unhashable())
