"""What the engine computes on a device is what it computes on the CPU; how rarely it waits.

Torch has no recurrent layers without gradients for devices that are written in Python: these are
trained only.
"""

import copy

import pytest
import torch
from tests.devices import pretend
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.capture.verification import Schedule
from quietgrad.errors import ChangedSampleError

pretend.register()  # before the first backward pass, for which torch counts the devices

SAMPLES, CLASSES = 6, 3


@pytest.fixture(autouse=True)
def _same_noise(request):
    if "waits" in request.node.name:
        yield
    else:
        with pretend.noise_of_the_host():
            yield


class Tagger(nn.Module):
    """Looks up tokens, runs over them, and has a head that is tied to the table."""

    def __init__(self, kind):
        super().__init__()
        self.table, self.rnn = nn.Embedding(11, 8), kind(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.rnn(self.table(ids))[0]).mean(1)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.block(x + self.position).mean(1))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        hidden = checkpoint(self.first, x, use_reentrant=False)
        return self.last(hidden.tanh())


def _gpt2(rate=0.0):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 30, "n_positions": 8}
    dropout = {"resid_pdrop": rate, "embd_pdrop": rate, "attn_pdrop": rate}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, **tokens, use_cache=False))


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    more = {"num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 30}
    return LlamaForCausalLM(LlamaConfig(**sizes, **more, **tokens, use_cache=False))


def _lora():
    from peft import LoraConfig, get_peft_model

    return get_peft_model(_gpt2(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))


def _images():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


def _numbers(*shape):
    return lambda: torch.randn(SAMPLES, *shape)


def _tokens(length, most):
    return lambda: torch.randint(1, most, (SAMPLES, length))


MODELS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
        _numbers(8),
    ),
    "images": (_images, _numbers(3, 9, 9)),
    "lstm, tied": (lambda: Tagger(nn.LSTM), _tokens(5, 11)),
    "gru, tied": (lambda: Tagger(nn.GRU), _tokens(5, 11)),
    "attention": (Attending, _numbers(5, 8)),
    "checkpointing": (Checkpointed, _numbers(8)),
    "gpt2": (_gpt2, _tokens(6, 30)),
    "gpt2, dropout": (lambda: _gpt2(0.1), _tokens(6, 30)),
    "llama": (_llama, _tokens(6, 30)),
    "lora": (_lora, _tokens(6, 30)),
}
GROUPINGS = ["all-layer", "layer-wise"]
CLIPPINGS = ["abadi", "auto-s", "auto-v", "psac"]


def build(name):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x = make(), inputs()
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        model(x)
    return model.train(), x


