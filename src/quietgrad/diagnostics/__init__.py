"""Measurements of raw per-sample gradients, as the papers plot them. NOT PRIVATE.

Nothing here is clipped or noised, and no ledger covers it: what it returns and writes may give a
single sample away. Use it on public data, or keep what it says as safe as the data. Nothing in
quietgrad calls it unless asked to.

| what                                   | after                                               |
| -------------------------------------- | --------------------------------------------------- |
| share of samples that are clipped      | "Automatic Clipping", Figure 13                     |
| cosines of samples, of the clipped sum | "... Per-Sample Adaptive Clipping", Figures 1 and 3 |
| norms, sampling noise                  | "... Clipping Bias Reduction", Figure 1             |
| averages of p samples                  | the same, Figures 3 and 7                           |
| correlation of the noise over steps    | the same, Figure 5a                                 |

`measure` looks at one batch, `Recorder` at every k-th of a training of yours, `StepRecorder` at
what an engine clips in every k-th step; `read_history` reads what they wrote, and
`quietgrad.plots.diagnostics.diagnostics_figure` draws it.
"""

from quietgrad.diagnostics.measure import TooFewSamplesError, measure
from quietgrad.diagnostics.recorder import Recorder, StepRecorder
from quietgrad.diagnostics.records import (
    FILE_NAME,
    Averaged,
    Measurement,
    Record,
    Spread,
    read_history,
)

__all__ = [
    "FILE_NAME",
    "Averaged",
    "Measurement",
    "Record",
    "Recorder",
    "Spread",
    "StepRecorder",
    "TooFewSamplesError",
    "measure",
    "read_history",
]
