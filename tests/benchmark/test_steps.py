"""Every implementation takes the same step: as many samples, one update, the same gradient."""

import pytest
import torch
from benchmarks.bench import NonPrivate, Opacus, Quietgrad, steps, workloads
from benchmarks.bench.steps import is_installed

from quietgrad.capture import verification
from quietgrad.engine import PrivacyEngine

PEERS = [
    pytest.param(
        Opacus(mode),
        marks=[
            pytest.mark.skipif(not is_installed(), reason="opacus is not installed"),
            pytest.mark.filterwarnings("ignore"),
        ],
        id=mode,
    )
    for mode in ("hooks", "ghost")
]
IMPLEMENTATIONS = [NonPrivate(), Quietgrad(), Quietgrad("layer-wise", "keep", "secure"), *PEERS]


class Watched:
    """Counts what a step does."""

    def __init__(self, workload, monkeypatch):
        self.samples, self.updates = 0, 0
        workload.model.register_forward_pre_hook(self._count)
        take = torch.optim.SGD.step

        def step(optimizer, *args, **options):
            self.updates += 1
            return take(optimizer, *args, **options)

        monkeypatch.setattr(torch.optim.SGD, "step", step)

    def _count(self, model, inputs):
        self.samples += len(inputs[0])


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
def test_a_step_takes_every_sample_of_the_logical_batch_once(implementation, count, monkeypatch):
    workload = workloads.resolve("line").build()
    watched = Watched(workload, monkeypatch)
    step = implementation.prepare(workload, count)
    step(), step()  # some of their micro-batches are verified, by more calls
    watched.samples = watched.updates = 0
    step()
    assert (watched.samples, watched.updates) == (count * 5, 1)


@pytest.mark.parametrize("name", ["line", "picture", "positions"])
def test_physical_batches_add_up_to_the_mean_over_the_logical_one(name):
    trained = []
    for count in (1, 8):
        workload = workloads.resolve(name).build()
        NonPrivate().prepare(workload, count)()
        trained.append([each.detach() for each in workload.trained])
    for one, eight in zip(*trained, strict=True):
        torch.testing.assert_close(one, eight)


@pytest.mark.parametrize("name", ["line", "picture", "positions"])
def test_a_private_step_is_an_average_over_the_logical_batch(name, monkeypatch):
    def nearly_noiseless(*args, **options):
        return PrivacyEngine(*args, **options | {"noise_multiplier": 1e-9})

    monkeypatch.setattr(steps, "PrivacyEngine", nearly_noiseless)
    moved = {}
    for count in (1, 8):
        workload = workloads.resolve(name).build()
        before = [each.detach().clone() for each in workload.trained]
        Quietgrad().prepare(workload, count)()
        moved[count] = [b - a.detach() for a, b in zip(workload.trained, before, strict=True)]
    for one, eight in zip(moved[1], moved[8], strict=True):
        torch.testing.assert_close(one, eight, rtol=1e-3, atol=2e-7)
        assert one.abs().max() > 1e-5


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize("layout", ["default", "channels-last"])
def test_a_layout_holds_through_training(implementation, layout):
    workload = workloads.resolve("picture").build(4).in_layout(layout)
    step = implementation.prepare(workload, 1)
    step(), step()
    chosen = torch.channels_last if layout == "channels-last" else torch.contiguous_format
    assert workload.model[0].weight.is_contiguous(memory_format=chosen)
    assert workload.inputs[0].is_contiguous(memory_format=chosen)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
def test_a_loss_at_every_position_is_one_per_sample(implementation):
    workload = workloads.resolve("positions").build()
    assert workload.losses().shape == (4,)
    implementation.prepare(workload, 2)()


@pytest.mark.parametrize("count", [1, 2, 8])
def test_no_timed_step_is_verified(count, monkeypatch):
    """But the first is: nothing is known of the model then."""
    verified = []
    probe = verification.probe_layouts
    monkeypatch.setattr(
        verification, "probe_layouts", lambda *given: verified.append(1) or probe(*given)
    )
    step = Quietgrad().prepare(workloads.resolve("line").build(), count)
    step()
    assert len(verified) == 1
    for _ in range(20):
        step()
    assert len(verified) == 1


def test_a_workload_is_the_same_every_time():
    torch.manual_seed(7)
    first, second = (workloads.resolve("line").build() for _ in range(2))
    torch.testing.assert_close(first.inputs, second.inputs, rtol=0, atol=0)
    torch.testing.assert_close(first.model.weight, second.model.weight, rtol=0, atol=0)
    after = torch.rand(1)
    torch.manual_seed(7)
    assert torch.rand(1) == after  # the global generator is left alone
