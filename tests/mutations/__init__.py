"""Faults planted into copies of the library: the tests must notice each. See `make mutations`."""
