"""Block-wise, uniform and by boundaries: the blocks each model has, and how they are merged."""

import pytest
from torch import nn
from torch.nn.utils import parametrizations

from quietgrad.grouping import BlockWise, Boundaries, Uniform, resolve
from quietgrad.grouping.blocks import block_paths

from .zoo import MODELS, WITHOUT_BLOCKS, Residual

BLOCKS = {
    "resnet": ["stage1.0", "stage1.1", "stage2.0", "stage2.1"],
    "raw-blocks": ["0", "1"],
    "gpt2": ["transformer.h.0", "transformer.h.1", "transformer.h.2"],
    "llama": ["model.layers.0", "model.layers.1", "model.layers.2"],
    "roberta": [f"roberta.encoder.layer.{i}" for i in range(3)],
    "t5": ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"],
    "transformer-encoder": ["layers.0", "layers.1"],
}


def partition(grouping, model):
    return {group.name: list(group.parameters) for group in resolve(grouping, model)}


@pytest.mark.parametrize(("model", "expected"), BLOCKS.items())
def test_blocks_of_known_models(model, expected):
    assert list(block_paths(MODELS[model]())) == expected


def test_blocks_of_vit():
    paths = block_paths(MODELS["vit"]())
    assert [path.rpartition(".")[2] for path in paths] == ["0", "1", "2"]


@pytest.mark.parametrize("model", sorted(set(MODELS) - WITHOUT_BLOCKS))
def test_a_block_is_a_group_of_its_own_parameters(model):
    built = MODELS[model]()
    groups = partition("block-wise", built)
    for path in set(block_paths(built)) & set(groups):
        inside = {name for name, _ in built.named_parameters() if name.startswith(f"{path}.")}
        assert inside <= set(groups[path])


@pytest.mark.parametrize("model", sorted(WITHOUT_BLOCKS))
def test_without_blocks_the_error_suggests_layers(model):
    for grouping in (BlockWise(), Boundaries([1])):
        with pytest.raises(ValueError, match=r"no repeated blocks.*layer-wise"):
            resolve(grouping, MODELS[model]())


def test_stem_and_head_of_gpt2():
    groups = partition("block-wise", MODELS["gpt2"]())
    assert groups["stem"] == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert groups["head"] == ["transformer.ln_f.weight", "transformer.ln_f.bias"]


def test_what_lies_between_blocks_joins_the_block_before():
    groups = partition("block-wise", MODELS["resnet"]())
    assert groups["stage1.1"][-2:] == ["down.weight", "down.bias"]
    assert list(groups) == ["stem", *BLOCKS["resnet"], "head"]
    t5 = partition("block-wise", MODELS["t5"]())
    assert t5["encoder.block.1"][-1] == "encoder.final_layer_norm.weight"


def test_frozen_groups_are_left_out():
    groups = partition("block-wise", MODELS["partly-frozen"]())
    assert list(groups) == ["transformer.h.1", "transformer.h.2", "head"]


def test_only_the_head_is_trained():
    model = MODELS["gpt2"]().requires_grad_(False)
    model.transformer.ln_f.requires_grad_(True)
    assert list(partition("block-wise", model)) == ["head"]
    assert list(partition(Uniform(1), model)) == ["layers 0-0"]


def test_blocks_among_other_layers_of_a_sequential():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Residual(4), Residual(4), nn.Linear(4, 2))
    assert list(partition("block-wise", model)) == ["stem", "1", "2", "head"]


def test_stages_win_over_the_blocks_inside():
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()),
        nn.Sequential(Residual(4), Residual(4)),
        nn.Sequential(Residual(4), Residual(4), Residual(4)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
    )
    assert list(partition("block-wise", model)) == ["stem", "1", "2", "head"]


def test_a_small_stack_of_other_blocks_is_no_stack_of_the_model():
    heads = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2)])
    model = nn.ModuleDict({"body": nn.ModuleList([Residual(8), Residual(8)]), "heads": heads})
    assert list(partition("block-wise", model)) == ["body.0", "body.1", "head"]


