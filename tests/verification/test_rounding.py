"""Kernels round otherwise for an odd number of samples: a slope may change, without mixing."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg
from quietgrad.capture import independence
from quietgrad.errors import SampleMixingError

from .test_large_batches import train

BATCH = 19


class _Rounded(torch.autograd.Function):
    """The values, moved by about their rounding error, the other way for odd numbers of samples."""

    @staticmethod
    def forward(ctx, values):
        return values + 3e-8 * (-1 if len(values) % 2 else 1)

    @staticmethod
    def backward(ctx, grad):
        return grad


class AtAKink(nn.Module):
    """One sample of the data has hidden values that are nothing but rounding, before a ReLU."""

    def __init__(self, batch, sample, rate=0.0):
        super().__init__()
        torch.manual_seed(1)
        x = torch.randn(batch, 4)[sample]  # as in `train`
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(rate)
        with torch.no_grad():
            self.first.bias[0] = -self.first.weight[0] @ x

    def forward(self, x):
        return self.last(self.dropout(torch.relu(_Rounded.apply(self.first(x)))))


@pytest.mark.parametrize("batch", [14, 18, 30, 38])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_sample_at_a_kink_is_not_refused(batch, rate, monkeypatch):
    monkeypatch.setattr(independence, "_TREMBLES", 100)  # that none of them shows it is by chance
    for sample in range(0, batch, 5):
        train(AtAKink(batch, sample, rate), batch=batch)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, change):
        ctx.change = change
        return values.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


class Changed(nn.Module):
    """Gradients of hidden values are changed on their way."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.change = nn.Linear(4, 8), nn.Linear(8, 2), change

    def forward(self, x):
        return self.last(_Backward.apply(torch.relu(self.first(x)), self.change))


def at(place, factor):
    def change(grad):
        grad = grad.clone()
        if -len(grad) <= place < len(grad):
            grad[place] = grad[place] * factor(len(grad))
        return grad

    return change


CHANGES = {
    "all by their number": lambda grad: grad / len(grad),
    "the first by the number": at(0, lambda count: count),
    "the last by the number": at(-1, lambda count: count),
    "the first": at(0, lambda count: 2),
    "one place": at(9, lambda count: 2),
    "the last place of a whole batch": at(BATCH - 1, lambda count: 2),
    "all, unless the batch is whole": lambda grad: grad * (1 + (len(grad) < BATCH)),
    "the next sample's": lambda grad: grad + grad.roll(1, 0),
    "the largest": lambda grad: grad / grad.abs().max(),
    "by parity": lambda grad: grad * (1 if len(grad) % 2 else -1),
    "by four": lambda grad: grad * (1 + len(grad) % 4),
    "the last of an odd number": lambda grad: at(-1, lambda count: 1 + count % 2)(grad),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CHANGES)
def test_gradients_that_do_depend_on_others_are_refused(name, seed):
    with pytest.raises(SampleMixingError):
        train(Changed(CHANGES[name]), batch=BATCH)


class Gated(nn.Module):
    """A closed gate: outputs do not show by what its gradient is multiplied."""

    def __init__(self, size_of):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.gate, self.size_of = nn.Parameter(torch.zeros(8)), size_of

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last(h + self.gate * h * self.size_of(len(x)))


SIZES = {
    "parity": (lambda count: 30.0 if count % 2 else -30.0),
    "four": (lambda count: float(count % 4)),
    "many": (lambda count: float(count >= 14)),
}


@pytest.mark.parametrize("batch", [18, 19, 22])  # half of them is odd, or even
@pytest.mark.parametrize("name", SIZES)
def test_a_closed_gate_that_depends_on_the_number_is_refused(name, batch):
    refused = 0
    for _ in range(4):
        try:
            train(Gated(SIZES[name]), batch=batch)
        except SampleMixingError:
            refused += 1
    assert refused  # halves of an odd number may be even


def _pad(rows):
    longest = max(map(len, rows))
    ids = torch.stack([F.pad(row, (0, longest - len(row))) for row in rows])
    return ids, ids.ne(0).long()


@pytest.mark.every_nth(8)
@pytest.mark.parametrize("seed", range(8))
def test_adapters_on_padded_texts_under_autocast_are_not_refused(seed):
    """Gradients of few entries, of other lengths: they have the digits of bfloat16."""
    peft, hf = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=128, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    adapters = peft.LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(hf.LlamaForCausalLM(config), adapters)
    rows = [torch.randint(4, 64, (int(torch.randint(5, 9, ())),)) for _ in range(64)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = qg.PrivacyEngine(
        model, torch.optim.SGD(trained, lr=0.1), rows, batch_size=32, noise_multiplier=1.0,
        delta=1e-3, collate_fn=_pad, seed=seed,
    )  # fmt: skip
    for ids, mask in next(iter(engine.batches())):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        losses = F.cross_entropy(logits[:, :-1].float().mT, ids[:, 1:], reduction="none")
        engine.backward((losses * mask[:, 1:]).sum(1))
    engine.step()
    assert engine.steps_taken == 1
