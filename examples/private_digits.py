"""The private training loop with which docs/tutorial.md ends: kept in a folder, with a report.

Usage: python examples/private_digits.py FOLDER    # begins a run, or goes on with the one in there
       quietgrad check examples/private_digits.py:subject
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from ordinary_digits import EPOCHS, accuracy, build_model, load_data, losses
from torch import nn

import quietgrad as qg


def build_private_model() -> nn.Module:
    return qg.nn.harden(build_model()).model


def subject() -> Any:
    """For `quietgrad check`: the model, samples of every class, one loss per sample."""
    train, _ = load_data()
    return build_private_model(), train[:32], losses


def main(folder: Path, epochs: int = EPOCHS) -> None:
    train, test = load_data()
    model = build_private_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.16, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    folder.mkdir(parents=True, exist_ok=True)
    engine = qg.PrivacyEngine(
        model,
        optimizer,
        train,
        batch_size=256,
        epochs=epochs,
        epsilon=3.0,
        delta=1e-4,
        ledger=folder / "ledger.jsonl",
    )
    checkpoint, rates = folder / "checkpoint.pt", folder / "scheduler.pt"
    if checkpoint.exists():
        engine.load(checkpoint)
        scheduler.load_state_dict(torch.load(rates))
    while engine.has_budget and engine.epochs_completed < epochs:
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(losses(model, (x, y)))
            engine.step()
        scheduler.step()
        # The scheduler first: a crash in between costs a learning rate, never a checkpoint.
        torch.save(scheduler.state_dict(), rates)
        engine.save(checkpoint)
    statement = engine.report(folder / "report.html")
    engine.ledger.close()
    engine.detach()
    print(f"test accuracy {accuracy(model, test):.1%}")
    print(statement.verdict.sentence)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
