"""Less sampling noise in what is clipped: by past weights, by several views, by public features.

The algorithms are those of Xiao, Xiang, Wang and Devadas, "A Theory to Instruct
Differentially-Private Learning via Clipping Bias Reduction" (IEEE S&P 2023).
"""

from quietgrad.variance.adaptive_radius import AdaptiveRadius
from quietgrad.variance.batch_clipping import BatchClipping
from quietgrad.variance.inner_outer import InnerOuter
from quietgrad.variance.momentum import Momentum
from quietgrad.variance.per_sample_momenta import PerSampleMomenta
from quietgrad.variance.self_augmentation import SelfAugmentation

__all__ = [
    "AdaptiveRadius",
    "BatchClipping",
    "InnerOuter",
    "Momentum",
    "PerSampleMomenta",
    "SelfAugmentation",
]
