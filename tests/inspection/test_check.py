"""`qg.check` names every fault, passes what is right, and leaves no trace."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import quietgrad as qg
from contract.stock import STOCK
from quietgrad import inspection
from quietgrad.inspection import Severity
from quietgrad.inspection.subject import Copies

from .broken import BROKEN, B, D, LastBatch, Prototypes, cross_entropy, data, plain


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_named(name):
    case = BROKEN[name]
    report = qg.check(case.model(), data(), case.losses, samples=B)
    assert not report.ok
    found = " ".join(f"{f.what} {f.remedy}" for f in report.faults if f.check == case.check)
    assert found, str(report)
    for words in case.says:
        assert words in found, found
    with pytest.raises(qg.QuietgradError, match=r"\[fault\]"):
        report.require_ok()


def test_what_is_right_passes():
    report = qg.check(plain(), data(), cross_entropy)
    assert report.ok, str(report)
    assert {f.verdict for f in report.findings} == {Severity.OK}
    report.require_ok()


def stock_models():
    """Of two implementations of attention, torch's own is checked by default."""
    for name in STOCK:
        yield pytest.param(name, marks=pytest.mark.slow if name.endswith("-eager") else ())


def test_what_has_no_rule_is_listed():
    report = qg.check(Prototypes(), data(), cross_entropy)
    assert report.ok, str(report)
    (coverage,) = report.coverage
    assert coverage.operations == ("per-sample fallback: cdist in the model's own forward",)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("name", [*stock_models()])
def test_stock_models_pass(name):
    model, batch, losses = STOCK[name]()
    model.train()
    report = qg.check(model, batch, losses)
    assert report.ok, str(report)
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {each.parameter for each in report.coverage} == trainable
    used = [each for each in report.coverage if each.strategy is not None]
    assert len(used) >= len(trainable) / 2
    if "reentrant" not in name:
        assert all(each.operations for each in used)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Dropout(), LastBatch())
    batch, before = data(), copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    qg.check(model, batch, cross_entropy)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[-1].last is None
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_holds_results_of_an_earlier_run_can_be_checked():
    model = plain()
    model.result = model(data()[0])  # not a leaf: cannot be deep-copied as it is
    assert qg.check(model, data(), cross_entropy).ok


def test_counters_are_noted():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(D, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            with torch.no_grad():
                self.calls += 1
            return self.head(x)

    report = qg.check(Counting(), data(), cross_entropy)
    assert report.ok, str(report)
    assert "'calls'" in next(f.what for f in report.findings if f.check == "buffers")


def test_unused_parameters_are_noted():
    model = plain()
    model.spare = nn.Linear(2, 2)
    report = qg.check(model, data(), cross_entropy)
    assert report.ok
    note = next(f for f in report.findings if f.check == "coverage")
    assert note.verdict is Severity.NOTE
    assert "'spare.weight' (2 such)" in note.what


def test_the_remedy_for_batch_norm_is_one_that_helps():
    model = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Linear(D, 3))
    assert "track_running_stats" not in str(qg.check(model, data(), cross_entropy))


def test_fixed_batch_norm_passes():
    model = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Linear(D, 3))
    model[1].eval()
    assert qg.check(model, data(), cross_entropy).ok


def test_bfloat16_autocast_passes():
    def losses(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch).float()

    assert qg.check(plain(), data(), losses).ok


def test_non_finite_losses_are_noted():
    x, y = data()
    x[1] = float("nan")
    report = qg.check(plain(), (x, y), cross_entropy)
    assert "sample 1 is nan" in next(f.what for f in report.findings if f.check == "loss")


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        ((torch.zeros(1, D), torch.zeros(1)), {}, "at least 2"),
        ("words", {}, "no tensor with samples.*select="),
        ((torch.zeros(4, D), torch.zeros(4).long()), {}, "all alike"),
        ((torch.randn(1, D).repeat(4, 1), torch.ones(4).long()), {}, "all alike"),
        (None, {"samples": 1}, "samples"),
        (None, {"clipping": "auto"}, "clipping"),
        (None, {"grouping": "all"}, "grouping"),
        (None, {"strategy": "gost"}, "strategy"),
    ],
)
def test_bad_arguments_are_refused(batch, options, message):
    with pytest.raises(ValueError, match=message):
        qg.check(plain(), data() if batch is None else batch, cross_entropy, **options)


def test_models_and_losses_of_the_wrong_type_are_refused():
    with pytest.raises(ValueError, match=r"model is a str: expected a torch.nn.Module"):
        qg.check("model", data(), cross_entropy)
    with pytest.raises(ValueError, match="loss_fn is a str: expected a function"):
        qg.check(plain(), data(), "loss")


def test_errors_in_the_loss_function_are_the_users():
    def losses(model, batch):
        raise KeyError("labels")

    with pytest.raises(KeyError, match="labels"):
        qg.check(plain(), data(), losses)


def test_a_refusal_in_a_check_is_a_finding(monkeypatch):
    def refusing(subject, captured):
        raise qg.QuietgradError("not like this")

    monkeypatch.setitem(inspection.run.CAPTURED, "sensitivity", refusing)
    report = qg.check(plain(), data(), cross_entropy)
    assert [(f.check, f.what) for f in report.faults] == [("sensitivity", "not like this")]


def test_a_scalar_loss_is_told_once():
    report = qg.check(plain(), data(), lambda model, batch: cross_entropy(model, batch).mean())
    assert [finding.check for finding in report.faults] == ["loss"]


def test_gradients_that_are_all_zero_are_not_taken_for_equal():
    report = qg.check(plain(), data(), lambda model, batch: cross_entropy(model, batch) * 0.0)
    assert next(f for f in report.findings if f.check == "exactness").verdict is Severity.SKIPPED


def test_nothing_is_kept_alive():
    model, (x, y) = plain(), data()
    alive = weakref.ref(model), weakref.ref(x)
    qg.check(model, (x, y), cross_entropy)
    del model, x
    gc.collect()
    assert [each() for each in alive] == [None, None]


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return checkpoint(self.net, x.requires_grad_(), use_reentrant=True)


def test_reentrant_checkpointing_passes():
    # Six columns and two samples: whose rows they are, only probes tell.
    report = qg.check(Recomputed(), (torch.randn(6, 6), torch.arange(6) % 3), cross_entropy)
    assert report.ok, str(report)


def test_parameters_that_a_forward_writes_are_copied_again():
    class Clamping(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(D, 3)

        def forward(self, x):
            self.head.weight.data.mul_(0.5)
            return self.head(x)

    model = Clamping()
    copies = Copies(model)
    copies.fresh()(data()[0])
    assert torch.equal(copies.fresh().head.weight, model.head.weight)
    assert copies.fresh().head.weight is copies.fresh().head.weight


def test_what_cannot_be_copied_is_named():
    model = plain()
    model.body.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"'body.lock' is a lock"):
        qg.check(model, data(), cross_entropy)


def test_results_in_a_list_can_be_copied():
    model = plain()
    model.history = [model(data()[0])]
    assert qg.check(model, data(), cross_entropy).ok


def test_a_report_is_plain_data_and_reads_well():
    report = qg.check(plain(), data(), cross_entropy, clipping="psac", grouping="layer-wise")
    content = report.as_dict()
    assert content["ok"] is True
    assert {f["check"] for f in content["findings"]} >= {"exactness", "sensitivity", "buffers"}
    first = content["coverage"][0]
    assert first["parameter"] == "body.0.weight"
    assert first["operations"] == ("linear in module 'body.0'",)
    assert "[ok] exactness" in str(report)
