"""Models and batches for timing: each a function that returns a model and one batch's losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    model: nn.Module
    inputs: tuple[Tensor, ...]
    losses: Callable[..., Tensor]


def mlp() -> Workload:
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    return _classifier(model, torch.randn(256, 784))


def cnn() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )
    return _classifier(model, torch.randn(512, 1, 28, 28))


def vit() -> Workload:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))

    def losses(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images).logits, labels, reduction="none")

    return Workload(model, (images, labels), losses)


def gpt2() -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))

    def losses(tokens: Tensor) -> Tensor:
        logits = model(input_ids=tokens).logits[:, :-1]
        return F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").mean(1)

    return Workload(model, (torch.randint(0, 50257, (4, 100)),), losses)


def _classifier(model: nn.Module, x: Tensor) -> Workload:
    labels = torch.randint(0, 10, (len(x),))

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    return Workload(model, (x, labels), losses)


WORKLOADS: dict[str, Callable[[], Workload]] = {"mlp": mlp, "cnn": cnn, "vit": vit, "gpt2": gpt2}
