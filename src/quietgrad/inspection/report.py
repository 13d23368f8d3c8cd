"""What an inspection found, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from torch import nn

from quietgrad.errors import QuietgradError
from quietgrad.inspection.subject import Subject


class Severity(Enum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"
    """Holds, but should be known."""
    SKIPPED = "skipped"
    """Could not be looked into."""
    FAULT = "fault"
    """Would void the guarantee, or is refused in training."""


@dataclass(frozen=True)
class Finding:
    """One answer to one question.

    Attributes:
        check: the name of the check that asked.
        verdict: how serious it is.
        what: what was found, and where.
        remedy: what to do about it; empty if nothing.
    """

    check: str
    verdict: Severity
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Coverage:
    """How the gradients of one trainable parameter are computed.

    Attributes:
        parameter: its name.
        shape: its shape.
        operations: the captured operations that use it, with their modules.
        strategy: how its norms are evaluated; None if no sample used it.
    """

    parameter: str
    shape: tuple[int, ...]
    operations: tuple[str, ...]
    strategy: str | None


@dataclass(frozen=True)
class Report:
    """Everything that an inspection found.

    Attributes:
        samples: how many samples of the batch it looked at.
        findings: in the order of the checks.
        coverage: one entry per trainable parameter; empty if the model could not be captured.
        seconds: how long it took.
    """

    samples: int
    findings: tuple[Finding, ...]
    coverage: tuple[Coverage, ...]
    seconds: float

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that speak against training this."""
        return tuple(each for each in self.findings if each.verdict is Severity.FAULT)

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against training this."""
        return not self.faults

    def require_ok(self) -> None:
        """Raise `QuietgradError` with all faults, if there are any."""
        if not self.ok:
            raise QuietgradError("\n".join(map(_sentence, self.faults)))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a file."""
        return {
            "ok": self.ok,
            "samples": self.samples,
            "seconds": self.seconds,
            "findings": [asdict(f) | {"verdict": f.verdict.value} for f in self.findings],
            "coverage": [asdict(each) for each in self.coverage],
        }

    def __str__(self) -> str:
        head = "ok" if self.ok else f"{len(self.faults)} found that would void the guarantee"
        lines = [f"checked on {self.samples} samples in {self.seconds:.1f} s: {head}"]
        return "\n".join([*lines, *map(_sentence, self.findings)])


def _sentence(finding: Finding) -> str:
    remedy = f" {finding.remedy}" if finding.remedy else ""
    return f"[{finding.verdict.value}] {finding.check}: {finding.what}{remedy}"


_FEW = 5


def fault(check: str, what: str, remedy: str = "") -> Finding:
    """Something that would void the guarantee."""
    return Finding(check, Severity.FAULT, what, remedy)


def draws_differ(check: str, done: str, subject: Subject) -> Finding:
    """What cannot be compared, because the model draws otherwise in a batch of another size."""
    names = ", ".join(sorted(subject.randomness.unaligned))
    what = (
        f"not {done}: what is drawn by {names} cannot be kept the same for a sample in a batch of "
        "another size."
    )
    remedy = "Check the model with that switched off as well."
    return Finding(check, Severity.SKIPPED, what, remedy)


def listed(numbers: Sequence[int]) -> str:
    """The first few."""
    return ", ".join([*map(str, numbers[:_FEW]), *["..."][: len(numbers) > _FEW]])


def named(path: str, module: nn.Module) -> str:
    """A module by its path and kind."""
    kind = type(module).__name__
    return f"module '{path}' ({kind})" if path else f"the forward of the model itself ({kind})"


def owner(model: nn.Module, name: str) -> str:
    """The module that holds a buffer or an attribute of this name."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in dict(model.named_modules()):
            return named(path, model.get_submodule(path))
    return named("", model)