def move(model, place):
    """On a pretend device ``to`` makes new parameters, of which none is shared."""
    first, shared = {}, {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            shared[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    model = copy.deepcopy(model).to(place)
    for name, original in shared.items():
        path, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(path), attribute, model.get_parameter(original))
    return model


def losses_of(model, x):
    outputs = model(x)
    logits = getattr(outputs, "logits", outputs)
    logits = logits if logits.ndim == 2 else logits.mean(1)
    classes = torch.arange(len(x), device=x.device) % CLASSES
    return F.cross_entropy(logits, classes, reduction="none")


def compare(name, change=None, tolerance=1e-5, **options):
    """The clipped sums, norms and weights of both devices."""
    model, x = build(name)
    if change is not None:
        change(x)
    found = []
    for place in ("cpu", pretend.NAME):
        own, there = move(model, place), x.to(place)
        found.append(qg.clipped_sum(own, lambda m=own, t=there: losses_of(m, t), **options))
    here, there = found
    assert here.nonfinite == there.nonfinite
    for one, other in ((here.norms, there.norms), (here.weights, there.weights)):
        assert other.device.type == pretend.NAME or not len(other)
        torch.testing.assert_close(one, other.cpu(), rtol=tolerance, atol=tolerance, equal_nan=True)
    for parameter, total in here.grads.items():
        assert there.grads[parameter].device.type == pretend.NAME
        own = there.grads[parameter].cpu()
        torch.testing.assert_close(total, own, rtol=tolerance, atol=tolerance)
    return here


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize(
    "name", [name for name in MODELS if "tied" not in name and "dropout" not in name]
)
def test_clipped_sums_are_those_of_the_cpu(name, grouping):
    compare(name, grouping=grouping)


@pytest.mark.every_nth(6)
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("strategy", ["ghost", "keep", "discard"])
def test_whatever_is_clipped_and_however(clipping, grouping, strategy):
    compare("images", clipping=clipping, grouping=grouping, strategy=strategy)


def _break(x):
    x[1], x[2, 0] = torch.nan, torch.inf


def _silence(x):
    x[3] = 0.0


def _inflate(x):
    x[0], x[4] = x[0] * 1e25, x[4] * 1e-25


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("change", [_break, _silence, _inflate])
@pytest.mark.parametrize("name", ["mlp", "images", "attention"])
def test_samples_out_of_the_ordinary(name, grouping, change):
    """What is found out after the sums were made is done again."""
    compare(name, change, clipping="abadi", grouping=grouping)


def test_parts_that_cancel_each_other_out():
    """Gram matrices lose the norm of such a sample."""
    torch.manual_seed(0)
    half = torch.randn(SAMPLES, 4, 8)
    half[2] = 1e3
    x = torch.cat([half, -half + 1e-3 * torch.randn_like(half)], 1)
    found = []
    for place in ("cpu", pretend.NAME):
        torch.manual_seed(1)
        layer, own = nn.Linear(8, 3, bias=False).to(place), x.to(place)
        found.append(
            qg.clipped_sum(layer, lambda n=layer, t=own: n(t).sum((1, 2)), strategy="ghost")
        )
    here, there = found
    torch.testing.assert_close(here.norms, there.norms.cpu(), rtol=1e-5, atol=0)
    torch.testing.assert_close(here.grads["weight"], there.grads["weight"].cpu())


def _scale(x):
    x[0] *= 5


def _scale_uncounted(x):
    x.data[0] *= 5


@pytest.mark.parametrize("write", [_scale, _scale_uncounted])
def test_a_sample_that_is_written_to_before_the_step_is_not_above_its_radius(write):
    """Whether gradients can be used as they came is read late: they may be made of other data."""
    model, x = build("mlp")
    x[1] = torch.nan
    model = move(model, pretend.NAME)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)  # makes up for the batch size
    options = {"sampling": "full-batch", "adjacency": "replace-one", "clipping": "abadi"}
    options |= {"batch_size": 2, "radius": 1e-2, "noise_multiplier": 1e-6, "delta": 1e-3}
    engine = qg.PrivacyEngine(model, optimizer, TensorDataset(x[:2]), **options)
    for batch in engine.batches():
        for (own,) in batch:
            there = own.to(pretend.NAME)
            engine.backward(losses_of(model, there))
            write(there)
        if write is _scale:
            with pytest.raises(ChangedSampleError, match="was changed in place after"):
                engine.step()
            engine.discard_batch()
        else:
            engine.step()
    moved = [(p - old).cpu().norm() for p, old in zip(model.parameters(), before, strict=True)]
    assert torch.stack(moved).norm() <= 1.001e-2
    assert engine.steps_taken == (write is not _scale)


class Moved(nn.Module):
    """Its frozen half, which draws, may be elsewhere."""

    def __init__(self):
        super().__init__()
        self.frozen, self.drop = nn.Linear(8, 8).requires_grad_(False), nn.Dropout(0.5)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.drop(self.frozen(x.to(self.frozen.weight.device))).cpu())


