"""Theorems 1 and 2 of "Automatic Clipping" (Bu et al.), their per-layer form and its limit.

Automatic clipping with radius R gives R times the gradient it gives with radius 1, noise included.
So R only rescales the learning rate and weight decay, or does nothing at all, as the optimizer has
it. Both runs take the same draws of samples and noise; weights must agree after 20 steps. The noise
is not rounded to a grid, which is a power of two and does not scale with R.
"""

import pytest
import torch
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam

from quietgrad.clipping import AutoS, AutoV
from quietgrad.grouping import AllLayer, LayerWise

from .helpers import attach, flat, mlp, train
from .layer_wise_rates import LAMB, LARS

R, LR, DECAY, STEPS = 7.0, 0.05, 0.02, 10
# Adaptive optimizers divide by sqrt(v) + eps, which scales with R only if eps does.
EPS = 1e-3


def trained(make_optimizer, *, clipping=None, grouping=None, schedule=None):
    model = mlp()
    optimizer = make_optimizer(model.parameters())
    options = {"clipping": clipping or AutoS(), "grouping": grouping or AllLayer()}
    engine = attach(model, optimizer, noise="fast", **options)
    scheduler = schedule and torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    train(engine, model, STEPS, each_step=scheduler.step if scheduler else lambda: None)
    return flat(model)


def assert_same_path(weights, others, rtol=1e-9):
    """Equal up to rounding, measured on the way they went and not on where they began."""
    start = flat(mlp())
    moved, other = weights - start, others - start
    assert moved.abs().max() > 1e-2
    assert (moved - other).norm() <= rtol * moved.norm()


NON_ADAPTIVE = {
    "sgd": lambda p, lr, decay: SGD(p, lr, weight_decay=decay),
    "heavy ball": lambda p, lr, decay: SGD(p, lr, momentum=0.9, weight_decay=decay),
    "nag": lambda p, lr, decay: SGD(p, lr, momentum=0.9, nesterov=True, weight_decay=decay),
}


def turns(names, *clippings):
    """Each optimizer with one clipping in turn; all pairs are `slow`."""
    for i, name in enumerate(names):
        for j, clipping in enumerate(clippings):
            marks = () if j == i % len(clippings) else pytest.mark.slow
            yield pytest.param(name, clipping, marks=marks, id=f"{name}-{clipping}")


@pytest.mark.parametrize(
    ("name", "clipping"), [*turns(NON_ADAPTIVE, AutoV(), AutoS(), AutoS(gamma=0.5))]
)
def test_theorem_1(name, clipping):
    make = NON_ADAPTIVE[name]
    with_radius = trained(
        lambda p: make(p, LR, DECAY), clipping=clipping, grouping=AllLayer(radius=R)
    )
    without = trained(lambda p: make(p, LR * R, DECAY / R), clipping=clipping)
    assert_same_path(with_radius, without)


def test_theorem_1_is_about_the_learning_rate():
    """A control: with the same learning rate, or the same decay, the runs differ."""
    with_radius = trained(lambda p: SGD(p, LR, weight_decay=DECAY), grouping=AllLayer(radius=R))
    for lr, decay in ((LR, DECAY), (LR * R, DECAY)):
        other = trained(lambda p, lr=lr, decay=decay: SGD(p, lr, weight_decay=decay))
        with pytest.raises(AssertionError):
            assert_same_path(with_radius, other, rtol=1e-3)


# Called as make(parameters, weight decay, eps).
ADAPTIVE = {
    "adagrad": lambda p, decay, eps: Adagrad(p, LR, weight_decay=decay, eps=eps),
    "adam": lambda p, decay, eps: Adam(p, LR, weight_decay=decay, eps=eps),
    "amsgrad": lambda p, decay, eps: Adam(p, LR, weight_decay=decay, eps=eps, amsgrad=True),
    "adamax": lambda p, decay, eps: Adamax(p, LR, weight_decay=decay, eps=eps),
    "nadam": lambda p, decay, eps: NAdam(p, LR, weight_decay=decay, eps=eps),
    "lars": lambda p, decay, eps: LARS(p, 0.2, weight_decay=decay, eps=eps),
    "lamb": lambda p, decay, eps: LAMB(p, LR, weight_decay=decay, eps=eps),
}
DECOUPLED = {
    "adamw": lambda p, decay, eps: AdamW(p, LR, weight_decay=decay, eps=eps),
    "nadamw": lambda p, decay, eps: NAdam(
        p, LR, weight_decay=decay, eps=eps, decoupled_weight_decay=True
    ),
    "lamb, decay behind the moments": lambda p, decay, eps: LAMB(
        p, LR, weight_decay=decay, eps=eps, decoupled=True
    ),
}


