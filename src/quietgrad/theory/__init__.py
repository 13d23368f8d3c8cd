"""The convergence bounds of the papers as functions. No torch is needed.

| question                                               | function                             |
| ------------------------------------------------------ | ------------------------------------ |
| which learning rate, and what to enlarge first?        | `advise`                             |
| how small does the gradient get with auto-s?           | `auto_s_bound`, `auto_s_bound_at`    |
| with auto-v?                                           | `auto_v_bound`, `normalized_bound`   |
| with psac: what remains?                               | `psac_bias`                          |
| without clipping and noise?                            | `sgd_bound`                          |
| what do more groups cost?                              | `groups_bound`                       |
| where do clipped gradients cancel?                     | `balanced_classification`,           |
|                                                        | `mixture_mean`, `two_samples`        |

They bound the worst case, with constants that nobody knows for a neural network: read them for how
convergence scales with steps, batch, noise and groups, not for the gradient norm of your run. None
of them says anything about privacy spent; that is `quietgrad.accounting`.
"""

from quietgrad.theory.advice import (
    Advice,
    advise,
    epsilon_of_mu,
    gdp_mu,
    mu_of_epsilon,
    noise_for_mu,
)
from quietgrad.theory.alignment import (
    alignment,
    concave_envelope,
    inverse_end,
    inverse_measure,
    least_alignment,
    measure,
)
from quietgrad.theory.bounds import (
    Training,
    auto_s_bound,
    auto_s_bound_at,
    auto_v_bound,
    groups_bound,
    groups_leading_term,
    normalized_bias,
    normalized_bound,
    normalized_learning_rate,
    psac_bias,
    psac_learning_rate,
    sgd_bound,
)
from quietgrad.theory.lazy_region import (
    balanced_classification,
    clipped,
    mixture_mean,
    two_samples,
)

__all__ = [
    "Advice",
    "Training",
    "advise",
    "alignment",
    "auto_s_bound",
    "auto_s_bound_at",
    "auto_v_bound",
    "balanced_classification",
    "clipped",
    "concave_envelope",
    "epsilon_of_mu",
    "gdp_mu",
    "groups_bound",
    "groups_leading_term",
    "inverse_end",
    "inverse_measure",
    "least_alignment",
    "measure",
    "mixture_mean",
    "mu_of_epsilon",
    "noise_for_mu",
    "normalized_bias",
    "normalized_bound",
    "normalized_learning_rate",
    "psac_bias",
    "psac_learning_rate",
    "sgd_bound",
    "two_samples",
]