def test_what_is_moved_after_attaching_draws_the_same_when_it_is_repeated():
    model, data = Moved(), TensorDataset(torch.randn(SAMPLES, 8))
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    options = {"sampling": "full-batch", "adjacency": "replace-one", "verification": "every"}
    options |= {"batch_size": SAMPLES, "noise_multiplier": 1.0, "delta": 1e-3}
    engine = qg.PrivacyEngine(model, optimizer, data, **options)
    for place in ("cpu", pretend.NAME):
        model.frozen.to(place)
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(losses_of(model, x))
            engine.step()
    assert engine.steps_taken == 2


# -- training -------------------------------------------------------------------------------------

METHODS = {
    "plain": {},
    "adaptive radius": {"radius": qg.AdaptiveRadius(count_noise=2.0), "clipping": "abadi"},
    "momentum": {"momentum": qg.InnerOuter(outer=0.9, outer_means="carried")},
    "micro-batches": {"physical_batch_size": 2},
}


def train(place, name, kind, steps=3, **options):
    model, x = build(name)
    model = move(model, place)
    options = METHODS[kind] | options
    data = TensorDataset(x, torch.arange(SAMPLES))
    engine = qg.PrivacyEngine(
        model,
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        data,
        batch_size=SAMPLES,
        sampling="full-batch",
        noise_multiplier=1.0,
        delta=1e-3,
        **{"seed": 1} | options,
    )
    for _ in range(steps):
        for batch in engine.batches():
            for own, _ in batch:
                there = own.to(place)
                engine.backward(lambda t=there: losses_of(model, t))
            engine.step()
    return model, engine


@pytest.mark.every_nth(9)
@pytest.mark.filterwarnings("ignore:seed=")
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("kind", ["plain", "adaptive radius", "momentum", "micro-batches"])
@pytest.mark.parametrize("name", ["mlp", "images", "lstm, tied", "gru, tied", "gpt2"])
def test_training_is_that_of_the_cpu(name, kind, grouping):
    if "radius" in METHODS[kind] and grouping == "layer-wise":
        pytest.skip("one radius for all")
    if kind == "momentum" and "tied" in name:
        pytest.skip("the device has no recurrent layers without gradients")
    here, there = (
        train(place, name, kind, grouping=grouping)[0] for place in ("cpu", pretend.NAME)
    )
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:seed=")
def test_samples_that_are_not_finite_are_counted_once():
    for options in ({}, {"physical_batch_size": 2}):
        model, x = build("mlp")
        x[1], x[4] = torch.nan, torch.nan
        counts = []
        for place in ("cpu", pretend.NAME):
            own = move(model, place)
            engine = qg.PrivacyEngine(
                own,
                torch.optim.SGD(own.parameters(), lr=0.1),
                TensorDataset(x),
                batch_size=SAMPLES,
                sampling="full-batch",
                noise_multiplier=1.0,
                delta=1e-3,
                seed=1,
                **options,
            )
            for _ in range(2):
                for batch in engine.batches():
                    for (some,) in batch:
                        engine.backward(losses_of(own, some.to(place)))
                    engine.step()
            counts.append(engine.nonfinite_samples)
        assert counts == [4, 4]


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", ["mlp", "images", "lora"])
def test_autocast_of_a_device_is_that_of_the_cpu(name, grouping):
    model, x = build(name)
    found = []
    for place in ("cpu", pretend.NAME):
        own, there = move(model, place), x.to(place)

        def losses(model=own, x=there, place=place):
            with torch.autocast(place, torch.bfloat16):
                return losses_of(model, x).float()

        found.append(qg.clipped_sum(own, losses, grouping=grouping))
    here, there = found
    with torch.autocast(pretend.NAME, torch.bfloat16):
        assert (there.norms[:1] @ there.norms[:1].mT).dtype == torch.bfloat16
    torch.testing.assert_close(here.norms, there.norms.cpu(), rtol=1e-2, atol=0)
    for parameter, total in here.grads.items():
        torch.testing.assert_close(total, there.grads[parameter].cpu(), rtol=2e-2, atol=1e-2)


