"""`python -m quietgrad`, as launchers of several processes want it."""

from quietgrad.cli import main

main(prog_name="quietgrad")
