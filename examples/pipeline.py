"""A pipeline: torchrun --nproc-per-node=2 examples/pipeline.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import TensorDataset

import quietgrad as qg

dist.init_process_group("gloo")  # "nccl" on GPUs, which was not tried
rank, ranks = dist.get_rank(), dist.get_world_size()
digits = load_digits()
images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
torch.manual_seed(0)
parts = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(ranks)]
parts[-1].append(torch.nn.Linear(64, 10))
model = parts[rank]  # this rank's stage
stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
losses = lambda output, target: F.cross_entropy(output, target, reduction="none")  # noqa: E731
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=losses)  # one loss per sample
engine = qg.PrivacyEngine(
    model,
    torch.optim.SGD(model.parameters(), lr=1.0),
    TensorDataset(images[:1437], labels[:1437]),  # the whole data set on every rank
    pipeline=schedule,
    grouping="per-device",  # each stage clips its own parameters
    batch_size=128,
    physical_batch_size=16,  # of a micro-batch
    epochs=5,
    epsilon=3.0,
    delta=1e-4,
)
for _ in range(5):
    for batch in engine.batches():
        for x, y in batch:  # the samples of one run of the schedule
            engine.run(x, target=y)  # on all ranks, in place of schedule.step
        engine.step()
model.eval()
outputs = schedule.eval(images[1437:], target=labels[1437:])
if rank == ranks - 1:
    print(f"accuracy on held-out digits: {(outputs.argmax(1) == labels[1437:]).float().mean():.1%}")
if rank == 0:
    print(f"{engine.steps_taken} steps: epsilon {engine.epsilon():.3f}")
    statement = engine.report("report.html", title="Digits in a pipeline")
    print(f"{statement.verdict.sentence}\nreport: report.html")
dist.destroy_process_group()
