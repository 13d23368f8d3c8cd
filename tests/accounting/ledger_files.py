"""What tests of ledger files share."""

from quietgrad.accounting import GaussianEvent, Ledger, Passes, Poisson, TruncatedPoisson

EVENTS = [
    GaussianEvent(1.5, Poisson(1e-05), 2),
    GaussianEvent(0.30000000000000004, TruncatedPoisson(0.1, largest=20, population=100)),
    GaussianEvent(2.0, Passes(length=3), 1, 0),
]


def write(path, events=EVENTS, **options):
    """A closed ledger file with these records; its bytes."""
    book = Ledger.open(path, **options)
    for event in events:
        book.record(event)
    book.close()
    return path.read_bytes()


def read(path):
    """The events in a ledger file."""
    book = Ledger.open(path)
    book.close()
    return list(book.events)
