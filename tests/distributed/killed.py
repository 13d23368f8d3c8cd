"""A script for torchrun that goes on from its last state, and is killed at a line of quietgrad.

KILLS has for each attempt a rank and a share: in the third step of the attempt, the rank is killed
at that share of the lines that it executed in the second. Every update is noted in a file of its
rank before it is made.
"""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist
import torch.nn.functional as F
from tests.distributed import jobs, sharded_jobs

import quietgrad as qg

SOURCE = str(Path(qg.__file__).parent) + os.sep
STEPS = 9


class Tracer:
    """Counts the lines of quietgrad that are executed in a step, and kills at one of them."""

    def __init__(self, share):
        self.share, self.lines, self.steps, self.at = share, 0, 0, None

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                place = f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_lineno}"
                os.write(2, f"killed at {place}, line {self.at} of the step\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace

    def step_over(self):
        self.steps += 1
        if self.steps == 2:
            self.at = 1 + int(self.share * self.lines)
        if self.steps <= 2:
            self.lines = 0


def main():
    mode, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = sharded_jobs.sharded() if mode == "sharded" else jobs.build()
    options = {"ledger": folder / "ledger.jsonl", "verification": os.environ["VERIFICATION"]}
    model, engine = jobs.attach(model, seed=None, **options)
    if (folder / "state").exists():
        engine.load(folder / "state")
    notes = os.open(folder / f"updates of {rank}", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def note(*_):
        os.write(notes, b".")

    engine._optimizer.register_step_pre_hook(note)
    kills = [each.split(":") for each in os.environ["KILLS"].split(",")]
    victim, share = kills[attempt] if attempt < len(kills) else ("-1", "0")
    tracer = Tracer(float(share)) if int(victim) == rank else None
    while engine.steps_taken < STEPS:
        for batch in engine.batches():
            if tracer is not None:
                sys.settrace(tracer.trace)
            for x, y in batch:
                engine.backward(F.cross_entropy(model(x), y, reduction="none"))
            engine.step()
            engine.save(folder / "state")
            sys.settrace(None)
            if tracer is not None:
                tracer.step_over()
            if engine.steps_taken == STEPS:
                break
    if rank == 0:
        print(f"{engine.steps_taken} steps, {engine.ledger.steps} recorded: {engine.epsilon()!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
