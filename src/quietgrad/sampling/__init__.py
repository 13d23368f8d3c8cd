"""Sampling: which samples take part in each step, and how they are loaded.

| name        | a step takes                                   | accounted as     | amplified  |
| ----------- | ---------------------------------------------- | ---------------- | ---------- |
| poisson     | each sample with the same chance, by itself    | Poisson          | yes        |
| poisson:320 | the same, but never more than 320 samples      | TruncatedPoisson | a bit less |
| shuffled    | the next batch of a permutation made each pass | Passes           | no         |
| full-batch  | every sample                                   | FullBatch        | no         |

Say `"poisson"`, or `PoissonSampler(largest=320)` for options. A sampler of your own is passed as
`OwnSampler(batch_sampler, accounted_as=...)`: the library cannot know how to account for it, but it
checks what can be checked.
"""

from quietgrad.sampling.custom import OwnSampler
from quietgrad.sampling.loader import BatchLoader, LogicalBatch
from quietgrad.sampling.samplers import (
    Draws,
    FullBatchSampler,
    PoissonSampler,
    Resumption,
    Sampler,
    ShuffledSampler,
    names,
    population,
    register,
    require_batch_size,
    resolve,
)
from quietgrad.sampling.units import Units

__all__ = [
    "BatchLoader",
    "Draws",
    "FullBatchSampler",
    "LogicalBatch",
    "OwnSampler",
    "PoissonSampler",
    "Resumption",
    "Sampler",
    "ShuffledSampler",
    "Units",
    "names",
    "population",
    "register",
    "require_batch_size",
    "resolve",
]
