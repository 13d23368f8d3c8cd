"""Under torchrun the Trainer trains data parallel, and ends as one process does."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("trainer_on_ranks.py")


def run(folder, kinds, ranks, *options):
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    launcher += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    script = [str(SCRIPT), str(folder), ",".join(kinds), *options]
    ended = subprocess.run(
        [sys.executable, *(launcher if ranks > 1 else []), *script],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"{r}-of-{ranks}.json").read_text()) for r in range(ranks)]


@pytest.mark.slow
def test_two_processes_end_as_one_and_go_on(tmp_path):
    kinds = ("full", "lora", "bf16", "sft", "dpo")
    (alone,) = run(tmp_path / "one", kinds, 1)
    both = run(tmp_path / "two", kinds, 2)
    for kind in kinds:
        one, (first, second) = alone[kind], [each[kind] for each in both]
        assert first["weights"] == second["weights"]
        difference = torch.tensor(first["weights"]) - torch.tensor(one["weights"])
        assert difference.abs().max() < (1e-3 if kind == "bf16" else 1e-6)
        assert first["steps"] == one["steps"] == 6
        assert first["epsilon"] == second["epsilon"] == one["epsilon"]
        assert (first["ranks"], one["ranks"]) == (2, 1)
        assert _evaluated(first) == pytest.approx(_evaluated(one), abs=1e-2)
        assert not {name for log in first["logs"] for name in log if name.startswith("loss")}

    shutil.rmtree(tmp_path / "two/full/checkpoint-6")
    again, _ = run(tmp_path / "two", ["full"], 2, "resume")
    assert again["full"]["weights"] == both[0]["full"]["weights"]
    assert again["full"]["epsilon"] > both[0]["full"]["epsilon"]  # three steps were lost


def _evaluated(found):
    return [log["eval_loss"] for log in found["logs"] if "eval_loss" in log]
