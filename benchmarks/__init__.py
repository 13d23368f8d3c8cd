"""Measurements: none is part of the library or of its tests."""
