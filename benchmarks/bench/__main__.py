"""`python -m benchmarks.bench`."""

from benchmarks.bench.command import bench
from benchmarks.bench.measure import keep_freed
from quietgrad.cli.common import interrupts

if __name__ == "__main__":  # processes that measure memory import this module, too
    keep_freed()
    with interrupts():
        bench(prog_name="python -m benchmarks.bench")