class Talkative(nn.Module):
    """Prints what precision it is called in."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, CLASSES)

    def forward(self, x):
        outputs = self.layer(x)
        print(outputs.dtype, *map(torch.is_autocast_enabled, (pretend.NAME, "cpu")))
        return outputs


@pytest.mark.parametrize(
    ("on", "told"),
    [(pretend.NAME, "torch.bfloat16 True False"), ("cpu", "torch.float32 False True")],
)
def test_repeats_run_in_the_autocast_of_the_device(on, told, capsys):
    model, x = Talkative().to(pretend.NAME), torch.randn(SAMPLES, 8)
    engine = qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(x),
        batch_size=SAMPLES,
        sampling="full-batch",
        noise_multiplier=1.0,
        delta=1e-3,
    )
    for batch in engine.batches():
        for (own,) in batch:
            with torch.autocast(on, torch.bfloat16):
                losses = model(own.to(pretend.NAME)).float().square().sum(1)
            engine.backward(losses)
        engine.step()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert {*lines} == {told}


def test_reports_of_check_are_those_of_the_cpu():
    reports = []
    for place in ("cpu", pretend.NAME):
        model, x = build("mlp")
        model = move(model, place)
        reports.append(qg.check(model, (x.to(place),), lambda m, batch: m(*batch).square().sum(1)))
    assert [report.ok for report in reports] == [True, True]


def test_a_verified_step_draws_from_the_device_what_its_forward_does():
    after = []
    for verification in ("once", "every"):
        model, engine = train(
            pretend.NAME, "gpt2, dropout", "plain", verification=verification, seed=None
        )
        x = build("gpt2, dropout")[1].to(pretend.NAME)
        states = {}
        for batch in engine.batches():
            for _ in batch:
                torch.manual_seed(0)
                pretend.register().manual_seed_all(3)
                losses = losses_of(model, x)
                states = torch.get_rng_state(), pretend.register().get_rng_state()
                engine.backward(losses)
        assert torch.equal(states[0], torch.get_rng_state())
        assert torch.equal(states[1], pretend.register().get_rng_state())
        after.append(states[1])
        engine.discard_batch()
    assert torch.equal(*after)


# -- how rarely a device is waited for ------------------------------------------------------------

# Figures of benchmarks/device_counts.py are of other sizes; these are limits for the small models.
CEILINGS = {"images": (0, 6.0), "attention": (0, 5.0), "gpt2": (1, 2.6), "llama": (1, 2.6)}


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", CEILINGS)
def test_a_steady_step_waits_once(name, grouping, monkeypatch):
    own_syncs, launches = CEILINGS[name]
    plain, x = build(name)
    plain, x = move(plain, pretend.NAME), x.to(pretend.NAME)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, foreach=True)
    with pretend.counting() as ordinary:
        losses_of(plain, x).sum().backward()
        optimizer.step()
    monkeypatch.setattr(Schedule, "is_due", lambda self, samples: False)
    model, engine = train(pretend.NAME, name, "plain", grouping=grouping, noise="fast", seed=None)
    batch = next(iter(engine.batches()))
    next(iter(batch))
    with pretend.counting() as counts:
        engine.backward(losses_of(model, x))
        engine.step()
    assert counts.sync_count <= 1 + own_syncs, counts.by_line(counts.syncs)
    most = launches * ordinary.launch_count
    assert counts.launch_count <= most, counts.by_line(counts.launches)


# All verdicts of a probe or of a repeat are asked for before one is read.
VERIFIED = ["mlp", "images", "attention", "gpt2", "gpt2, dropout", "llama"]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", VERIFIED)
def test_a_verified_step_waits_seldom(name, grouping):
    model, engine = train(
        pretend.NAME,
        name,
        "plain",
        grouping=grouping,
        noise="fast",
        seed=None,
        verification="every",
    )
    x = build(name)[1].to(pretend.NAME)
    batch = next(iter(engine.batches()))
    next(iter(batch))
    with pretend.counting() as counts:
        engine.backward(losses_of(model, x))
        engine.step()
    assert counts.sync_count <= 20, counts.by_line(counts.syncs)
