"""A run to bound, of any length."""

from hypothesis import settings

from quietgrad.theory import Training

steady = settings(deadline=None, derandomize=True)
few = settings(steady, max_examples=10)


def run(steps=1000, **changes):
    settings = {
        "steps": steps,
        "batch_size": 100.0,
        "noise_multiplier": 1.0,
        "parameters": 10_000,
        "loss_gap": 1.0,
        "smoothness": 1.0,
    }
    return Training(**(settings | changes))
