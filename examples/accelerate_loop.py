"""accelerate with privacy: accelerate launch examples/accelerate_loop.py."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.integrations.accelerate import PrivateAccelerator

digits = load_digits()
images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
train = TensorDataset(images[:1437], labels[:1437])

accelerator = PrivateAccelerator()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
engine = qg.PrivacyEngine(model, optimizer, train, batch_size=128, epochs=10, epsilon=3, delta=1e-4)
accelerator.register_for_checkpointing(engine)
for _ in range(10):
    for batch in engine.batches():
        for x, y in batch:
            x, y = x.to(accelerator.device), y.to(accelerator.device)
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
        scheduler.step()
    accelerator.save_state("run")
predicted = model.eval()(images[1437:].to(accelerator.device)).argmax(1).cpu()
accelerator.print(f"accuracy on held-out digits: {(predicted == labels[1437:]).float().mean():.1%}")
accelerator.print(engine.report("report.html", title="Digits").verdict.sentence)
