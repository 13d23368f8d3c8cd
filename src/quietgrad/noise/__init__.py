"""The noise that makes a release private: where it comes from, and that it never comes twice."""

from quietgrad.noise.contract import Noise
from quietgrad.noise.fast import FastNoise
from quietgrad.noise.registry import names, resolve
from quietgrad.noise.secure import SecureNoise

__all__ = ["FastNoise", "Noise", "SecureNoise", "names", "resolve"]
