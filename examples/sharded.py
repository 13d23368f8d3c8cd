"""Trains a transformer whose weights are sharded over ranks (FSDP2), also after a rank was killed.

Usage: torchrun --nproc-per-node=2 --max-restarts=3 examples/sharded.py [FOLDER]
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import quietgrad as qg

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/sharded")
folder.mkdir(parents=True, exist_ok=True)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same on every rank: weights, and the data of this example

labels = torch.randint(0, 4, (2000,))
signs = torch.randn(4, 8, 16)
dataset = TensorDataset(signs[labels] + torch.randn(2000, 8, 16), labels)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(128, 4))
for block in model[0].layers:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
engine = qg.PrivacyEngine(
    model,
    optimizer,
    dataset,
    batch_size=200,  # of all ranks together
    physical_batch_size=50,  # of each
    epochs=2,
    epsilon=8.0,
    delta=1e-4,
    grouping="block-wise",  # the sums of a block are freed as soon as gradients have passed it
    ledger=folder / "ledger.jsonl",
)
if (folder / "state").exists():
    engine.load(folder / "state")
killed = [int(each) for each in os.environ.get("KILLED", "").split()]
while engine.epochs_completed < 2 and engine.has_budget:
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
        engine.save(folder / "state")  # each rank writes what it holds
        if killed == [rank, engine.steps_taken] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

with torch.no_grad():
    model.eval()
    correct = (model(dataset.tensors[0]).argmax(1) == labels).float().mean()
if rank == 0:
    steps, recorded = engine.steps_taken, engine.ledger.steps
    print(f"{steps} steps on {ranks} ranks, {recorded} in the ledger: ", end="")
    print(f"epsilon {engine.epsilon():.3f}, accuracy {correct:.1%}")
    statement = engine.report(folder / "report.html", title="A sharded transformer")
    print(f"{statement.verdict.sentence}\nreport: {folder / 'report.html'}")
dist.destroy_process_group()
