"""Whether a report, or the folder of a run, is what its own evidence gives.

Every figure and every sentence follows from the evidence, which a report holds and a folder is. So
both are made again, and compared. What is compared with nothing outside can have been replaced as a
whole: the head that was noted elsewhere, or a signature, shows that it was not.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from quietgrad._format import is_number, plain
from quietgrad._version import __version__
from quietgrad.accounting import accountants
from quietgrad.errors import LedgerError
from quietgrad.report.assess import statement_of
from quietgrad.report.consistency import contradictions
from quietgrad.report.detection import epsilons
from quietgrad.report.evidence import (
    AuditFindings,
    Evidence,
    ReportError,
    evidence_in,
    evidence_of,
)
from quietgrad.report.page import BrokenPageError, Page, as_bytes, is_report, read_page
from quietgrad.report.signature import is_signed_by
from quietgrad.report.statement import FORMAT, Statement
from quietgrad.runs.schema import MODEL, REPORT

_SLACK = 1e-6  # the last digits differ between machines
_MOST_SHOWN = 5


@dataclass(frozen=True)
class VerifiedPoint:
    """One thing that was looked at.

    Attributes:
        name: of what was compared.
        passed: None if there was nothing to compare with.
        text: what was found.
    """

    name: str
    passed: bool | None
    text: str


@dataclass(frozen=True)
class Verification:
    """What was found of a report or a folder.

    Attributes:
        subject: what was verified.
        points: one for each comparison.
        head: of the evidence; None if it cannot be read.
        verdict: the headline of the statement; None if there is none.
        holds: whether that verdict is a guarantee.
        unseen: what cannot be noticed with what was given.
    """

    subject: str
    points: tuple[VerifiedPoint, ...]
    head: str | None
    verdict: str | None
    holds: bool
    unseen: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and there is something to rely on."""
        return self.holds and self.is_whole

    @property
    def is_whole(self) -> bool:
        """Whether nothing was found."""
        return not self.failures

    @property
    def failures(self) -> tuple[VerifiedPoint, ...]:
        """The comparisons that failed."""
        return tuple(point for point in self.points if point.passed is False)

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        found: dict[str, Any] = plain(self)
        return {**found, "ok": self.ok}


def verify(
    path: str | Path,
    *,
    head: str | None = None,
    public_key: bytes | None = None,
    audit: AuditFindings | None = None,
) -> Verification:
    """Verify a report, the folder of a run, or a ledger.

    Args:
        path: of a report that was received, of a folder, or of a ledger file.
        head: as it was printed when training ended, and noted elsewhere.
        public_key: of who is said to have signed the report, 32 bytes.
        audit: what an audit found, if the report of the folder quotes it.

    Raises:
        ReportError: there is nothing to verify.
    """
    place, given = Path(path), _Given(head, public_key)
    if is_report(place) or not (place.is_dir() or place.suffix == ".jsonl"):
        return _verify_page(place, given)
    return _verify_folder(place, given, audit)


@dataclass(frozen=True)
class _Given:
    """What is known from elsewhere."""

    head: str | None
    public_key: bytes | None

    def compare_head(self, found: str) -> VerifiedPoint:
        if self.head is None:
            return VerifiedPoint("head", None, f"{found}; none was given to compare it with")
        if self.head.strip().lower() == found:
            return VerifiedPoint("head", True, f"{found}, as given")
        return VerifiedPoint(
            "head",
            False,
            f"{found}, and {self.head.strip()[:64]} was given: the run went on, more was stated or"
            " an audit was quoted since then, or it is not the same",
        )

    def compare_signature(self, page: Page) -> VerifiedPoint:
        signature, key = page.signature, self.public_key
        if signature is None:
            words = "the report is not signed"
            return VerifiedPoint("signature", None if key is None else False, words)
        owner = signature.public_key.hex()
        if not is_signed_by(signature.public_key, page.content, signature):
            words = "the page was changed after it was signed, or the signature was"
            return VerifiedPoint("signature", False, words)
        if key is None:
            words = f"by the key {owner}; give --public-key to see whose it is"
            return VerifiedPoint("signature", None, words)
        if key != signature.public_key:
            return VerifiedPoint("signature", False, f"by another key, {owner}")
        return VerifiedPoint("signature", True, "by the owner of the key that was given")

    def unseen(self, subject: str, *, is_signed: bool = True) -> tuple[str, ...]:
        always = (
            "Not seen: whether the program that trained was this one, and whether the data and the"
            " words that the user stated are true.",
        )
        if self.head is not None or (self.public_key is not None and is_signed):
            return always
        return (
            f"Not seen: whether {subject} as a whole was replaced by another that agrees with"
            " itself, for example of a run that was cut back to fewer steps, with other accuracies"
            " or other names. Compare with the head that was printed when training ended (--head),"
            " or with a signature (--public-key).",
            *always,
        )


