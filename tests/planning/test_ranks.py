"""`qg.plan_ranks`: what one rank will hold, send and compute, also of models that fit nowhere."""

import json

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from tests.distributed import plan_jobs
from torch import nn

import quietgrad as qg
from quietgrad.planning.meta import (
    FlopCounter,
    KnownValues,
    functions_on_meta,
    running_on_meta,
    without_numbers,
)
from quietgrad.planning.modes import parse_mode
from quietgrad.planning.rank_trace import trace_one_sample

from .measured import measured_peaks
from .models import MODELS, SAMPLES


def llama(layers=2, width=64, heads=4, inner=128, words=96, positions=32, **options):
    with torch.device("meta"):
        config = hf.LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=inner,
            vocab_size=words,
            max_position_embeddings=positions,
            use_cache=False,
            **options,
        )
        return hf.LlamaForCausalLM(config).train()


def next_token(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(1)


def ids(positions=32, samples=1):
    return torch.zeros(samples, positions, dtype=torch.long)


def plan(size="small", **options):
    given = {"world": 2, "physical_batch_size": 8} | options
    batch = plan_jobs.data(size, 2).tensors[0]
    return qg.plan_ranks(plan_jobs.whole(size), batch, plan_jobs.losses, **given)


@pytest.fixture(scope="module")
def plans():
    """By mode."""
    modes = ["data-parallel", "fsdp2", "hsdp:2x4", "pipeline:4", "pipeline:2:gpipe"]
    found = {mode: plan(mode=mode, world=8) for mode in modes}
    mode = "tensor-parallel:4"
    return found | {mode: plan(mode=mode, world=8, tensor_plan=plan_jobs.TENSOR_PLAN)}


def total(plan, moment="micro-batch"):
    return plan.rank.memory[moment].total


# -- what is seen without numbers is what happens with them ----------------------------------------


@pytest.mark.parametrize("make", MODELS.values())
def test_operations_are_those_of_training(make):
    """Forward and backward of ordinary training; only matrix products and the like are counted."""
    torch.manual_seed(0)
    model, batch, loss_fn = make()
    traced = trace_one_sample(without_numbers(model), model, batch, loss_fn, [])
    counter = FlopCounter()
    with counter:
        losses = loss_fn(model, batch)
        forward = counter.total
        losses.sum().backward()
    backward = sum(work.inputs + work.weights for work in traced.work)
    assert SAMPLES * traced.end.operations == pytest.approx(forward, rel=0.05)
    # torch computes a gradient of the first layer's inputs, where they have one, and looks at
    # biases apart.
    assert SAMPLES * backward == pytest.approx(counter.total - forward, rel=0.1)


@pytest.mark.parametrize("make", MODELS.values())
def test_activations_are_those_of_a_pass(make):
    torch.manual_seed(0)
    model, batch, loss_fn = make()
    found = qg.plan_ranks(model, batch, loss_fn, world=1, physical_batch_size=SAMPLES)
    (measured,) = measured_peaks(model, batch, loss_fn, ["all-layer"])
    moment = found.rank.memory["micro-batch"]
    predicted = moment["activations and factors"] + moment["clipped sums"]
    assert predicted == pytest.approx(measured, rel=0.1)


def test_values_that_follow_from_constants_are_known():
    with functions_on_meta(), KnownValues():
        counted = torch.arange(6, device="meta").view(2, 3)
        assert counted.sum().item() == 15
        assert (counted[0] == torch.tensor([0, 1, 2], device="meta")).all()
        assert (counted > 3).nonzero().shape == (2, 2)
        counted.mul_(2)
        assert counted.max().item() == 10
        drawn = torch.rand(3, device="meta")
        with pytest.raises(qg.errors.UnsupportedOperationError, match=r"shape \(\)"):
            drawn.sum().item()
        counted.copy_(torch.empty(2, 3, device="meta"))
        with pytest.raises(qg.errors.UnsupportedOperationError):
            counted.max().item()


def test_the_model_is_left_as_it_was():
    model = plan_jobs.whole("small")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    qg.plan_ranks(model, plan_jobs.data("small", 2).tensors[0], plan_jobs.losses, world=2)
    assert not model._forward_pre_hooks
    assert not model.blocks[0]._forward_hooks
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    copy = without_numbers(model)
    assert {parameter.device.type for parameter in copy.parameters()} == {"meta"}
    with running_on_meta(copy, model):
        assert copy(torch.zeros(1, 4, dtype=torch.long, device="meta")).shape == (1, 4, 500)


# -- shapes that fit on no machine -----------------------------------------------------------------


def test_a_model_that_fits_nowhere():
    """Two layers of a 7B Llama: 600 million parameters, of which there is no number anywhere."""
    model = llama(2, 4096, 32, 11008, 32000, 1024)
    options = {"mode": "fsdp2", "grouping": "block-wise", "compute_type": torch.bfloat16}
    found = qg.plan_ranks(model, ids(1024), next_token, world=8, **options)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert found.parameters == count == 666_914_816
    memory = found.rank.memory["micro-batch"]
    assert memory["weights"] == pytest.approx(4 * count / 8, rel=0.01)
    assert memory["optimizer state"] == pytest.approx(8 * count / 8, rel=0.01)
    block = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert found.rank.memory["verified"]["gathered weights"] == 2 * (count - block)
    assert found.device == "cuda"
    # 2 operations a weight and token forward, twice that backward; attention besides.
    computed = count - 32000 * 4096  # all but the table of words
    assert found.rank.operations.forward == pytest.approx(2 * 1024 * computed, rel=0.05)
    assert 0.1 < found.rank.operations.share < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(32, 4096, 32, 11008), (80, 8192, 64, 28672)])
