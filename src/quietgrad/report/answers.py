"""What an evaluation asks, after NIST SP 800-226, and what the evidence of a run answers.

The publication ("Guidelines for Evaluating Differential Privacy Guarantees", Near, Darais,
Lefkovitz and Howarth 2025) orders what to look at from the parameters down to how data were
collected. The questions are in the words of this project and are no form of NIST's. An answer is
taken from the evidence, or quotes the user; everything else is left to the owner of the claim.
"""

from collections.abc import Callable

from quietgrad._format import is_number, printed
from quietgrad.accounting.events import Adjacency
from quietgrad.report.detection import FALSE_ALARMS
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Answer, AnswerSource, Bound, Epsilons
from quietgrad.report.text import claim, clipping_in_words, count, sampling_in_words

Known = tuple[str, AnswerSource]
_OWNER: Known = ("", "owner")
_RELATIONS: dict[Adjacency, str] = {
    "add-remove-one": "two data sets of which one has a {one} more; {number}",
    "replace-one": "two data sets of the same size that differ in one {one}",
    "zero-out-one": "two data sets of the same size, in one of which a {one} is blanked",
}
_NUMBER = "the number of {many} is not protected, as batch size and sampling rate are public"
_HIDDEN = "the number of {many} is not disclosed, and the sampling rate does not depend on it"


def answers(evidence: Evidence, figures: Epsilons) -> tuple[Answer, ...]:
    """All questions, in order, with what is known."""
    found = []
    for topic, question, know in _QUESTIONS:
        words, by = know(evidence, figures)
        found.append(Answer(topic, question, words, by))
    return tuple(found)


def _parameters(evidence: Evidence, figures: Epsilons) -> Known:
    bound = best_bound(figures)
    if evidence.is_seeded:
        return "None: the noise was seeded.", "evidence"
    if figures.delta is None or bound is None or bound.epsilon is None:
        return "(epsilon, delta)-differential privacy. Delta is not stated.", "evidence"
    pair = claim(bound.epsilon, figures.delta)
    return f"{pair}, by {bound.accountant} from the ledger.", "evidence"


def best_bound(figures: Epsilons) -> Bound | None:
    """The bound by the accountant of the run, if it is one; else that by the first that is."""
    bounds = [bound for bound in figures.bounds if bound.is_guarantee]
    own = (bound for bound in bounds if bound.accountant == figures.accountant)
    return next(own, bounds[0] if bounds else None)


def _strength(evidence: Evidence, figures: Epsilons) -> Known:
    if evidence.is_seeded:
        return "It protects nobody: the noise was seeded.", "evidence"
    share = printed(100 * figures.detection, decimals=1)
    return (
        f"A test with {100 * FALSE_ALARMS:g} % false alarms identifies at most {share} % of the"
        f" {evidence.noun.many} used."
    ), "evidence"


def _composition(evidence: Evidence, figures: Epsilons) -> Known:
    words = f"All in the ledger: {count(evidence.ledger.steps, 'release')}."
    if figures.parts:
        words += " Those from disjoint data sets count side by side (as declared by the user)."
    return words, "evidence"


def _unit(evidence: Evidence, figures: Epsilons) -> Known:
    stated, own, noun = evidence.stated.get("unit"), evidence.unit, evidence.noun
    words = "One record, which is one element of the training data set."
    if own is not None:
        words = (
            f"One {noun.one}, with all records of that {noun.one}. At most"
            f" {count(own.records, 'record')} of a {noun.one} take part in a step, and their mean"
            " gradient is clipped once."
        )
    return (words, "evidence") if stated is None else (f"{words} Stated: {stated}", "user")


def _neighbours(evidence: Evidence, figures: Epsilons) -> Known:
    adjacency = evidence.ledger.adjacency
    one, many = evidence.noun.one, evidence.noun.many
    is_hidden = evidence.settings is not None and evidence.settings.size_is_secret
    number = (_HIDDEN if is_hidden else _NUMBER).format(many=many)
    return f"{adjacency}: {_RELATIONS[adjacency].format(one=one, number=number)}.", "evidence"


def _mechanism(evidence: Evidence, figures: Epsilons) -> Known:
    settings = evidence.settings
    if settings is None:
        return _OWNER
    clipping = clipping_in_words(settings.data.get("clipping", "unknown"))
    groups = count(len(settings.group_bounds), "group")
    return (
        f"DP-SGD with Gaussian noise. Each {evidence.noun.one}'s gradient is clipped ({clipping},"
        f" {groups}), so that it moves the sum by at most {settings.sensitivity:.6g}. The noise"
        f" multiplier is {settings.noise_multiplier:.6g}."
    ), "evidence"


def _sampling(evidence: Evidence, figures: Epsilons) -> Known:
    kinds = dict.fromkeys(
        sampling_in_words(event.sampling, evidence.noun) for event in evidence.ledger.events
    )
    if not kinds:
        return "Nothing was released.", "evidence"
    assumed = f"The accountant assumes: {'; '.join(kinds)}."
    if evidence.settings is None:
        return f"{assumed} What was done is not known.", "evidence"
    return f"{assumed} The engine drew: {evidence.settings.data.get('sampler')}.", "evidence"


