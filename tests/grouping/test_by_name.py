"""Patterns of parameter names: first match wins, nothing is left over unnoticed."""

import re

import pytest

from quietgrad.grouping import ByName, resolve

from .zoo import MODELS


def partition(grouping, model="mlp"):
    return {group.name: list(group.parameters) for group in resolve(grouping, MODELS[model]())}


WEIGHTS = ["0.weight", "2.weight", "4.weight"]
BIASES = ["0.bias", "2.bias", "4.bias"]


def test_globs_cover_the_whole_name():
    assert partition(ByName({"w": "*.weight", "b": "*.bias"})) == {"w": WEIGHTS, "b": BIASES}
    with pytest.raises(ValueError, match="take no trainable parameter"):
        partition(ByName({"w": "weight"}, rest=True))


def test_regular_expressions_search_the_name():
    groups = partition(ByName({"w": re.compile("weight"), "b": re.compile(r"\.b")}))
    assert groups == {"w": WEIGHTS, "b": BIASES}


def test_the_first_match_wins():
    groups = partition(ByName([("first", "0.*"), ("w", "*.weight"), ("b", "*")]))
    assert groups == {
        "first": ["0.weight", "0.bias"],
        "w": ["2.weight", "4.weight"],
        "b": ["2.bias", "4.bias"],
    }


def test_one_group_may_have_several_patterns():
    groups = partition(ByName([("ends", "0.*"), ("middle", "2.*"), ("ends", "4.*")]))
    assert groups["ends"] == ["0.weight", "0.bias", "4.weight", "4.bias"]


def test_unmatched_parameters_are_an_error_or_the_rest():
    with pytest.raises(ValueError, match=r"no pattern matches \['0.bias', '2.bias', '4.bias'\]"):
        partition(ByName({"w": "*.weight"}))
    assert partition(ByName({"w": "*.weight"}, rest=True)) == {"w": WEIGHTS, "rest": BIASES}


def test_the_rest_may_be_empty():
    assert list(partition(ByName({"all": "*"}, rest=True))) == ["all"]


def test_a_pattern_that_takes_nothing_is_an_error():
    for patterns in ({"w": "*", "b": "*.bias"}, {"a": "*.attn.*", "w": "*"}):
        with pytest.raises(ValueError, match="take no trainable parameter"):
            partition(ByName(patterns))


def test_a_pattern_that_takes_only_frozen_parameters_is_an_error():
    with pytest.raises(ValueError, match="all frozen"):
        partition(ByName({"stem": "transformer.wte.*"}, rest=True), "partly-frozen")


def test_patterns_are_validated():
    with pytest.raises(ValueError, match="at least one pattern"):
        ByName({})
    with pytest.raises(ValueError, match="another name"):
        ByName({"rest": "*.bias"}, rest=True)
    for wrong in ([("a", 3)], ["*.bias"], [("a", "b", "c")], [(1, "*")]):
        with pytest.raises(TypeError, match="ByName takes"):
            ByName(wrong)


def test_the_callers_mapping_is_copied():
    patterns = {"all": "*"}
    grouping = ByName(patterns)
    patterns["more"] = "x"
    assert list(partition(grouping)) == ["all"]
