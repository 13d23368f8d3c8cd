"""What the ledger shows at the run's own delta."""

from quietgrad.accounting import accountants
from quietgrad.report.evidence import Evidence
from quietgrad.report.statement import Epsilons


def spent(evidence: Evidence, figures: Epsilons, accountant: str) -> float | None:
    """Epsilon by an accountant; None without a delta, or where it has no formula for such a run.

    Args:
        evidence: of the run.
        figures: computed before; a reader may have asked for them at another delta.
        accountant: by which.
    """
    delta = evidence.stated_delta
    if delta is None:
        return None
    if figures.delta == delta:
        known = {bound.accountant: bound.epsilon for bound in figures.bounds}
        return known[accountant]
    try:
        return evidence.ledger.epsilon(delta, accountant=accountant)
    except ValueError:
        if accountants.resolve(accountant).is_guarantee:
            raise
        return None