# A report.


def _verify_page(path: Path, given: _Given) -> Verification:
    try:
        page = read_page(path)
    except BrokenPageError as error:
        found = (VerifiedPoint("page", False, f"{error}"),)
        return Verification(str(path), found, None, None, False, given.unseen("the report"))
    return _verified(str(path), page, given)


def _verified(subject: str, page: Page, given: _Given) -> Verification:
    signature = given.compare_signature(page)
    unseen = given.unseen("the report", is_signed=bool(signature.passed))
    data = page.statement
    if data.get("format") != FORMAT or data.get("evidence") is None:
        words = (
            f"it is of format {_short(data.get('format'))}, which does not hold what it was made"
            f" from: expected format {FORMAT}. Write it again with quietgrad report DIR"
        )
        found = (VerifiedPoint("statement", False, words), signature)
        return Verification(subject, found, None, None, False, unseen)
    try:
        evidence = evidence_of(data)
        again = statement_of(evidence, made_at=_time(data.get("made_at")))
    except (ReportError, ValueError, ArithmeticError, TypeError, KeyError) as error:
        found = (VerifiedPoint("statement", False, f"{error}"), signature)
        return Verification(subject, found, None, None, False, unseen)
    points = [
        _compare_statement(data, again, evidence, is_signed=bool(signature.passed)),
        _compare_evidence(evidence),
        _compare_page(page, data, signature),
        given.compare_head(again.head or ""),
        signature,
    ]
    verdict = again.verdict
    return Verification(subject, tuple(points), again.head, verdict.headline, verdict.holds, unseen)


def _time(value: Any) -> str:
    """When it was made, as `now` writes it; nothing confirms it, so that it is only a time."""
    made = datetime.fromisoformat(value)
    if made.isoformat(timespec="seconds") != value or made.utcoffset() != timedelta(0):
        raise ValueError(f"made_at is {_short(value)}: expected a time in UTC, in ISO 8601")
    return str(value)


def _compare_statement(
    data: Mapping[str, Any], again: Statement, evidence: Evidence, *, is_signed: bool
) -> VerifiedPoint:
    """What is written, with what the evidence in it gives."""
    written_by, here = evidence.versions.get("quietgrad"), __version__
    expected = again.as_dict()
    if written_by == here:
        found = list(_differences(data, expected))
    else:
        parts = ("epsilons", "head")
        own, wanted = ({name: each.get(name) for name in parts} for each in (data, expected))
        found = list(_differences(own, wanted))
        if not found and not is_signed:
            found = [
                f"its figures follow from the evidence in it, but its words are of quietgrad"
                f" {_short(written_by)}, and cannot be compared by {here}: use that version, or"
                " write the report again with quietgrad report DIR"
            ]
    if found:
        more = f" (and {len(found) - _MOST_SHOWN:,} more)" if len(found) > _MOST_SHOWN else ""
        return VerifiedPoint("statement", False, f"{'; '.join(found[:_MOST_SHOWN])}{more}")
    steps = sum(phase.steps for phase in again.phases)
    what = "every figure and sentence" if written_by == here else "every figure"
    words = f"{what} follows from the evidence in it, of {steps:,} steps"
    return VerifiedPoint("statement", True, words)


def _compare_page(page: Page, data: Mapping[str, Any], signature: VerifiedPoint) -> VerifiedPoint:
    """What is shown, with the statement inside of it."""
    if signature.passed:
        return VerifiedPoint("page", True, "as it was signed")
    try:
        expected = as_bytes(Statement.from_dict(dict(data)))
    except Exception as error:  # whatever a statement of another shape makes of the template
        return VerifiedPoint("page", False, f"no page can be made of its statement ({error!r})")
    if expected == page.content:
        return VerifiedPoint("page", True, "it shows the statement, and nothing else")
    lines = zip(page.content.split(b"\n"), expected.split(b"\n"), strict=False)
    pairs = ((n, one, other) for n, (one, other) in enumerate(lines, 1) if one != other)
    number, shown, wanted = next(pairs, (expected.count(b"\n") + 1, b"more", b"its end"))
    return VerifiedPoint(
        "page",
        False,
        f"line {number} shows {_short(shown)}, and its statement gives {_short(wanted)}. (Pages of"
        " another version of quietgrad differ too: then trust what is printed here, not the page)",
    )


