"""Less sampling noise in what is clipped: by past weights, by several views, by public features.

The algorithms are those of Xiao, Xiang, Wang and Devadas, "A Theory to Instruct
Differentially-Private Learning via Clipping Bias Reduction" (IEEE S&P 2023).
"""

from quietgrad.methods.adaptive_radius import AdaptiveRadius
from quietgrad.methods.augmentation import SelfAugmentation
from quietgrad.methods.batch_clipping import BatchClipping
from quietgrad.methods.inner_outer import InnerOuter, Momentum

__all__ = [
    "AdaptiveRadius",
    "BatchClipping",
    "InnerOuter",
    "Momentum",
    "SelfAugmentation",
]
