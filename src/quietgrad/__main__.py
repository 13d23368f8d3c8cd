"""`python -m quietgrad`, as launchers of several processes want it."""

from quietgrad.cli import main

if __name__ == "__main__":
    main(prog_name="quietgrad")
