"""The noise that makes a release private: where it comes from, and that it never comes twice."""

from quietgrad.noise.sources import FastNoise, Noise, SecureNoise, names, resolve

__all__ = ["FastNoise", "Noise", "SecureNoise", "names", "resolve"]
