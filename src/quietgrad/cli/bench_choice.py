"""What `quietgrad bench` is asked to measure, from the words that were typed."""

from collections.abc import Iterable
from itertools import product
from typing import Literal, get_args

from quietgrad import grouping, noise
from quietgrad._names import unknown_name
from quietgrad.benchmark import Implementation, Kind, Opacus, Quietgrad, workloads
from quietgrad.benchmark.opacus_steps import is_installed
from quietgrad.errors import MissingExtraError
from quietgrad.strategies import Strategy

_PEERS = {peer.name: peer for peer in (Opacus("hooks"), Opacus("ghost"))}
_NONE = "none"

NoiseChoice = Literal["fast", "secure", "both"]


def words(text: str) -> tuple[str, ...]:
    """What commas separate, each once."""
    return tuple(dict.fromkeys(word for word in map(str.strip, text.split(",")) if word))


def kinds(text: str | None) -> list[Kind]:
    """Workloads by name; all of them if nothing was typed."""
    chosen = workloads.names() if text is None else _some("--workloads", words(text))
    return [workloads.resolve(name) for name in chosen]


def counts(text: str) -> tuple[int, ...]:
    """Numbers of physical batches."""
    try:
        return tuple(int(word) for word in _some("--physical-per-logical", words(text)))
    except ValueError as error:
        raise ValueError(
            f"--physical-per-logical {text}: expected numbers with commas between them"
        ) from error


def private(groupings: str, strategies: str, source: NoiseChoice) -> list[Implementation]:
    """Every grouping with every strategy and every source of noise."""
    chosen = _some("--groupings", words(groupings))
    for name in chosen:
        if name not in grouping.names() and not name.startswith("uniform:"):
            raise unknown_name("grouping", name, grouping.names(), ", and 'uniform:4'")
    sources = [name for name in reversed(noise.names()) if source in (name, "both")]
    return [
        Quietgrad(name, strategy, where)
        for where, strategy, name in product(sources, _strategies(strategies), chosen)
    ]


def peers(text: str | None) -> list[Implementation]:
    """Other libraries by name; if nothing was typed, those that are installed."""
    if text == _NONE or (text is None and not is_installed()):
        return []
    chosen = tuple(_PEERS) if text is None else _some("--peers", words(text))
    for name in chosen:
        if name not in _PEERS:
            raise unknown_name("peer", name, _PEERS, f", or '{_NONE}' alone")
    if not is_installed():
        raise MissingExtraError("opacus", "bench")
    return [_PEERS[name] for name in chosen]


def _strategies(text: str) -> Iterable[Strategy]:
    known: tuple[Strategy, ...] = get_args(Strategy)
    by_name = {name: name for name in known}
    for name in _some("--strategies", words(text)):
        if name not in by_name:
            raise unknown_name("strategy", name, by_name)
        yield by_name[name]


def _some(option: str, chosen: tuple[str, ...]) -> tuple[str, ...]:
    if not chosen:
        raise ValueError(f"{option}: expected at least one name, got none")
    return chosen
