"""Verification runs a model often, and leaves it as one run would have left it."""

from __future__ import annotations

import logging
import random
from array import array
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.capture import attributes
from quietgrad.capture.session import detach
from quietgrad.errors import QuietgradError, UnsupportedOperationError

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


@dataclass
class Record:
    count: int = 0


class Plain:
    """An object with a __dict__, also one that can be called."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        return self.count


class Slotted:
    __slots__ = ("count", "unset")

    def __init__(self):
        self.count = 0


class SlottedAndMore(Slotted):
    """Slots of a base class beside a __dict__."""


class ListWithCount(list):
    count = 0


class Stubborn:
    """Its methods raise."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def increment(self):
        self.count += 1

    def refuse(self, *args):
        raise RuntimeError("not to be called")

    __eq__ = __repr__ = __getattr__ = __len__ = __iter__ = __bool__ = refuse
    __hash__ = object.__hash__


class ReadOnlyList(list):
    __setitem__ = __iter__ = __eq__ = Stubborn.refuse
    __hash__ = None


class Unreadable(Mapping):
    def __init__(self):
        self.count = 0

    def __len__(self):
        return 1

    def __iter__(self):
        return iter("a")

    __getitem__ = Stubborn.refuse


class Shared(nn.Module):
    def __init__(self, helper):
        super().__init__()
        self.helper = helper

    def forward(self, x):
        self.helper.count += 0.5
        return x


def cyclic():
    holder = SimpleNamespace(count=0, inner=[])
    holder.inner.append({"holder": holder})
    return holder


def nested():
    return {"a": [({"b": SimpleNamespace(count=0)},)]}


def increment(holder):
    holder.count += 1


def increment_entry(holder, key="count"):
    holder[key] += 1


# How the holder is made, how its counter is incremented, how it is read.
HOLDERS = {
    "list": (lambda: [0], lambda h: increment_entry(h, 0), lambda h: h[0]),
    "appended": (list, lambda h: h.append(None), len),
    "dict": (lambda: {"count": 0}, increment_entry, lambda h: h["count"]),
    "nested": (
        nested,
        lambda h: increment(h["a"][0][0]["b"]),
        lambda h: h["a"][0][0]["b"].count,
    ),
    "tuple of lists": (lambda: ([0],), lambda h: increment_entry(h[0], 0), lambda h: h[0][0]),
    "set": (set, lambda h: h.add(len(h)), len),
    "namespace": (lambda: SimpleNamespace(count=0), increment, lambda h: h.count),
    "dataclass": (Record, increment, lambda h: h.count),
    "object": (Plain, increment, lambda h: h.count),
    "slots": (Slotted, increment, lambda h: h.count),
    "inherited slots": (SlottedAndMore, increment, lambda h: h.count),
    "new attribute": (
        SlottedAndMore,
        lambda h: setattr(h, "unset", getattr(h, "unset", 0) + 1),
        lambda h: h.unset,
    ),
    "list with attributes": (ListWithCount, increment, lambda h: h.count),
    "deque": (deque, lambda h: h.append(None), len),
    "full deque": (
        lambda: deque([0, 0], maxlen=2),
        lambda h: h.append(h[-1] + 1),
        lambda h: h[-1],
    ),
    "Counter": (Counter, lambda h: h.update(["count"]), lambda h: h["count"]),
    "defaultdict": (lambda: defaultdict(int), increment_entry, lambda h: h["count"]),
    "OrderedDict": (lambda: OrderedDict(count=0), increment_entry, lambda h: h["count"]),
    "UserDict": (lambda: UserDict(count=0), increment_entry, lambda h: h["count"]),
    "numpy array": (lambda: np.zeros(2), lambda h: h.__iadd__(1), lambda h: h[1]),
    "array": (lambda: array("i", [0]), lambda h: increment_entry(h, 0), lambda h: h[0]),
    "tensor": (lambda: torch.zeros(3), lambda h: h.add_(1), lambda h: h[1].item()),
    "tensor in an object": (
        lambda: SimpleNamespace(count=torch.zeros(())),
        lambda h: h.count.add_(1),
        lambda h: h.count.item(),
    ),
    "object array": (
        lambda: np.array([None, 0], dtype=object),
        lambda h: increment_entry(h, 1),
        lambda h: h[1],
    ),
    "object in an array": (
        lambda: np.array([Plain()], dtype=object),
        lambda h: increment(h[0]),
        lambda h: h[0].count,
    ),
    "dictionary's key": (
        lambda: {Plain(): None},
        lambda h: increment(next(iter(h))),
        lambda h: next(iter(h)).count,
    ),
    "pairs": (list, lambda h: h.append((len(h), 0.5)), len),
    "large list": (lambda: [0] * 10**5, lambda h: increment_entry(h, 0), lambda h: h[0]),
    "raises when asked": (Stubborn, lambda h: h.increment(), lambda h: h.count),
    "list that cannot be written": (ReadOnlyList, lambda h: list.append(h, 1), list.__len__),
    "mapping that cannot be read": (Unreadable, increment, lambda h: h.count),
    "key that cannot be shown": (
        lambda: {Stubborn(): SimpleNamespace(count=0)},
        lambda h: increment(next(iter(h.values()))),
        lambda h: next(iter(h.values())).count,
    ),
    "bytearray": (lambda: bytearray(1), lambda h: increment_entry(h, 0), lambda h: h[0]),
    "grown bytearray": (bytearray, lambda h: h.extend(b"x"), len),
    "cycle": (cyclic, lambda h: increment(h.inner[0]["holder"]), lambda h: h.count),
}


