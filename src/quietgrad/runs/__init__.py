"""Runs in folders, which can continue after an interruption.

Import from the modules: `schema` needs no torch, `folder` and `resume` do.
"""
