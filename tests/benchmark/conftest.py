import pytest
from benchmarks.bench import workloads

from .standins import KINDS


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    """Only these, and none of them afterwards."""
    monkeypatch.setattr(workloads, "_KINDS", {kind.name: kind for kind in KINDS})
