"""Data parallel training: torchrun --nproc-per-node=2 examples/data_parallel.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import quietgrad as qg

dist.init_process_group("gloo")  # "nccl" on GPUs, which was not tried
digits = load_digits()
images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
torch.manual_seed(0)  # the same weights on every rank
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
engine = qg.PrivacyEngine(
    model,
    torch.optim.SGD(model.parameters(), lr=1.0),
    TensorDataset(images[:1437], labels[:1437]),  # the whole data set on every rank
    batch_size=128,  # of all ranks together
    physical_batch_size=32,  # of one rank
    epochs=5,
    epsilon=3.0,
    delta=1e-4,
)
for _ in range(5):
    for batch in engine.batches():  # this rank's part; it may be empty
        for x, y in batch:
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
statement = engine.report("report.html", title="Digits on several ranks")  # rank 0 writes it
accuracy = (model(images[1437:]).argmax(1) == labels[1437:]).float().mean()
if dist.get_rank() == 0:
    print(f"accuracy on held-out digits: {accuracy:.1%}")
    print(f"{engine.steps_taken} steps: epsilon {engine.epsilon():.3f}")
    print(f"{statement.verdict.sentence}\nreport: report.html")
dist.destroy_process_group()
