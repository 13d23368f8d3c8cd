"""What was measured, as plain numbers. NOT PRIVATE, and it says so wherever it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

_ALIKE = ": every norm exceeds the radius, so clipping functions act alike"
NOT_PRIVATE = "NOT PRIVATE: measured on raw gradients, covered by no epsilon"


@dataclass(frozen=True)
class Spread:
    """How values of all samples are spread: their mean, and the 5, 25, 50, 75 and 95 % quantiles.

    Quantiles between two samples are interpolated linearly.
    """

    mean: float
    q05: float
    q25: float
    q50: float
    q75: float
    q95: float


@dataclass(frozen=True)
class Averaged:
    """Gradients averaged over p samples at a time ("... Clipping Bias Reduction", section 3.3).

    The batch is divided at random, by a division that is the same each time; samples left over by
    the last whole average are left out. Clipping averages would raise the sensitivity 2p-fold: this
    is a measurement and not a way to train.

    Attributes:
        size: p.
        count: how many averages there are.
        sampling_noise: E|a - g|^2 of an average a, estimated without bias, in theory 1/p of that of
            samples; None if there is only one average, the whole batch.
        cosine: to the mean gradient, averaged over the averages; None if the mean is zero.
        normalized_cosine: of the sum of a/|a| over all averages to the mean gradient; None if one
            of the two is zero.
    """

    size: int
    count: int
    sampling_noise: float | None
    cosine: float | None
    normalized_cosine: float | None


@dataclass(frozen=True)
class Measurement:
    """Raw per-sample gradients g_i of one batch, and their mean g. NOT PRIVATE.

    Attributes:
        samples: how many have finite gradients; the others are left out of everything here.
        nonfinite: how many have not.
        norms: of |g_i|.
        mean_gradient_norm: |g|.
        mean_clipped_norm: the length of the sum of clipped gradients, divided by `samples`.
        sampling_noise: E|g_i - g|^2 (Definition 2.5 of "... Clipping Bias Reduction"), estimated
            from the batch without bias: the sum is divided by one less than `samples`.
        relative_noise: the root of it over |g|; None if g is zero.
        clipped: group name -> share of samples that the clipping makes shorter: weight < 1.
        cosines: of g_i to g, without gradients that are zero; None if g is zero.
        clipped_cosine: of the sum of clipped gradients to the sum of all; None if one is zero.
        averages: of several samples at a time.
        not_private: always true.
    """

    samples: int
    nonfinite: int
    norms: Spread
    mean_gradient_norm: float
    mean_clipped_norm: float
    sampling_noise: float
    relative_noise: float | None
    clipped: Mapping[str, float]
    cosines: Spread | None
    clipped_cosine: float | None
    averages: tuple[Averaged, ...]
    not_private: Literal[True] = field(default=True, init=False)

    @property
    def clipped_share(self) -> float:
        """Share of samples that are clipped, averaged over the groups."""
        return sum(self.clipped.values()) / len(self.clipped)

    @property
    def are_all_clipped(self) -> bool:
        """Whether every sample is clipped in every group.

        Then abadi, auto-s and psac all give (nearly) gradients of the length of the radius: they
        act alike, and a smaller radius only rescales the learning rate.
        """
        return all(share == 1 for share in self.clipped.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with `not_private` first."""
        return {"not_private": True} | asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Measurement:
        """What `to_dict` gave."""
        fields = {name: value for name, value in data.items() if name != "not_private"}
        cosines = fields["cosines"]
        return Measurement(
            **fields
            | {
                "norms": Spread(**fields["norms"]),
                "cosines": None if cosines is None else Spread(**cosines),
                "averages": tuple(Averaged(**each) for each in fields["averages"]),
            }
        )

    def __str__(self) -> str:

        def number(value: float | None) -> str:
            return "undefined" if value is None else f"{value:.4g}"

        norms, cosines = self.norms, self.cosines
        shown = {
            "samples": f"{self.samples} (and {self.nonfinite} that are not finite)",
            "norms": f"{norms.q50:.4g} (5 to 95 %: {norms.q05:.4g} to {norms.q95:.4g})",
            "|mean gradient|": f"{self.mean_gradient_norm:.4g}",
            "sampling noise": f"{self.sampling_noise:.4g}",
            "its root / |mean|": number(self.relative_noise),
            "clipped": f"{self.clipped_share:.1%}{_ALIKE if self.are_all_clipped else ''}",
            "cosine of samples": number(None if cosines is None else cosines.mean),
            "cosine of clipped": number(self.clipped_cosine),
        }
        return "\n".join([NOT_PRIVATE, *(f"{name:18}{value}" for name, value in shown.items())])


@dataclass(frozen=True)
class Record:
    """A measurement in the course of a training. NOT PRIVATE.

    Attributes:
        step: the number of the step before which it was made, from 0.
        measurement: what was measured.
        radii: group name -> the radius in force, which an `AdaptiveRadius` moves from step to step;
            empty in files that were written without.
    """

    step: int
    measurement: Measurement
    radii: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with `not_private` first."""
        first = {"not_private": True, "step": self.step, "radii": dict(self.radii)}
        return first | self.measurement.to_dict()

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Record:
        """What `to_dict` gave."""
        fields = dict(data)
        step, radii = fields.pop("step"), fields.pop("radii", {})
        return Record(step, Measurement.from_dict(fields), radii)


FILE_NAME = "diagnostics.NOT-PRIVATE.jsonl"
_ENDING = ".NOT-PRIVATE.jsonl"


def log_file(path: str | Path) -> Path:
    """The file to write: one whose name says what is in it, or the usual one in a folder.

    Raises:
        ValueError: the path is neither.
    """
    path = Path(path)
    if path.is_dir():
        return path / FILE_NAME
    if not path.name.endswith(_ENDING):
        raise ValueError(
            f"path={str(path)!r} is not valid: it would hold measurements of raw gradients, which"
            f" are not private, so its name must end in {_ENDING!r} (or give a folder that exists,"
            f" for a file {FILE_NAME!r} in it)"
        )
    return path


def require_unused(path: Path) -> None:
    """Refuse a file that is there: two runs in one could not be told apart."""
    if path.exists():
        raise FileExistsError(
            f"{path} holds the records of another run: choose another folder, or pass append=True "
            "if it is this run that goes on"
        )


def write_record(path: Path, record: Record, *, is_first: bool) -> None:
    """Add a line to a file: the first one to a file that is new."""
    line = json.dumps(record.to_dict(), allow_nan=False) + "\n"
    try:
        with path.open("x" if is_first else "a", encoding="utf-8") as stream:
            stream.write(line)
    except FileExistsError:  # made by another since the recorder was
        require_unused(path)
        raise


def read_history(path: str | Path) -> tuple[Record, ...]:
    """What a `Recorder` wrote, by rising steps. NOT PRIVATE.

    A run that went on from a checkpoint may have measured a step twice: the later line counts.

    Args:
        path: the file, or the folder that it is in.

    Raises:
        ValueError: a line is not a record.
    """
    path = log_file(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    latest: dict[int, Record] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = Record.from_dict(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {number} is not a record of diagnostics ({error}): remove it, or"
                " give another file"
            ) from error
        latest[record.step] = record
    return tuple(latest[step] for step in sorted(latest))