def _short(value: object) -> str:
    """On one line, without what a terminal would obey."""
    text = value.decode(errors="replace").strip() if isinstance(value, bytes) else str(value)
    shown = "".join(each if each.isprintable() else "?" for each in text)
    return repr(shown if len(shown) <= 80 else f"{shown[:77]}...")


def _differences(found: Any, expected: Any, at: str = "") -> Iterator[str]:
    """Where two values of JSON differ by more than rounding."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in {**expected, **found}:
            place = f"{at}.{name}" if at else name
            if name not in found or name not in expected:
                yield f"{_short(place)} {'was added' if name in found else 'is missing'}"
            else:
                yield from _differences(found[name], expected[name], place)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from _differences(one, other, f"{at}[{index}]")
    elif not _is_same(found, expected):
        yield f"{_short(at)} is {_short(found)}, and the evidence gives {_short(expected)}"


def _is_same(found: Any, expected: Any) -> bool:
    if is_number(found) and is_number(expected):
        return math.isclose(found, expected, rel_tol=_SLACK)
    return type(found) is type(expected) and bool(found == expected)


def _compare_evidence(evidence: Evidence) -> VerifiedPoint:
    """One part of the evidence with another."""
    figures = epsilons(
        evidence.ledger,
        delta=evidence.stated_delta if evidence.delta is None else evidence.delta,
        accountant=evidence.accountant,
    )
    found = [*contradictions(evidence, figures), *_about_result(evidence)]
    if found:
        more = f" (and {len(found) - _MOST_SHOWN:,} more)" if len(found) > _MOST_SHOWN else ""
        return VerifiedPoint("evidence", False, f"{' '.join(found[:_MOST_SHOWN])}{more}")
    parts = {
        "ledger": True,
        "settings": evidence.settings,
        "configuration": evidence.config,
        "metrics": evidence.metrics,
        "result": evidence.result,
        "stated words": evidence.stated,
    }
    there = ", ".join(name for name, part in parts.items() if part)
    missing = ", ".join(name for name, part in parts.items() if not part)
    without = f"; not there: {missing}" if missing else ""
    return VerifiedPoint("evidence", True, f"these agree: {there}{without}")


def _about_result(evidence: Evidence) -> Iterator[str]:
    """The result beside what it sums up, where a report takes the word of both."""
    private, settings = evidence.private_result, evidence.settings
    if evidence.result is None:
        return
    delta, accountant = private.get("delta"), private.get("accountant") or evidence.accountant
    stated: Any = private.get("epsilon")
    if is_number(stated) and delta is not None and accountant in accountants.BUILT_IN:
        name = None if settings is None else settings.data.get("data_name")
        spent = evidence.ledger.epsilon(delta, accountant=accountant, dataset=name)
        if not math.isclose(stated, spent, rel_tol=_SLACK):
            yield f"The result states epsilon {stated!r}, and the ledger gives {spent!r}."
    steps: Any = private.get("steps")
    lost: Any = private.get("lost_steps")
    others = 0 if settings is None else settings.steps_by_others
    recorded = evidence.ledger.steps
    is_counted = isinstance(steps, int) and isinstance(lost, int) and not others
    if is_counted and steps + lost != recorded:
        yield f"The result has {steps:,} steps and {lost:,} lost ones, and the ledger {recorded:,}."
    last = evidence.metrics[-1] if evidence.metrics else {}
    if last.get("steps", steps) != steps:
        return
    for name, value in last.items():
        if name not in _OF_EPOCHS and name in private and not _is_same(value, private[name]):
            yield (
                f"{name} is {private[name]!r} in the result and {value!r} in the last line of the"
                " metrics."
            )


_OF_EPOCHS = ("epoch", "steps", "epsilon", "seconds")


# A folder.


def _verify_folder(path: Path, given: _Given, audit: AuditFindings | None) -> Verification:
    try:
        evidence = evidence_in(path, audit=audit)
    except (LedgerError, ReportError) as error:
        if not path.is_dir() and isinstance(error, ReportError):
            raise
        if not (path / "ledger.jsonl").exists() and path.is_dir():
            raise
        broken = (VerifiedPoint("files", False, f"{error}"),)
        return Verification(str(path), broken, None, None, False, given.unseen("the folder"))
    page = path / REPORT
    has_page = path.is_dir() and page.exists()
    alone = _told_by_its_page_alone(page, evidence) if has_page else None
    evidence = evidence if alone is None else alone
    statement = statement_of(evidence)
    points = [
        VerifiedPoint(
            "files",
            True,
            f"the chain of the ledger is whole, with {evidence.ledger.steps:,} steps; it ends with"
            f" {evidence.ledger.head}",
        ),
        _compare_evidence(evidence),
        _compare_weights(evidence),
    ]
    signature: VerifiedPoint | None = None
    if has_page:
        inner = _verify_own_page(page, given, evidence, is_alone=alone is not None)
        points += inner
        signature = next((each for each in inner if each.name == "signature"), None)
    elif given.public_key is not None:
        points.append(VerifiedPoint("signature", False, f"there is no {REPORT} to be signed"))
    points.append(given.compare_head(evidence.head))
    verdict = statement.verdict
    unseen = given.unseen("the folder", is_signed=bool(signature and signature.passed))
    return Verification(
        str(path), tuple(points), evidence.head, verdict.headline, verdict.holds, unseen
    )


def _told_by_its_page_alone(page: Path, evidence: Evidence) -> Evidence | None:
    """The evidence in a page of `engine.report`, with the ledger beside it; None if it is another.

    Such a report is written without the other files of a run, so that none of them can be missing.
    """
    own = (evidence.settings, evidence.config, evidence.result, evidence.stated, evidence.audit)
    if any(own) or evidence.metrics:
        return None
    try:
        read = read_page(page)
    except ReportError:
        return None
    if not _verified(str(page), read, _Given(None, None)).is_whole:
        return None  # what is wrong with it is said where the page is verified
    told = evidence_of(read.statement)
    return replace(told, ledger=evidence.ledger) if told.is_live else None


def _compare_weights(evidence: Evidence) -> VerifiedPoint:
    stated, found = (evidence.result or {}).get("model_sha256"), evidence.hashes.get(MODEL)
    if stated is None:
        return VerifiedPoint("weights", None, "no result says which weights are the run's")
    if found is None:
        return VerifiedPoint("weights", None, f"there is no {MODEL}; the run's has {stated}")
    is_same = found == stated
    words = "are those that the run wrote" if is_same else "are not those that the run wrote"
    return VerifiedPoint("weights", is_same, f"{MODEL}: {words}")


def _verify_own_page(
    path: Path, given: _Given, evidence: Evidence, *, is_alone: bool
) -> list[VerifiedPoint]:
    """The report in the folder: by itself, and with what is in the folder now."""
    try:
        page = read_page(path)
    except ReportError as error:
        return [VerifiedPoint("report", False, f"{error}")]
    found = _verified(str(path), page, _Given(None, given.public_key))
    broken = [point for point in found.points if point.passed is False]
    signature = next(point for point in found.points if point.name == "signature")
    kept = [] if signature in broken else [signature]
    if broken:
        return [_of_own_page(point) for point in broken] + kept
    if found.head != evidence.head and is_alone:
        words = (
            f"{REPORT} is about another state of the ledger than the one beside it: the run went on"
            " since, or it is another run. Write it again with engine.report"
        )
        return [VerifiedPoint("report", False, words), *kept]
    if is_alone:
        words = (
            f"{REPORT} agrees with the ledger; engine.report wrote it without other files, so its"
            " settings and words were compared with nothing (engine.save_run keeps them)"
        )
        return [VerifiedPoint("report", True, words), *kept]
    if found.head != evidence.head:
        words = (
            f"{REPORT} is about other files than those in the folder (its head is {found.head}):"
            " one of them was changed since, or it quotes an audit (--audit FILE)"
        )
        return [VerifiedPoint("report", False, words), *kept]
    return [VerifiedPoint("report", True, f"{REPORT} is what the files in the folder give"), *kept]


def _of_own_page(point: VerifiedPoint) -> VerifiedPoint:
    """The same point, of the report in a folder."""
    if point.name == "signature":
        return point
    return VerifiedPoint("report", point.passed, f"{REPORT}, its {point.name}: {point.text}")
