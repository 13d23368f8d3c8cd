"""`python -m quietgrad.cli`."""

from quietgrad.cli import main

main()
