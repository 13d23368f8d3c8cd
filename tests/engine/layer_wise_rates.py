"""LARS and LAMB, as short as their papers state them; torch has neither.

You et al. 2017, "Large Batch Training of Convolutional Networks", algorithm 1; You et al. 2020,
"Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2.
"""

import torch
from torch.optim import Optimizer


class LARS(Optimizer):
    """Momentum on gradients of which each layer's is as long as a fraction of its weights."""

    def __init__(self, params, lr, weight_decay=0.0, momentum=0.9, trust=0.1, eps=1e-9):
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "trust": trust}
        super().__init__(params, options | {"eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for w in group["params"]:
                decay, length = group["weight_decay"], w.norm()
                rate = group["trust"] * length
                rate /= w.grad.norm() + decay * length + group["eps"]
                velocity = self.state[w].setdefault("velocity", torch.zeros_like(w))
                velocity.mul_(group["momentum"]).add_(group["lr"] * rate * (w.grad + decay * w))
                w.sub_(velocity)


class LAMB(Optimizer):
    """Adam's direction, as long in each layer as its weights.

    The paper adds weight decay behind the moments (``decoupled``); others add it to the gradient.
    """

    def __init__(self, params, lr, weight_decay=0.0, betas=(0.9, 0.99), eps=1e-9, decoupled=False):
        options = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        super().__init__(params, options | {"decoupled": decoupled})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for w in group["params"]:
                decay = group["weight_decay"] * w
                gradient = w.grad if group["decoupled"] else w.grad + decay
                state = self.state[w]
                state["step"] = step = state.get("step", 0) + 1
                m = state.setdefault("m", torch.zeros_like(w)).lerp_(gradient, 1 - first)
                v = state.setdefault("v", torch.zeros_like(w)).lerp_(gradient**2, 1 - second)
                direction = (m / (1 - first**step)) / (
                    (v / (1 - second**step)).sqrt() + group["eps"]
                )
                if group["decoupled"]:
                    direction = direction + decay
                w.sub_(group["lr"] * w.norm() / direction.norm() * direction)