def test_whole_shapes(shape):
    found = qg.plan_ranks(
        llama(*shape, 32000, 1024, num_key_value_heads=8),
        ids(1024),
        next_token,
        world=8,
        mode="fsdp2",
        compute_type=torch.bfloat16,
    )
    assert found.parameters > 5e9


# -- how ranks share -------------------------------------------------------------------------------


def test_sharing_divides_what_ranks_hold(plans):
    held = {mode: found.rank.memory["release"] for mode, found in plans.items()}
    whole = held["data-parallel"]
    assert held["fsdp2"]["weights"] == pytest.approx(whole["weights"] / 8, rel=0.05)
    assert held["hsdp:2x4"]["clipped sums"] == pytest.approx(whole["clipped sums"] / 4, rel=0.05)
    assert held["tensor-parallel:4"]["weights"] < whole["weights"] / 3
    stages = plans["pipeline:4"].ranks
    assert len(stages) == 4
    assert sum(stage.parameters for stage in stages) == plans["data-parallel"].parameters
    assert [stage.name for stage in stages] == [f"stage {i} of 4" for i in range(4)]


def test_noise_is_drawn_once(plans):
    for mode, found in plans.items():
        drawn = sum(rank.noise_values for rank in found.ranks) * 8 / len(found.ranks)
        whole = found.parameters
        if mode.startswith("tensor"):  # for what is whole each rank draws, and one is kept
            assert whole <= drawn < 1.1 * whole
        else:
            assert drawn == pytest.approx(whole, rel=0.01)


def test_data_parallel_sends_what_an_all_reduce_does():
    found = plan(world=8)
    sums = 4 * found.parameters
    assert sum(each.size for each in found.rank.sent) == pytest.approx(2 * 7 / 8 * sums, rel=1e-4)


def test_later_stages_have_fewer_micro_batches_in_flight():
    first = plan("deep", mode="pipeline:2", batch_size=64).ranks[0]
    gpipe = plan("deep", mode="pipeline:2:gpipe", batch_size=64).ranks[0]
    name = "activations and factors"
    assert first.memory["micro-batch"][name] < 0.5 * gpipe.memory["micro-batch"][name]


def test_block_wise_holds_less_and_is_advised():
    """With activation checkpointing the factors of all layers are most of what is held."""
    model = llama(8, 64, 4, 256, 32, 256)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    options = {"world": 2, "mode": "fsdp2", "physical_batch_size": 64}
    layered, blocked = (
        qg.plan_ranks(model, ids(256), next_token, grouping=grouping, **options)
        for grouping in ("all-layer", "block-wise")
    )
    assert total(blocked) < 0.7 * total(layered)
    assert layered.advice[0].startswith("grouping='block-wise' holds")
    assert not blocked.advice[0].startswith("grouping=")
    assert any("A micro-batch that is verified needs" in text for text in layered.advice)


def test_memory_decides_how_many_samples_run_at_once():
    found = plan(physical_batch_size=None, memory="300MB")
    assert found.rank.peak <= 300e6 * 3 / 4
    more = plan(physical_batch_size=found.physical_batch_size + 1)
    assert more.rank.peak > 300e6 * 3 / 4
    few = plan(physical_batch_size=None, memory="300MB", batch_size=4)
    assert few.physical_batch_size == 2  # a rank has no more of a batch of 4


