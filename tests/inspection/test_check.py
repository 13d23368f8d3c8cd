"""`qg.check` names every fault, passes what is right, and leaves no trace."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg
from contract.stock import STOCK
from quietgrad.inspection import Verdict

from .broken import BROKEN, B, D, LastBatch, Wrapped, cross_entropy, data, plain


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
    assert {f.verdict for f in report.findings} == {Verdict.OK}
    report.require_ok()


@pytest.mark.parametrize("name", STOCK)
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


RANDOM = {
    "dropout": lambda: nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "functional dropout": lambda: Wrapped(lambda x: F.dropout(x, 0.5)),
    "feature dropout": lambda: Wrapped(lambda x: F.dropout1d(x.unsqueeze(2), 0.5).squeeze(2)),
    "noise on activations": lambda: Wrapped(lambda x: x + torch.randn_like(x)),
    "one draw for the whole batch": lambda: Wrapped(lambda x: x * torch.rand(())),
    "stochastic depth": lambda: Wrapped(lambda x: x * (0.9 + torch.rand(len(x), 1)).floor()),
}


@pytest.mark.parametrize("name", RANDOM)
def test_randomness_is_no_fault(name):
    report = qg.check(RANDOM[name](), data(), cross_entropy)
    assert report.ok, str(report)
    assert "switched off" in report.findings[-1].what


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 1, dropout=0.5, batch_first=True)
        self.recurrent = nn.LSTM(D, D, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(D, 3)

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, 4, -1) * torch.arange(1.0, 5.0).view(1, 4, 1)
        attended, _ = self.attention(x, x, x)
        outputs, _ = self.recurrent(attended)
        return self.head(outputs[:, -1])


def test_dropout_inside_layers():
    report = qg.check(Attending(), data(), cross_entropy)
    assert report.ok, str(report)
    assert "MultiheadAttention" in report.findings[-1].what
    assert "LSTM" in report.findings[-1].what


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
    assert note.verdict is Verdict.NOTE
    assert "'spare.weight' (2 such)" in note.what


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


def test_a_batch_of_its_own_kind():
    words = ["a", "bb", "ccc", "dddd"]

    def losses(model, batch):
        return model(torch.tensor([[float(len(w))] * D for w in batch["words"]])).pow(2).sum(1)

    def select(batch, places):
        return {"words": [batch["words"][i] for i in places], "n": torch.zeros(len(places))}

    batch = {"words": words, "n": torch.zeros(4)}
    assert qg.check(plain(), batch, losses, select=select).ok


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        ((torch.zeros(1, D), torch.zeros(1)), {}, "at least 2"),
        ("words", {}, "no tensor with samples"),
        (None, {"samples": 1}, "samples"),
        (None, {"clipping": "auto"}, "clipping"),
        (None, {"grouping": "all"}, "grouping"),
        (None, {"strategy": "gost"}, "strategy"),
    ],
)
def test_bad_arguments_are_refused(batch, options, message):
    with pytest.raises(ValueError, match=message):
        qg.check(plain(), data() if batch is None else batch, cross_entropy, **options)


def test_errors_in_the_loss_function_are_the_users():
    def losses(model, batch):
        raise KeyError("labels")

    with pytest.raises(KeyError, match="labels"):
        qg.check(plain(), data(), losses)


def test_a_report_is_plain_data_and_reads_well():
    report = qg.check(plain(), data(), cross_entropy, clipping="psac", grouping="layer-wise")
    content = report.as_dict()
    assert content["ok"] is True
    assert {f["check"] for f in content["findings"]} >= {"exactness", "sensitivity", "buffers"}
    first = content["coverage"][0]
    assert first["parameter"] == "body.0.weight"
    assert first["operations"] == ("linear in module 'body.0'",)
    assert "[ok] exactness" in str(report)
