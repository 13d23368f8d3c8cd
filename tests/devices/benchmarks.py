"""The benchmark on a device: work is waited for, and memory is the device's own."""

import torch
from benchmarks.bench import Kind, NonPrivate, Quietgrad, Workload
from benchmarks.bench.measure import is_known, resident, watched
from benchmarks.bench.steps import Contender, prepared
from tests.devices import pretend
from torch import nn

pretend.register()


def line(batch_size: int) -> Workload:
    return Workload(nn.Linear(4, 3), (torch.randn(batch_size, 4),), torch.arange(batch_size) % 3)


def test_steps_run_there_and_are_waited_for(monkeypatch):
    waited = []
    module = torch.get_device_module(pretend.NAME)
    monkeypatch.setattr(module, "synchronize", lambda device=None: waited.append(device))
    kind = Kind("line", "a linear layer", 4, line, pretend.NAME)
    for implementation in (NonPrivate(), Quietgrad()):
        found = prepared(kind, implementation, 1)
        assert isinstance(found, Contender), found
        waited.clear()
        found.seconds()
        assert len(waited) == 2
    assert all(each.device.type == pretend.NAME for each in kind.build().trained)


def test_memory_is_asked_of_the_device(monkeypatch):
    assert not is_known(pretend.NAME)
    module = torch.get_device_module(pretend.NAME)
    for name, answer in {
        "memory_allocated": 10,
        "max_memory_allocated": 25,
        "reset_peak_memory_stats": None,
    }.items():
        monkeypatch.setattr(module, name, lambda answer=answer: answer, raising=False)
    assert is_known(pretend.NAME)
    assert resident(pretend.NAME) == 10
    with watched(pretend.NAME) as peak:
        assert peak.bytes() == 25
