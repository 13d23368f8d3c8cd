"""The game an auditor plays: coins decide which canaries are there, scores are to tell.

The auditor commits to the rule before the coins are thrown, so that nothing needs correcting.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quietgrad._checks import require_count
from quietgrad.audit import bounds
from quietgrad.audit.bounds import require_confidence
from quietgrad.audit.claims import Claim
from quietgrad.audit.result import AuditEvidence, AuditResult, judge


@dataclass(frozen=True, eq=False)
class Observation:
    """What one run showed, and what it claims.

    Attributes:
        scores: one per canary; the higher, the more likely it was there.
        claim: what training says it spends.
        threshold: a score above which a canary is taken for present, fixed before any was seen.
            Only where canaries do not influence one another's scores: their guesses then count as
            independent. None where they may.
    """

    scores: NDArray[np.float64]
    claim: Claim
    threshold: float | None = None


Train = Callable[[NDArray[np.bool_], int | None], Observation]
"""Trains with the canaries that are present, and scores all of them.

Its arguments are which canaries are present, and a seed for this run, None unless the audit has
one. An absent canary must leave no other trace than that it is not there.
"""


def one_run(
    train: Train,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    runs: int = 1,
    seed: int | None = None,
) -> AuditResult:
    """Audit training with canaries, each of which is present with probability 1/2.

    One run is enough, since every canary is an experiment (Steinke, Nasr and Jagielski 2023,
    "Privacy Auditing with One (1) Training Run"). Several are one large run: the coin of a canary
    still moves one release of all. Correct code raises an alarm with probability 1 - `confidence`
    at most; see docs/design/0008-audits.md for what is tested.

    Args:
        train: runs the code that is audited.
        canaries: in each run.
        guesses: in each run, by rank: so many canaries with the highest and the lowest scores are
            guessed to be present and absent. A fifth of the canaries if None.
        confidence: probability with which the bounds hold.
        runs: how often to train.
        seed: fixes coins and training, for tests only.

    Example::

        canaries = audit.gradient_canaries(build_model, data, losses, build_optimizer,
                                           batch_size=256, epochs=30, epsilon=1.0, delta=1e-4)
        print(audit.one_run(canaries, canaries=1000))
    """
    require_count("canaries", canaries, at_least=1)
    guesses = max(1, canaries // 5) if guesses is None else guesses
    bounds.require_guesses(0, guesses, canaries)
    require_confidence(confidence)
    sources = np.random.SeedSequence(seed).spawn(require_count("runs", runs, at_least=1))
    played = [
        _play(train, source, canaries, guesses, seeded=seed is not None) for source in sources
    ]
    return _judged(played, guesses, confidence, seeded=seed is not None)


@dataclass(frozen=True, eq=False)
class _Played:
    present: NDArray[np.bool_]
    observation: Observation
    correct: int


def _play(
    train: Train, source: np.random.SeedSequence, canaries: int, guesses: int, *, seeded: bool
) -> _Played:
    coins, training = source.spawn(2)
    present = np.random.default_rng(coins).random(canaries) < 0.5
    seed = int(training.generate_state(1)[0]) if seeded else None
    seen = _checked(train(present.copy(), seed), canaries)
    return _Played(present, seen, _correct_by_rank(seen.scores, present, guesses))


def _checked(seen: Observation, canaries: int) -> Observation:
    """With scores as an array, whatever sequence they were."""
    if not isinstance(seen, Observation):
        raise TypeError(
            f"train returned {type(seen).__name__}: expected quietgrad.audit.Observation(scores, "
            "claim), where the claim may be quietgrad.audit.Pair(epsilon, delta)"
        )
    if seen.threshold is not None and not (
        np.ndim(seen.threshold) == 0 and np.isfinite(seen.threshold)
    ):
        raise ValueError(
            f"threshold={seen.threshold!r} is not valid: expected a finite score, fixed before any "
            "was seen, or None where canaries may influence one another"
        )
    scores = np.asarray(seen.scores, dtype=np.float64)
    _require_scores(scores, canaries)
    return replace(seen, scores=scores)


def _require_scores(scores: NDArray[np.float64], canaries: int) -> None:
    if scores.shape != (canaries,):
        raise ValueError(f"train gave scores of shape {scores.shape}: expected ({canaries},)")
    if not np.isfinite(scores).all():
        count = int((~np.isfinite(scores)).sum())
        raise ValueError(f"{count} scores are not finite: training diverged, lower its rate")


def _correct_by_rank(scores: NDArray[np.float64], present: NDArray[np.bool_], guesses: int) -> int:
    order = np.argsort(scores, kind="stable")
    lowest = order[: guesses // 2]
    highest = order[len(order) - (guesses - len(lowest)) :]
    return int((~present[lowest]).sum() + present[highest].sum())


def _judged(played: list[_Played], guesses: int, confidence: float, *, seeded: bool) -> AuditResult:
    claim, threshold = _agreed(played)
    evidence = AuditEvidence(
        scores=np.concatenate([each.observation.scores for each in played]),
        present=np.concatenate([each.present for each in played]),
        threshold=threshold,
        guesses=guesses * len(played),
        correct=sum(each.correct for each in played),
    )
    return judge(claim, evidence, runs=len(played), confidence=confidence, seeded=seeded)


def _agreed(played: list[_Played]) -> tuple[Claim, float | None]:
    first = played[0].observation
    for each in played[1:]:
        other = each.observation
        if (other.claim, other.threshold) != (first.claim, first.threshold):
            raise ValueError(
                f"two runs claim different things, {first.claim} and {other.claim}: expected the "
                "same claim and threshold of every run"
            )
    return first.claim, first.threshold
