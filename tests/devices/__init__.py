"""Training on another device than the CPU, without one at hand."""
