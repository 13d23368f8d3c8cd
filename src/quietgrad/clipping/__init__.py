"""Clipping: per-sample gradient norms -> weights, sum_i w(|g_i|) g_i.

| name    | weight w(n; R)                | bound | options      |
| ------- | ----------------------------- | ----- | ------------ |
| abadi   | min(1, R/n)                   | R     |              |
| reparam | min(1/R, 1/n)                 | 1     |              |
| global  | 1 if n < R else 0             | R     |              |
| auto-v  | R/n                           | R     |              |
| auto-s  | R/(n + gamma)                 | R     | gamma = 0.01 |
| psac    | R/(n + r/(n + r))             | R     | r = 0.1      |

Say `"auto-s"` for the defaults or `AutoS(gamma=0.1)` for other options. `register` adds a function
of your own under a name, after checking that it keeps w(n) * n <= R.
"""

from quietgrad.clipping.contract import Clipping, WeightFunction
from quietgrad.clipping.functions import PSAC, Abadi, AutoS, AutoV, Global, Reparam
from quietgrad.clipping.registry import names, register, resolve

__all__ = [
    "PSAC",
    "Abadi",
    "AutoS",
    "AutoV",
    "Clipping",
    "Global",
    "Reparam",
    "WeightFunction",
    "names",
    "register",
    "resolve",
]
