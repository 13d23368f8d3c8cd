"""Less sampling noise in what is clipped: by past weights, by several views, by public features.

The algorithms are those of Xiao, Xiang, Wang and Devadas, "A Theory to Instruct
Differentially-Private Learning via Clipping Bias Reduction" (IEEE S&P 2023).
"""

from quietgrad.variance.batch_clipping import BatchClipping
from quietgrad.variance.inner_outer import InnerOuter
from quietgrad.variance.momentum import Momentum
from quietgrad.variance.self_augmentation import SelfAugmentation

__all__ = ["BatchClipping", "InnerOuter", "Momentum", "SelfAugmentation"]