def test_too_little_memory_is_told_with_what_would_fit():
    found = plan(physical_batch_size=64, memory="200MB")
    assert any("would fit (physical_batch_size=" in text for text in found.advice)
    found = plan(physical_batch_size=1, memory="20MB", world=8)
    assert any("not even one sample fits" in text for text in found.advice)
    assert any("mode='fsdp2' would need" in text for text in found.advice)


def test_frozen_weights_are_held_and_not_trained():
    model = plan_jobs.whole("small")
    model.blocks.requires_grad_(False)
    batch = plan_jobs.data("small", 2).tensors[0]
    found = qg.plan_ranks(model, batch, plan_jobs.losses, world=2, mode="fsdp2").rank
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert found.trained == pytest.approx(trained / 2, rel=0.01)
    assert found.parameters > 4 * found.trained
    sent = {each.collective: each.size for each in found.sent}
    assert sent["reduce-scatter"] == pytest.approx(4 * trained / 2, rel=0.01)


def test_a_plan_as_text_and_as_data(plans):
    for mode, found in plans.items():
        text = str(found)
        for words in ("One rank holds", "One rank sends", "One rank computes", "values of noise"):
            assert words in text, mode
        assert max(map(len, text.splitlines())) <= 80
        data = json.loads(json.dumps(found.as_dict()))
        assert data["rank"]["peak"] == found.rank.peak
        assert data["mode"]["world"] == 8
    assert "of 4, which holds most" in str(plans["pipeline:4"])


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "world", "words"),
    [
        ("fsdp3", 8, "is unknown"),
        ("fsdp2:2", 8, "is unknown"),
        ("hsdp", 8, "is unknown"),
        ("hsdp:3x2", 8, "expected copies times ranks to be 8"),
        ("tensor-parallel:3", 8, "no multiple"),
        ("pipeline:0", 8, "is unknown"),
        ("pipeline:2:zero-bubble", 8, "is unknown"),
        ("fsdp2", 0, "world=0"),
        (None, 8, "is unknown"),
    ],
)
def test_modes_that_are_none(mode, world, words):
    with pytest.raises(ValueError, match=words):
        parse_mode(mode, world)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "pipeline:8", "world": 8}, "it has 4 blocks"),
        ({"mode": "tensor-parallel:2"}, "does not say which layers"),
        ({"mode": "tensor-parallel:2", "tensor_plan": {"nothing": "colwise"}}, "no linear layer"),
        ({"mode": "tensor-parallel:2", "tensor_plan": {"head": "diagonal"}}, "expected 'colwise'"),
        ({"tensor_plan": {"head": "colwise"}}, "it is for tensor-parallel"),
        ({"mode": "pipeline:2", "grouping": "layer-wise"}, "each stage clips by itself"),
        ({"grouping": "nothing"}, "unknown grouping"),
        ({"compute_type": torch.bfloat16}, "gathered weights"),
        ({"physical_batch_size": 0}, "physical_batch_size=0"),
        ({"memory": "4"}, "too small"),
        ({"device": "nowhere"}, "device='nowhere'"),
    ],
)
def test_arguments_that_make_no_sense(options, words):
    with pytest.raises(ValueError, match=words):
        plan(**options)


def test_parts_that_cannot_be_equal():
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))
    options = {"mode": "tensor-parallel:2", "tensor_plan": {"0": "colwise", "2": "rowwise"}}
    with pytest.raises(ValueError, match="a dimension of 9"):
        qg.plan_ranks(model, torch.randn(2, 6), lambda m, x: m(x).sum(1), world=2, **options)


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.one(x) if self.one(x).sum() > 0 else self.other(x)


def test_a_model_that_asks_for_numbers():
    with pytest.raises(qg.errors.UnsupportedOperationError, match="forward of a Asking"):
        qg.plan_ranks(Asking(), torch.randn(2, 4), lambda m, x: m(x).sum(1), world=2)


def test_losses_that_are_not_one_per_sample():
    model = nn.Linear(4, 4)
    with pytest.raises(qg.errors.LossError):
        qg.plan_ranks(model, torch.randn(2, 4), lambda m, x: m(x).mean(), world=2)
    with pytest.raises(ValueError, match="one loss per sample"):
        qg.plan_ranks(model, torch.randn(2, 4), lambda m, x: m(x).flatten(), world=2)


def test_a_model_on_meta_is_planned_for_ranks_only():
    with pytest.raises(ValueError, match="plan_ranks"):
        qg.plan(llama(), ids(), next_token, memory="1GB")
