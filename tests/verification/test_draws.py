"""Recorded draws: every sample finds its own again, whatever runs, in whatever order."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from quietgrad.capture.draws import DrawRecorder, DrawReplayer, RandomState, RepeatableDraws

B = 4


def draw_all(count):
    """One of each kind, for ``count`` samples."""
    weights = torch.arange(1.0, 6.0).repeat(count, 1)
    return [
        F.dropout(torch.ones(count, 3)),
        F.gumbel_softmax(torch.zeros(count, 5)),
        torch.multinomial(weights, 2),
        torch.bernoulli(weights / 6),
        torch.distributions.Gamma(weights, 1.0).sample(),
        torch.poisson(weights),
        torch.randint(9, (count, 7)),
        torch.rand(2 * count),
        torch.randn(3, count, 2).transpose(0, 1),
    ]


def test_every_kind_of_draw_is_given_again():
    torch.manual_seed(0)
    draws = RepeatableDraws(B)

    def drawn(places):
        with draws.running(places):
            return draw_all(len(places))

    first = drawn(range(B))
    for places in ([2], [3, 0], [1, 1, 2], [0, 1, 2, 3, 3]):
        for before, after in zip(first, drawn(places), strict=True):
            by_sample = before.reshape(B, -1)
            assert torch.equal(after.reshape(len(places), -1), by_sample[places])
    assert not draws.unaligned


def test_parts_that_run_again_find_their_own_draws():
    """As checkpointing does it: the last part first, from the states they began with."""
    torch.manual_seed(0)
    recorder, states, first = DrawRecorder(), [], []
    start = RandomState()
    with recorder:
        for _ in range(3):
            states.append(RandomState())
            first.append(torch.rand(B, 2))
    start.restore()
    with DrawReplayer(recorder, B, torch.tensor([2, 1])):
        again = [torch.rand(2, 2) for _ in range(3)]
        for state, before in zip(states[::-1], first[::-1], strict=True):
            state.restore()
            assert torch.equal(torch.rand(2, 2), before[[2, 1]])
    for before, after in zip(first, again, strict=True):
        assert torch.equal(after, before[[2, 1]])


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_through_checkpoints_have_the_draws_of_the_forward(reentrant):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout()) for _ in range(3))
    x, draws = torch.randn(B, 6, requires_grad=True), RepeatableDraws(B)

    def gradient(places, *, is_checkpointed):
        layers.zero_grad()
        with draws.running(places):
            hidden = x[places]
            for layer in layers:
                if is_checkpointed:
                    hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
                else:
                    hidden = layer(hidden)
            hidden.square().sum().backward()
        return layers[0][0].weight.grad

    plain = [gradient(list(range(B)), is_checkpointed=False)]
    plain += [gradient([3, 1], is_checkpointed=False)]
    assert torch.equal(plain[0], gradient(list(range(B)), is_checkpointed=True))
    assert torch.equal(plain[1], gradient([3, 1], is_checkpointed=True))
    assert not torch.equal(*plain)


def test_one_recording_inside_of_another():
    torch.manual_seed(0)
    outer = RepeatableDraws(B)
    with outer.running(range(B)):
        whole = torch.rand(B, 3), torch.rand(B, 2)
    with outer.running([2, 0, 1], noting=False):
        inner = RepeatableDraws(3)
        with inner.running(range(3)):
            some = torch.rand(3, 3), torch.rand(3, 2)
        with inner.running([1]):
            one = torch.rand(1, 3), torch.rand(1, 2)
        after = torch.rand(3, 3)
    for before, now, alone in zip(whole, some, one, strict=True):
        assert torch.equal(now, before[[2, 0, 1]])
        assert torch.equal(alone, before[[0]])
    assert torch.equal(after, some[0])
    assert not inner.unaligned


def test_what_cannot_be_given_again_is_named():
    for draw, name in [
        (lambda count: torch.rand(count, count), "rand"),  # both dimensions grow
        (lambda count: [torch.randn(()) for _ in range(count)], "randn"),  # fewer draws
    ]:
        draws = RepeatableDraws(B)
        for places in (range(B), [1, 2]):
            with draws.running(places):
                draw(len(places))
        assert draws.unaligned == {name}


def test_generators_of_equal_state_do_not_meet():
    draws = RepeatableDraws(B)

    def drawn(count):
        with draws.running(range(count)):
            generators = [torch.Generator().manual_seed(7) for _ in range(3)]
            return (
                torch.rand(count, 2, generator=generators[0]),
                torch.randn(count, 2, generator=generators[1]),
                torch.rand(count, 3, generator=generators[2]),
            )

    for before, after in zip(drawn(B), drawn(2), strict=True):
        assert torch.equal(after, before[:2])
