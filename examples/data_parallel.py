"""Data parallel training: torchrun --nproc-per-node=2 examples/data_parallel.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg

dist.init_process_group("gloo")  # "nccl" on GPUs, which was not tried
torch.manual_seed(0)  # the same weights on every rank
images, labels = torch.randn(2000, 64), torch.randint(10, (2000,))  # the same data on every rank
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
engine = qg.PrivacyEngine(
    model,
    optimizer,
    TensorDataset(images, labels),
    batch_size=200,  # of all ranks together
    physical_batch_size=50,  # of one rank
    epochs=2,
    epsilon=3.0,
    delta=1e-5,
)
for _ in range(2):
    for batch in engine.batches():  # this rank's part; it may be empty
        for x, y in batch:
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
if dist.get_rank() == 0:
    steps, ranks = engine.steps_taken, dist.get_world_size()
    print(f"{steps} steps on {ranks} ranks: epsilon {engine.epsilon():.3f}")
dist.destroy_process_group()