def _testing(evidence: Evidence, figures: Epsilons) -> Known:
    audit = evidence.audit
    if audit is None:
        return "By the tests of quietgrad. No audit of this training was supplied.", "evidence"
    found = "rejected" if audit["violated"] else "did not reject"
    return (
        f"An audit of such training {found} its claim. Its lower bound on epsilon is"
        f" {audit['lower_bound']}."
    ), "evidence"


def _utility(evidence: Evidence, figures: Epsilons) -> Known:
    line = evidence.metrics[-1] if evidence.metrics else {}
    scores = [
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in line.items()
        if name.startswith(("test", "eval", "val")) and is_number(value)
    ]
    if not scores:
        return _OWNER
    return f"As the run recorded it after its last epoch: {', '.join(scores)}.", "evidence"


def _trust(evidence: Evidence, figures: Epsilons) -> Known:
    owner = evidence.stated.get("owner")
    words = "Central model: whoever trains holds the records without protection."
    return (words, "evidence") if owner is None else (f"{words} Stated owner: {owner}", "user")


def _queries(evidence: Evidence, figures: Epsilons) -> Known:
    return (
        "None after training. The weights of every step are covered, so any use of the model is"
        " post-processing and spends nothing."
    ), "evidence"


def _randomness(evidence: Evidence, figures: Epsilons) -> Known:
    sources = sorted({event.noise for event in evidence.ledger.events})
    if not sources:
        return "Nothing was released.", "evidence"
    words = f"Source of the noise, as recorded: {', '.join(sources)}."
    if evidence.settings is not None:
        words += f" The engine said: {evidence.settings.data.get('noise_source')}."
    return words, "evidence"


def _floats(evidence: Evidence, figures: Epsilons) -> Known:
    sources = {event.noise for event in evidence.ledger.events} - {"seeded"}
    if evidence.settings is not None:
        sources.add(str(evidence.settings.data.get("noise")))
    if sources == {"secure"}:
        return (
            "Sums and noise are rounded to a grid, which hides the low bits of both. Sums are"
            " rounded by about one part in ten million of the sensitivity, which is not accounted"
            " for."
        ), "evidence"
    return "The noise is not rounded to a grid: attacks on its low bits are possible.", "evidence"


def _side_channels(evidence: Evidence, figures: Epsilons) -> Known:
    return (
        "Time, memory and swap of the training machine are not protected. Nobody but the owner"
        " should have been able to observe it."
    ), "evidence"


def _purpose(evidence: Evidence, figures: Epsilons) -> Known:
    stated = evidence.stated.get("purpose")
    return _OWNER if stated is None else (stated, "user")


def _collection(evidence: Evidence, figures: Epsilons) -> Known:
    stated = evidence.stated.get("data")
    return _OWNER if stated is None else (stated, "user")


def _owner(evidence: Evidence, figures: Epsilons) -> Known:
    return _OWNER


_Know = Callable[[Evidence, Epsilons], Known]
_PARAMETERS, _UNIT, _CORRECT = "Privacy parameters", "Unit of privacy", "Algorithms"
_USE, _TRUST, _IMPLEMENTED = "Utility and bias", "Trust", "Implementation"
_SECURITY, _DATA = "Security and access", "Data collection"
_QUESTIONS: tuple[tuple[str, str, _Know], ...] = (
    (_PARAMETERS, "Which variant of differential privacy, with which parameters?", _parameters),
    (_PARAMETERS, "What does that mean for an attack?", _strength),
    (_PARAMETERS, "Are all releases from the data added up?", _composition),
    (_PARAMETERS, "Are there releases from the same data that this ledger lacks?", _owner),
    (_UNIT, "Whose or what contribution is protected?", _unit),
    (_UNIT, "How many such units can belong to one person?", _owner),
    (_UNIT, "Which data sets are neighbours?", _neighbours),
    (_CORRECT, "Which mechanism, and what bounds its sensitivity?", _mechanism),
    (_CORRECT, "Is the sampling that is accounted for the one that was done?", _sampling),
    (_CORRECT, "How was the implementation tested?", _testing),
    (_CORRECT, "Was anything computed from several records before training?", _owner),
    (_CORRECT, "Were hyper-parameters chosen on the data, and is that accounted for?", _owner),
    (_USE, "How useful is the result?", _utility),
    (_USE, "Do clipping and noise serve small groups worse, and was that measured?", _owner),
    (_TRUST, "Who must be trusted with the records?", _trust),
    (_TRUST, "Which questions can others put to the data?", _queries),
    (_IMPLEMENTED, "Where does the randomness come from?", _randomness),
    (_IMPLEMENTED, "What about floating-point numbers?", _floats),
    (_IMPLEMENTED, "What about time and other side channels?", _side_channels),
    (_SECURITY, "Who can read the records, the checkpoints and the logs?", _owner),
    (_SECURITY, "When are the records and the checkpoints deleted?", _owner),
    (_DATA, "For which purpose was the model trained?", _purpose),
    (_DATA, "Which data were collected, and how?", _collection),
    (_DATA, "Who saw the data on their way, and who consented?", _owner),
)
