"""Grouping: trainable parameters -> groups, each with its clipping radius.

| name       | groups                                                         |
| ---------- | -------------------------------------------------------------- |
| all-layer  | one                                                            |
| layer-wise | one per module that owns parameters (weight and bias together) |
| param-wise | one per parameter                                              |
| type-wise  | linear, conv, norm, embedding, recurrent, attention, other     |
| block-wise | one per repeated block, with a stem before and a head after    |
| uniform:M  | the blocks in M runs of nearly equal length                    |

`Boundaries`, `ByName` and `Listed` need arguments and are given as objects; so does "auto", which
`quietgrad.plan` finds (`quietgrad.AutoGrouping`). The radius of the whole gradient
is R = 1 unless stated; M groups get R/sqrt(M) each, shares of R by `proportions=`, or their own
`radii=`. Groups come in the order of their first parameter in `model.named_parameters()`, those of
`ByName` in the order of its patterns.
"""

from quietgrad.grouping.base import Group, Grouping, sensitivity
from quietgrad.grouping.blocks import BlockWise, Boundaries, Uniform
from quietgrad.grouping.styles import (
    AllLayer,
    ByName,
    LayerWise,
    Listed,
    ParamWise,
    TypeWise,
    names,
    register,
    resolve,
)

__all__ = [
    "AllLayer",
    "BlockWise",
    "Boundaries",
    "ByName",
    "Group",
    "Grouping",
    "LayerWise",
    "Listed",
    "ParamWise",
    "TypeWise",
    "Uniform",
    "names",
    "register",
    "resolve",
    "sensitivity",
]
