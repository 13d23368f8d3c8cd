"""Runs exhibits one by one, each in a process of its own, and appends what was found to a file."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .judge import Subject, Unbuildable, Verdict, judge, merged

LIMIT_SECONDS = 120
LIMIT_MEMORY = 8 << 30

Maker = Callable[[], Subject]


def verdict_of(*makers: Maker) -> Verdict:
    """Build and judge, in this process; of several, the worst."""
    return merged([_verdict(make) for make in makers])


def _verdict(make: Maker) -> Verdict:
    import torch

    # Several threads gain nothing on small models, and lose much to others on a shared machine.
    torch.set_num_threads(1)
    before = torch.get_default_dtype()
    # Tensors that a model makes in its forward (positions, masks) are to be as precise as it is.
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return judge(make())
    except Unbuildable as error:
        return Verdict("unbuildable", reason=str(error))
    finally:
        torch.set_default_dtype(before)


def run(
    exhibits: dict[str, list[Maker]], out: Path, *, jobs: int = 1, again: Iterable[str] = ()
) -> None:
    """Judge what the file has no line for yet, and append a line for each."""
    done = {row["name"] for row in read(out)} - set(again) if out.exists() else set()
    waiting = [name for name in exhibits if name not in done]
    running: dict[int, _Child] = {}
    finished = 0
    with out.open("a") as file:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                child = _Child(name, exhibits[name])
                running[child.reader] = child
            ready, _, _ = select.select(list(running), [], [], 1.0)
            for reader, child in list(running.items()):
                if reader in ready and child.read():
                    continue
                if reader not in ready and not child.overdue():
                    continue
                row = child.finish()
                del running[reader]
                file.write(json.dumps(row) + "\n")
                file.flush()
                finished += 1
                place = f"{finished} of {finished + len(waiting) + len(running)}"
                print(f"{place} {row['name']}: {row['verdict']} {row['reason'][:100]}", flush=True)


def read(out: Path) -> list[dict[str, Any]]:
    """The last line of every exhibit."""
    rows = [json.loads(line) for line in out.read_text().splitlines() if line.strip()]
    return list({row["name"]: row for row in rows}.values())


class _Child:
    """A process for one exhibit: forked, since importing anew would take longer than judging."""

    def __init__(self, name: str, makers: list[Maker]) -> None:
        self.name, self.start, self.text = name, time.monotonic(), b""
        self.reader, writer = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.close(self.reader)
            self._work(makers, writer)
        os.close(writer)

    def _work(self, makers: list[Maker], writer: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_MEMORY, LIMIT_MEMORY))
        try:
            row = verdict_of(*makers).as_dict()
        except BaseException as error:
            row = Verdict("unbuildable", reason=f"the harness: {error!r}").as_dict()
        row["seconds"] = round(time.process_time(), 1)
        with os.fdopen(writer, "wb") as file:
            file.write(json.dumps(row).encode())
        os._exit(0)

    def read(self) -> bool:
        """Take what there is; False at the end."""
        part = os.read(self.reader, 1 << 16)
        self.text += part
        return bool(part)

    def overdue(self) -> bool:
        return time.monotonic() - self.start > LIMIT_SECONDS

    def finish(self) -> dict[str, Any]:
        overdue = self.overdue() and not self.text
        if overdue:
            os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.reader)
        if self.text:
            return {"name": self.name, **json.loads(self.text)}
        why = f"no result in {LIMIT_SECONDS} seconds" if overdue else "the process died"
        return {"name": self.name, **Verdict("unbuildable", reason=why).as_dict()}
