"""Verification runs a model often, and leaves it as one run would have left it."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
import torch

import quietgrad as qg

from .helpers import Net, attach, only_batch, samples, squares


def counting(net, x):
    net.calls += 1
    return net.last(x) * 0.9**net.calls


def counting_in_a_dict(net, x):
    net.kept["calls"] = net.kept.get("calls", 0) + 1
    return net.last(x) * 0.9 ** net.kept["calls"]


def counting_in_a_list(net, x):
    net.seen.append("call")
    net.recent.append("call")
    return net.last(x) * 0.9 ** (len(net.seen) + len(net.recent))


def counting_in_a_tensor(net, x):
    net.tally += 1
    return net.last(x) * 0.9 ** net.tally.item()


def drawing_with_torch(net, x):
    return net.last(x + torch.randn(x.shape, generator=net.torch_generator, dtype=x.dtype))


def drawing_with_numpy(net, x):
    return net.last(x * (1 + net.numpy_generators[0].random()))


def drawing_with_legacy_numpy(net, x):
    return net.last(x * (1 + net.legacy.rand()))


def drawing_with_python(net, x):
    return net.last(x * (1 + net.python_generator.random()))


FORWARDS = [
    counting,
    counting_in_a_dict,
    counting_in_a_list,
    counting_in_a_tensor,
    drawing_with_torch,
    drawing_with_numpy,
    drawing_with_legacy_numpy,
    drawing_with_python,
]


def prepared(forward):
    model = Net(forward)
    model.calls, model.kept, model.seen, model.recent = 0, {}, [], deque(maxlen=9)
    model.tally = torch.zeros((), dtype=torch.long)
    model.torch_generator = torch.Generator().manual_seed(0)
    model.numpy_generators = [np.random.default_rng(0)]
    model.legacy, model.python_generator = np.random.RandomState(0), random.Random(0)
    return model


def insides(model):
    return (
        model.calls,
        dict(model.kept),
        list(model.seen),
        list(model.recent),
        int(model.tally),
        model.torch_generator.get_state().tolist(),
        model.numpy_generators[0].bit_generator.state,
        [str(part) for part in model.legacy.get_state()],
        model.python_generator.getstate(),
    )


@pytest.mark.parametrize("forward", FORWARDS)
def test_counters_and_generators_are_where_one_forward_leaves_them(forward):
    plain, model, x = prepared(forward), prepared(forward), samples(4)
    plain(x)
    engine = attach(model, x)
    engine.backward(squares(model, *only_batch(engine)))
    assert insides(model) == insides(plain)


def test_an_attribute_that_a_replay_rebinds_is_put_back():
    def forward(net, x):
        net.last_shape, net.last_count = x.shape, len(x)
        return net.last(x)

    model, x = Net(forward), samples(4)
    qg.clipped_sum(model, lambda: squares(model, x))
    assert model.last_count == 4
    assert tuple(model.last_shape) == tuple(x.shape)
