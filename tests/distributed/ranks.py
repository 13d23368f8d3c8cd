"""Runs functions in several processes on loopback, and collects what each returns.

They are those of `jobs`, or of another module if a job is called "module.function".
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 600


class Ended:
    """What came of one rank."""

    def __init__(self, process, place):
        try:
            self.output = process.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            self.output = process.communicate()[0] + "\n(killed: it took too long)"
        self.code = process.returncode
        self.result = json.loads(place.read_text()) if place.exists() else None


def start(jobs, ranks, timeout=60):
    """The processes, and where each writes its results; jobs are pairs of a name and options."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp())
    begun = []
    for rank in range(ranks):
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            "JOBS": json.dumps([jobs, str(folder / str(rank)), timeout]),
        }
        command = [sys.executable, "-m", "tests.distributed.ranks"]
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        begun.append((process, folder / str(rank)))
    return begun


def run(jobs, ranks=2, **options):
    """What each rank returned for each job: by job, then by rank."""
    ended = finish(start(jobs, ranks, **options))
    for rank, each in enumerate(ended):
        assert each.code == 0, f"rank {rank}:\n{each.output}"
    return [[each.result[i] for each in ended] for i in range(len(jobs))]


def finish(begun):
    return [Ended(*each) for each in begun]


def main():
    from datetime import timedelta

    import torch.distributed as dist
    from tests.distributed import jobs, sharded_jobs, transformer_jobs

    jobs_to_do, place, timeout = json.loads(os.environ["JOBS"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    found = []
    for name, options in jobs_to_do:
        try:
            module, _, function = name.rpartition(".")
            places = (jobs, sharded_jobs, transformer_jobs)
            if module:
                places = (importlib.import_module(f"tests.distributed.{module}"),)
            job = next(getattr(each, function) for each in places if hasattr(each, function))
            begun = time.perf_counter()
            found.append(job(**options))
            print(f"{name} {options}: {time.perf_counter() - begun:.1f} s")
        except Exception as error:
            message = "\n".join([str(error), *getattr(error, "__notes__", ())])
            found.append({"error": type(error).__name__, "message": message})
            traceback.print_exc()
    Path(place).write_text(json.dumps(found))
    if any("refuse" in name for name, _ in jobs_to_do):
        _stay(dist, timeout)
    dist.destroy_process_group()


def _stay(dist, seconds):
    """Rank 0 keeps the store, as torchrun's agent does, until the others had time to look."""
    from datetime import timedelta

    store = dist.distributed_c10d._get_default_store()
    store.set(f"done/{dist.get_rank()}", "")
    if dist.get_rank() == 0:
        keys = [f"done/{rank}" for rank in range(dist.get_world_size())]
        with suppress(RuntimeError):
            store.wait(keys, timedelta(seconds=min(seconds, 20)))


if __name__ == "__main__":
    main()
