"""Lightning with privacy: python examples/lightning_module.py."""

import lightning as L
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from quietgrad.integrations.lightning import PrivateStrategy


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10)
        )

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="none")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


if __name__ == "__main__":
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    train = TensorDataset(images[:1437], labels[:1437])
    held_out = TensorDataset(images[1437:], labels[1437:])

    trainer = L.Trainer(max_epochs=10, strategy=PrivateStrategy(epsilon=3.0, delta=1e-4))
    trainer.fit(
        Digits(),
        DataLoader(train, batch_size=128, shuffle=True),
        DataLoader(held_out, batch_size=360),
    )
    print(f"accuracy on held-out digits: {trainer.callback_metrics['accuracy']:.1%}")
    print(trainer.strategy.engine.report("report.html", title="Digits").verdict.sentence)
