"""Features that need no training: wavelet scattering, and how to normalize it."""

from quietgrad.features.normalization import ChannelStatistics, private_statistics, standardized
from quietgrad.features.scattering import Scattering

__all__ = ["ChannelStatistics", "Scattering", "private_statistics", "standardized"]