def train(model, x, steps):
    engine, passed = attach(model, x, physical_batch_size=2), 0
    while engine.steps_taken < steps:
        for batch in engine.batches():
            for (rows,) in batch:
                passed += 1
                engine.backward(squares(model, rows))
            engine.step()
    return passed


@pytest.mark.parametrize("name", HOLDERS)
def test_a_counter_reads_the_number_of_micro_batches(name):
    make, count, read = HOLDERS[name]

    def forward(net, x):
        count(net.holder)
        return net.last(x)

    model = Net(forward)
    model.holder = make()
    kept = model.holder
    passed = train(model, samples(4), 2)
    assert model.holder is kept
    assert passed == 4
    assert read(model.holder) == passed


def test_a_counter_shared_by_two_modules():
    model, helper = nn.Sequential(nn.Linear(3, 2).double()), Plain()
    model.append(Shared(helper)).append(Shared(helper))
    assert train(model, samples(4), 2) == helper.count == 4


def keep_in(holder, mean):
    if isinstance(holder, (dict, UserDict)):
        holder["mean"] = mean
    elif isinstance(holder, ReadOnlyList):
        list.append(holder, mean)
    elif isinstance(holder, (list, deque)):
        holder.append(mean)
    elif isinstance(holder, tuple):
        holder[0].append(mean)
    elif isinstance(holder, set):
        holder.add(mean)
    elif isinstance(holder, np.ndarray) and holder.dtype == object:
        holder[0] = mean
    elif isinstance(holder, np.ndarray):
        holder[:] = mean.numpy()[0]
    elif isinstance(holder, (bytearray, array)):
        holder.append(int(mean.abs().sum().item()) % 100)
    elif isinstance(holder, torch.Tensor):
        holder.copy_(mean)
    else:
        holder.count = mean


@pytest.mark.parametrize("name", HOLDERS)
def test_data_kept_in_a_holder_is_refused(name):
    def forward(net, x):
        keep_in(net.holder, x.detach().mean(0))
        return net.last(x)

    model = Net(forward)
    model.holder = HOLDERS[name][0]()
    engine = attach(model, samples(4))
    with pytest.raises(UnsupportedOperationError, match=r"'holder.*keeps something computed"):
        engine.backward(squares(model, *only_batch(engine)))


# Sparse and nested tensors have no memory that could be compared, those on meta no values.
UNUSUAL = {
    "COO": lambda: torch.eye(3).to_sparse(),
    "CSR": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.ones(3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
}


@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors)")
@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_tensors_may_be_held_but_not_written(name, is_buffer):
    def forward(net, x):
        net.write(net.held if is_buffer else net.box[0], x.detach())
        return net.last(x)

    model, tensor = Net(forward), UNUSUAL[name]()
    model.write, model.box = lambda held, x: None, [None if is_buffer else tensor]
    if is_buffer:
        model.register_buffer("held", tensor)
    assert train(model, samples(4), 2) == 4
    detach(model)
    model.write = lambda held, x: held.mul_(x.mean())
    engine = attach(model, samples(4))
    with pytest.raises(UnsupportedOperationError, match=r"held|box\[0\]"):
        engine.backward(squares(model, *only_batch(engine)))


def test_what_is_not_walked_is_not_put_back():
    """Beyond the depth, data that is kept must show when the forward is repeated."""
    for depth in range(5, 12):
        leaf = box = SimpleNamespace(last=0.0)
        for _ in range(depth):
            box = [box]

        def forward(net, x, leaf=leaf):
            result = net.last(x) + leaf.last
            leaf.last = x.detach().mean()
            return result

        model = Net(forward)
        model.box = box
        engine = attach(model, samples(4))
        with pytest.raises(QuietgradError, match=r"keeps something|mixed"):
            engine.backward(squares(model, *only_batch(engine)))


def test_many_objects_are_not_put_back_unless_searched(monkeypatch):
    monkeypatch.setattr(attributes, "_MOST_VISITED", 50)
    things = [SimpleNamespace(last=0.0) for _ in range(100)]

    def forward(net, x):
        result = net.last(x) + things[-1].last
        things[-1].last = x.detach().mean()
        return result

    model = Net(forward)
    model.things = things
    engine = attach(model, samples(4))
    with pytest.raises(QuietgradError, match=r"keeps something|mixed"):
        engine.backward(squares(model, *only_batch(engine)))


def test_a_logger_is_not_looked_into():
    model = Net(lambda net, x: net.last(x))
    model.log = logging.getLogger("quietgrad.tests")
    assert {name for name, *_ in attributes.walk_attributes(model) if "log" in name} == {"log"}