@pytest.mark.parametrize(("name", "clipping"), [*turns(ADAPTIVE, AutoV(), AutoS())])
def test_theorem_2(name, clipping):
    make = ADAPTIVE[name]
    with_radius = trained(
        lambda p: make(p, DECAY, R * EPS), clipping=clipping, grouping=AllLayer(radius=R)
    )
    without = trained(lambda p: make(p, DECAY / R, EPS), clipping=clipping)
    assert_same_path(with_radius, without)


@pytest.mark.parametrize("name", DECOUPLED)
def test_theorem_2_with_decoupled_weight_decay(name):
    make = DECOUPLED[name]
    with_radius = trained(lambda p: make(p, DECAY, R * EPS), grouping=AllLayer(radius=R))
    assert_same_path(with_radius, trained(lambda p: make(p, DECAY, EPS)))


def test_theorem_2_for_adadelta():
    """Its eps stands above and below the fraction, so it cannot be scaled: it is made tiny.

    The first updates are of the size sqrt(eps), hence the large learning rate.
    """
    eps, lr = 1e-14, 1e5
    with_radius = trained(
        lambda p: Adadelta(p, lr, weight_decay=1e-3, eps=eps), grouping=AllLayer(radius=R)
    )
    without = trained(lambda p: Adadelta(p, lr, weight_decay=1e-3 / R, eps=eps))
    assert_same_path(with_radius, without, rtol=1e-5)


def test_theorem_2_for_radam():
    """While its variance is not yet rectified RAdam takes plain momentum steps: theorem 1 there."""
    betas = (0.9, 0.99)
    limit = 2 / (1 - betas[1]) - 1

    def factor(step):
        """What the step after ``step`` others needs: R without rectification, 1 with it."""
        decayed = betas[1] ** (step + 1)
        return 1.0 if limit - 2 * (step + 1) * decayed / (1 - decayed) > 5 else R

    def make(decay, eps):
        return lambda p: RAdam(p, LR, betas, weight_decay=decay, eps=eps)

    assert {factor(step) for step in range(STEPS)} == {1.0, R}
    with_radius = trained(make(DECAY, R * EPS), grouping=AllLayer(radius=R))
    assert_same_path(with_radius, trained(make(DECAY / R, EPS), schedule=factor))


@pytest.mark.parametrize("clipping", [AutoV(), AutoS()], ids=str)
def test_layer_wise_radii_that_grow_together(clipping):
    """Appendix B.3: R * (a_1, ..., a_L) for any R."""
    radii = (9.0, 12.0)
    unit = LayerWise(radii=tuple(r / 15 for r in radii))
    runs = [
        trained(lambda p, lr=lr: SGD(p, lr, momentum=0.5), clipping=clipping, grouping=grouping)
        for lr, grouping in (
            (LR / 15, LayerWise(radii=radii)),
            (LR, unit),
            (LR, LayerWise(proportions=radii)),
        )
    ]
    assert_same_path(runs[0], runs[1])
    assert_same_path(runs[0], runs[2])
    adam = [
        trained(lambda p, eps=eps: Adam(p, LR, eps=eps), clipping=clipping, grouping=grouping)
        for eps, grouping in ((15 * EPS, LayerWise(radii=radii)), (EPS, unit))
    ]
    assert_same_path(*adam)


def test_one_radius_changed_alone_is_no_learning_rate():
    """Fact B.1: (9, 12) -> (16, 12). Twice both is a learning rate; this is none."""
    one_step = {
        radii: one_update(LayerWise(radii=radii)) for radii in ((9, 12), (18, 24), (16, 12))
    }
    base = one_step[9, 12]
    assert off_the_line(base, one_step[18, 24]) < 1e-12
    assert off_the_line(base, one_step[16, 12]) > 0.05


def one_update(grouping):
    model = mlp()
    before = flat(model)
    engine = attach(model, grouping=grouping, clipping="auto-v", batch_size=16)
    train(engine, model, steps=1)
    return flat(model) - before


def off_the_line(base, other):
    """How much of ``other`` no multiple of ``base`` explains."""
    explained = (other @ base) / (base @ base) * base
    return ((other - explained).norm() / other.norm()).item()