def test_parametrized_blocks_are_alike():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Linear(2, 2).weight

    model = nn.ModuleList([parametrizations.weight_norm(Block()) for _ in range(2)])
    assert block_paths(model) == ("0", "1")


def test_a_shared_block_is_no_repetition():
    block = Residual(4)
    assert block_paths(nn.ModuleList([block, block])) == ()


def test_blocks_tied_to_earlier_names_are_empty():
    first, second = MODELS["raw-blocks"](), MODELS["raw-blocks"]()
    model = nn.Module()
    model.shelf = nn.ParameterList(first.parameters())
    model.blocks = first
    assert list(partition("block-wise", model)) == ["head"]
    model.more = second
    assert list(partition("block-wise", model)) == ["stem", "more.0", "more.1"]


def stack(depth: int) -> nn.Module:
    blocks = nn.ModuleList([Residual(2) for _ in range(depth)])
    return nn.ModuleDict({"stem": nn.Linear(2, 2), "blocks": blocks, "fc": nn.Linear(2, 2)})


UNIFORM = {
    (6, 1): ["blocks 0-5"],
    (6, 2): ["blocks 0-2", "blocks 3-5"],
    (7, 3): ["blocks 0-2", "blocks 3-4", "blocks 5-6"],
    (3, 3): ["blocks 0-0", "blocks 1-1", "blocks 2-2"],
}


@pytest.mark.parametrize(("case", "expected"), UNIFORM.items())
def test_uniform_divides_the_blocks_evenly(case, expected):
    depth, count = case
    groups = partition(Uniform(count), stack(depth))
    assert list(groups) == expected
    assert groups == partition(f"uniform:{count}", stack(depth))
    assert groups[expected[0]][0] == "stem.weight"
    assert groups[expected[-1]][-1] == "fc.bias"


def test_uniform_divides_layers_where_no_block_repeats():
    groups = partition(Uniform(2), MODELS["mlp"]())
    assert groups == {
        "layers 0-1": ["0.weight", "0.bias", "2.weight", "2.bias"],
        "layers 2-2": ["4.weight", "4.bias"],
    }


def test_uniform_does_not_count_frozen_blocks():
    assert len(partition(Uniform(2), MODELS["partly-frozen"]())) == 2
    with pytest.raises(ValueError, match="cannot divide 2 blocks into 3 groups"):
        resolve(Uniform(3), MODELS["partly-frozen"]())


@pytest.mark.parametrize(("count", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError)])
def test_uniform_needs_a_positive_whole_number(count, error):
    with pytest.raises(error, match="Uniform needs"):
        Uniform(count)


def test_boundaries_start_new_groups():
    groups = partition(Boundaries([2, 6]), stack(8))
    assert list(groups) == ["blocks 0-1", "blocks 2-5", "blocks 6-7"]
    assert groups["blocks 0-1"][:2] == ["stem.weight", "stem.bias"]
    assert groups["blocks 6-7"][-2:] == ["fc.weight", "fc.bias"]


def test_boundaries_count_frozen_blocks():
    groups = partition(Boundaries([2]), MODELS["partly-frozen"]())
    assert list(groups) == ["blocks 0-1", "blocks 2-2"]
    assert all(name.startswith("transformer.h.1.") for name in groups["blocks 0-1"])


@pytest.mark.parametrize(
    ("starts", "error"),
    [
        ([], ValueError),
        ([0], ValueError),
        ([-1], ValueError),
        ([3, 2], ValueError),
        ([2, 2], ValueError),
        ([1.5], TypeError),
        ([True], TypeError),
    ],
)
def test_boundaries_are_increasing_block_indices(starts, error):
    with pytest.raises(error):
        Boundaries(starts)


def test_boundaries_lie_inside_the_model():
    with pytest.raises(ValueError, match="boundary 8 lies outside the 8 blocks 0-7"):
        resolve(Boundaries([2, 8]), stack(8))
