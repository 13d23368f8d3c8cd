"""Small models of the kinds that are planned, each with a batch and a loss."""

from itertools import pairwise

import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

SAMPLES, CLASSES = 8, 10


def classify(model, batch):
    outputs = model(batch[0])
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return F.cross_entropy(logits, batch[1], reduction="none")


def next_token(model, batch):
    logits = model(input_ids=batch).logits[:, :-1]
    return F.cross_entropy(logits.mT, batch[:, 1:], reduction="none").mean(1)


def labels():
    return torch.arange(SAMPLES) % CLASSES


def vit():
    config = hf.ViTConfig(
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=64,
        patch_size=8,
        num_labels=CLASSES,
    )
    model = hf.ViTForImageClassification(config)
    return model.train(), (torch.randn(SAMPLES, 3, 64, 64), labels()), classify


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.norm = nn.GroupNorm(4, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.shortcut(x) + self.second(F.relu(self.norm(self.first(x)))))


def resnet():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )
    return model, (torch.randn(SAMPLES, 3, 32, 32), labels()), classify


def gpt2():
    config = hf.GPT2Config(
        vocab_size=50,
        n_positions=128,
        n_embd=64,
        n_layer=6,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = hf.GPT2LMHeadModel(config)
    return model.train(), torch.randint(0, 50, (SAMPLES, 96)), next_token


def wide_to_narrow():
    """Large outputs that autograd need not keep: held for a group, they are a peak."""
    sizes = (32, 256, 32, 256, 32, 256, 32, 256, 32)
    layers = [nn.Linear(d, p) for d, p in pairwise(sizes)]
    model = nn.Sequential(*layers, nn.Flatten(1), nn.Linear(64 * 32, CLASSES))
    return model, (torch.randn(SAMPLES, 64, 32), labels()), classify


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.first = nn.LSTM(32, 32, batch_first=True)
        self.second = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, ids):
        return self.head(self.second(self.first(self.embedding(ids))[0])[0].mean(1))


def recurrent():
    return Tagger(), (torch.randint(0, 100, (SAMPLES, 24)), labels()), classify


MODELS = {each.__name__: each for each in (vit, resnet, gpt2, wide_to_narrow)}
