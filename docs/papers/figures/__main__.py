"""`make figures`."""

from figures.command import figures
from quietgrad.cli.common import interrupts

if __name__ == "__main__":  # processes that measure memory import this module, too
    with interrupts():
        figures(prog_name="make figures")
