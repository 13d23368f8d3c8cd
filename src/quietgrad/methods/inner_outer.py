"""Inner-outer momentum: what is clipped is a sample's gradient at present and at past weights.

Algorithm 2 of "A Theory to Instruct Differentially-Private Learning via Clipping Bias Reduction"
(Xiao, Xiang, Wang and Devadas, 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from quietgrad._checks import require_choice, require_count, require_rate
from quietgrad.capture.compare import is_close, is_equal
from quietgrad.capture.draws import RandomState
from quietgrad.errors import ChangedGradientError, LossError, SampleMixingError
from quietgrad.factors.base import Factor, Verdict, all_of, any_of, real_parts
from quietgrad.factors.combined import combine

if TYPE_CHECKING:
    from quietgrad.capture.session import Capture
    from quietgrad.capture.tape import Sink


@dataclass(frozen=True)
class InnerOuter:
    """Inner-outer momentum: Algorithm 2 of "... via Clipping Bias Reduction" (Xiao et al. 2023).

    What is clipped is not a sample's gradient but its inner momentum (eq. 13), the sum of that
    sample's gradients at the current and at past weights; it is clipped once, so the sensitivity
    stays what it was. After the noise, outer momentum (eq. 14) carries what was released before,
    which costs no privacy. A step costs as much as one without for each of the weights.

    The paper leaves three things open; what its equations say is the default of each.

    Args:
        length: K0 of the paper; 0 for no inner momentum.
        inner: gamma0, the weight of the gradient one step back; of two steps back its square.
        outer: gamma1; None for no outer momentum.
        length_counts: ``"past"``: the sum has K0 + 1 terms, as in eq. 13; ``"all"``: K0, as in the
            text.
        outer_means: ``"forgotten"``: 1 - gamma1 of the last momentum is carried on, as in eq. 14;
            ``"carried"``: gamma1 of it, as optimizers do.
        start: before there are K0 past weights, ``"available"``: only those that there are;
            ``"repeat"``: the first weights stand for the missing ones.
    """

    length: int = 2
    inner: float = 0.08
    outer: float | None = 0.9
    length_counts: Literal["past", "all"] = "past"
    outer_means: Literal["forgotten", "carried"] = "forgotten"
    start: Literal["available", "repeat"] = "available"

    def __post_init__(self) -> None:
        require_choice("length_counts", self.length_counts, ("past", "all"))
        require_choice("outer_means", self.outer_means, ("forgotten", "carried"))
        require_choice("start", self.start, ("available", "repeat"))
        require_count("length", self.length, at_least=0 if self.length_counts == "past" else 1)
        _require_weight("inner", self.inner, "of the gradient one step back")
        if self.outer is not None:
            self._require_outer(self.outer)

    @property
    def past(self) -> int:
        """How many past weights are kept."""
        return self.length if self.length_counts == "past" else self.length - 1

    @property
    def carried(self) -> float:
        """How much of the last outer momentum goes on."""
        if self.outer is None:
            return 0.0
        return 1 - self.outer if self.outer_means == "forgotten" else self.outer

    def _require_outer(self, outer: float) -> None:
        if self.outer_means == "forgotten":
            _require_weight("outer", outer, "the share of the momentum that is forgotten")
        elif isinstance(outer, bool) or not (isinstance(outer, int | float) and 0 <= outer < 1):
            raise ValueError(
                f"outer={outer!r}: expected a number in [0, 1), the share of the momentum that is "
                "carried on (outer_means='carried')"
            )


def _require_weight(name: str, value: object, meaning: str) -> None:
    try:
        require_rate(name, value)
    except ValueError:
        raise ValueError(
            f"{name}={value!r} is not valid: expected a weight in (0, 1], {meaning}"
        ) from None


Weights = Mapping[str, Tensor]
Losses = Tensor | Callable[[], Tensor]
"""One loss per sample, or a function that computes them."""


class Momentum:
    """Keeps the last weights, goes back to them, and adds up what is released.

    All of it is public: weights that were released, and sums that noise covers. ``trained`` gives
    the parameters as they are now, by name.
    """

    def __init__(
        self, options: InnerOuter, trained: Callable[[], Mapping[str, nn.Parameter]]
    ) -> None:
        self._options, self._trained = options, trained
        self._past: list[dict[str, Tensor]] = []  # the latest first
        self._outer: list[Tensor] | None = None

    def backward(self, capture: Capture, losses: Losses, sink: Sink) -> None:
        """Back-propagate a micro-batch at past and present weights.

        ``losses`` may be a tensor if only outer momentum is used. The factor of every parameter's
        inner momentum goes to ``sink``, once.
        """
        if not self._options.past:
            capture.backward(losses() if callable(losses) else losses, sink)
            return
        if not callable(losses):
            raise LossError(
                "inner momentum computes the losses again at past weights, and backward() was "
                f"given a {type(losses).__name__}: pass a function that computes them, such as "
                "engine.backward(lambda: F.cross_entropy(model(x), y, reduction='none'))."
            )
        merger = _FactorMerger(sink)
        closure = _RepeatedLosses(losses, capture, RandomState(self._devices(), foreign=False))
        expected = closure.rehearse()  # at the present weights, before all others
        for weight, weights in self.past_visits():
            with self.at(weights):
                capture.backward(closure(), merger, scale=weight)
        present = closure()
        closure.require_repeated(expected, present)
        closure.conclude()
        merger.is_last = True
        capture.backward(present, merger, scale=self.present_weight())
        merger.finish()

    def past_visits(self) -> list[tuple[float, Weights]]:
        """Past weights, the oldest first, and how much their gradients count."""
        powers = [self._options.inner**age for age in range(1, self._options.past + 1)]
        visits: list[tuple[float, Weights]] = list(zip(powers, self._past, strict=False))
        if self._options.start == "repeat" and visits:
            missing = sum(powers[len(visits) :])
            power, oldest = visits.pop()
            visits.append((power + missing, oldest))
        return visits[::-1]

    def present_weight(self) -> float:
        """How much the gradients at the current weights count."""
        if self._options.start == "repeat" and not self._past:
            return sum(self._options.inner**age for age in range(self._options.past + 1))
        return 1.0

    @contextmanager
    def at(self, weights: Weights) -> Iterator[None]:
        """The model has these weights meanwhile; no number is copied."""
        trained = self._trained()
        present = {name: parameter.data for name, parameter in trained.items()}
        try:
            for name, parameter in trained.items():
                parameter.data = weights[name]
            yield
        finally:
            for name, parameter in trained.items():
                parameter.data = present[name]

    def remember(self) -> None:
        """Keep the current weights: they are about to change."""
        if not self._options.past:
            return
        full = len(self._past) == self._options.past
        kept = self._past.pop() if full else self._allocate()
        for name, parameter in self._trained().items():
            kept[name].copy_(parameter.detach())
        self._past.insert(0, kept)

    def apply_outer(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The released gradients with what is carried on of those before (eq. 14)."""
        carried = self._options.carried
        if not carried:
            return list(gradients)
        if self._outer is None:
            self._outer = [gradient.clone() for gradient in gradients]
        else:
            for momentum, gradient in zip(self._outer, gradients, strict=True):
                momentum.mul_(carried).add_(gradient)
        return [momentum.clone() for momentum in self._outer]  # optimizers may write to theirs

    def state_dict(self) -> dict[str, Any]:
        """A copy, as plain data and tensors on the CPU."""
        return {
            "past": [{name: t.to("cpu", copy=True) for name, t in w.items()} for w in self._past],
            "outer": None if self._outer is None else [t.to("cpu", copy=True) for t in self._outer],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if len(state["past"]) > self._options.past:
            raise ValueError(f"{len(state['past'])} past weights, not up to {self._options.past}")
        past = [self._allocate() for _ in state["past"]]
        for kept, weights in zip(past, state["past"], strict=True):
            if set(kept) != set(weights):
                raise ValueError("past weights of other parameters")
            if not all(bool(torch.isfinite(values).all()) for values in weights.values()):
                raise ValueError("past weights that are not finite")
            for name, values in weights.items():
                kept[name].copy_(values)
        outer = state["outer"]
        if outer is not None:
            trained = [real_parts(parameter) for parameter in self._trained().values()]
            if [values.shape for values in outer] != [parameter.shape for parameter in trained]:
                raise ValueError("outer momentum of other parameters")
            places = [parameter.device for parameter in trained]
            outer = [v.to(place, copy=True) for v, place in zip(outer, places, strict=True)]
        self._past, self._outer = past, outer

    def _devices(self) -> tuple[torch.device, ...]:
        """Those with a generator of their own, from which dropout draws."""
        places = {parameter.device for parameter in self._trained().values()}
        return tuple(place for place in places if place.type != "cpu")

    def _allocate(self) -> dict[str, Tensor]:
        return {n: torch.empty_like(p, requires_grad=False) for n, p in self._trained().items()}


class _FactorMerger:
    """A sink that holds the factors of passes at past weights, and hands them on with the last.

    Nothing is materialized for it: factors of one kind become one factor with more positions.
    """

    def __init__(self, sink: Sink) -> None:
        self.is_last = False
        self._earlier: dict[str, list[Factor]] = {}
        self._are_changed: list[tuple[str, Verdict]] = []
        self._sink = sink

    def parameter_done(self, name: str, factor: Factor) -> None:
        if self.is_last:
            self._sink.parameter_done(name, combine([*self._unchanged(name), factor]))
        else:
            self._earlier.setdefault(name, []).append(factor)

    def finish(self) -> None:
        """Hand on parameters that were used at past weights only."""
        for name in list(self._earlier):
            self._sink.parameter_done(name, combine(self._unchanged(name)))
        for name, is_changed in self._are_changed:  # on a device all verdicts are read here
            if is_changed:
                raise ChangedGradientError(name)

    def _unchanged(self, name: str) -> list[Factor]:
        factors = self._earlier.pop(name, [])
        self._are_changed.append((name, any_of([factor.changed() for factor in factors])))
        if self._are_changed[-1][1] is True:
            raise ChangedGradientError(name)
        return factors


class _RepeatedLosses:
    """Losses of the same samples, in the same order, with the same random draws, at any weights.

    Were row i another sample's in another pass, one sample would be in several clipped sums. So the
    model's inputs are compared in every pass; and, as labels are not seen, a rehearsal of the
    function at the same weights must give the same losses, where the engine verifies: just before
    the first pass, and at the present weights before all passes.
    """

    def __init__(self, closure: Callable[[], Tensor], capture: Capture, draws: RandomState) -> None:
        self._closure, self._capture, self._draws = closure, capture, draws
        self._first: list[Tensor] | None = None
        self._verdicts: list[tuple[Verdict, Callable[[], SampleMixingError]]] = []

    def __call__(self) -> Tensor:
        expected = self.rehearse() if self._first is None else None
        self._draws.restore()
        losses = self._closure()
        self.require_repeated(expected, losses)
        inputs = self._capture.arguments()
        if self._first is None:
            # Copies: the function may write to its own tensors.
            self._first = [tensor.detach().clone() for tensor in inputs]
        else:
            are_as_many = len(inputs) == len(self._first)
            are_same = are_as_many and all_of(map(is_equal, inputs, self._first))
            self._require(are_same, _other_inputs_refusal)
        return losses

    def require_repeated(self, expected: Tensor | None, losses: Tensor) -> None:
        """Refuse losses that are not those of a rehearsal at the same weights, if there was one."""
        if expected is not None:
            slack = torch.finfo(expected.dtype).eps ** 0.5  # what is captured may run on others
            is_same = is_close(expected, losses.detach(), slack, slack)
            self._require(is_same, _other_losses_refusal)

    def _require(self, verdict: Verdict, refusal: Callable[[], SampleMixingError]) -> None:
        """At once, or in :meth:`conclude`."""
        if verdict is False:
            raise refusal()
        self._verdicts.append((verdict, refusal))

    def conclude(self) -> None:
        """Refuse what was not the same, before anything of it counts."""
        for verdict, refusal in self._verdicts:
            if not verdict:
                raise refusal()

    def rehearse(self) -> Tensor | None:
        """The losses at the weights of now, without a trace; None where nothing is verified."""
        if not self._capture.is_verifying:
            return None
        self._draws.restore()
        with self._capture.rehearsal():
            return self._closure().detach().clone()


def _other_inputs_refusal() -> SampleMixingError:
    return SampleMixingError(
        "the function passed to backward() called the model with other inputs at past "
        "weights than at the others: samples that change places are not clipped as one. "
        "Draw them before, outside of the function (random views are repeated by "
        "themselves if they are drawn by torch's own generator: BatchClipping without "
        "seed=)."
    )


def _other_losses_refusal() -> SampleMixingError:
    return SampleMixingError(
        "the function passed to backward() gave other losses when it was called again at "
        "the same weights: samples or labels that change places are not clipped as one. "
        "Draw them before, outside of the function, and let random layers draw by torch's "
        "own generator (BatchClipping without seed=)."
    )
