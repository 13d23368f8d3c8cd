"""Tests of a sample against the normal distribution, each as a p-value.

A p-value below SURE is taken for an error: with correct noise a run of all tests meets one with a
probability below one in ten thousand.
"""

import math

import numpy as np
from scipy import stats

SURE = 1e-7


def two_sided(z):
    return 2 * stats.norm.sf(abs(z))


def p_of_shape(values, std):
    """Kolmogorov-Smirnov."""
    return stats.kstest(values / std, "norm").pvalue


def p_of_mean(values, std):
    return two_sided(values.mean() / std * math.sqrt(len(values)))


def p_of_scale(values, std):
    """The second moment, whose standard error is sqrt(2/n)."""
    return two_sided(((values / std) ** 2 - 1).mean() / math.sqrt(2 / len(values)))


def p_of_skewness(values, std):
    return two_sided(((values / std) ** 3).mean() / math.sqrt(15 / len(values)))


def p_of_kurtosis(values, std):
    """The fourth moment is 3, and its variance 105 - 9."""
    return two_sided(((values / std) ** 4 - 3).mean() / math.sqrt(96 / len(values)))


def p_of_tails(values, std):
    """How many lie beyond 2, 3 and 4 deviations; the smallest p-value, corrected for three."""
    found = []
    for distance in (2, 3, 4):
        beyond = int((np.abs(values) > distance * std).sum())
        found.append(stats.binomtest(beyond, len(values), 2 * stats.norm.sf(distance)).pvalue)
    return min(1.0, 3 * min(found))


ALL = [p_of_shape, p_of_mean, p_of_scale, p_of_skewness, p_of_kurtosis, p_of_tails]


def p_of_independence(one, other):
    """No correlation between two samples of variance 1, nor between their squares."""
    products = one * other, (one**2 - 1) * (other**2 - 1) / 2
    zs = [product.sum() / math.sqrt(len(one)) for product in products]
    return min(1.0, 2 * min(two_sided(z) for z in zs))


def p_of_joint(one, other, bins=16):
    """Chi-square of pairs over a table of equally likely cells."""
    edges = stats.norm.ppf(np.linspace(0, 1, bins + 1))
    table, _, _ = np.histogram2d(one, other, bins=[edges, edges])
    return stats.chisquare(table.ravel()).pvalue
