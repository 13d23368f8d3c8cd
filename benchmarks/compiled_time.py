"""What a compiled private step could gain: `python -m benchmarks.compiled_time [rounds] [cases]`.

A prototype beside the engine, without its guards: every layer adds a token of zeros to its output
and returns its activations, so that the whole forward compiles into one graph (fullgraph=True). The
gradients of the tokens and the activations make the factors. Variants take turns in one process, on
one thread, and CPU time is measured: a machine that others use makes blocks hard to compare.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad import clipping
from quietgrad.factors.base import Dense, Factor
from quietgrad.factors.gather import Gather
from quietgrad.factors.outer import Outer
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator, Kernel, Timings

WARM = 6


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of rows [B, T, width]."""
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Positions(nn.Module):
    """Adds a row for each position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Of rows [B, T, width]."""
        return x + self.weight


class Transformer(nn.Module):
    """GPT-2's layers over ids with causal attention, or a ViT's over patches."""

    def __init__(
        self, entry: nn.Module, length: int, width: int, layers: int, heads: int, outputs: int
    ) -> None:
        super().__init__()
        self.is_text = isinstance(entry, nn.Embedding)
        self.entry, self.positions = entry, Positions(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=self.is_text) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs, bias=not self.is_text)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every position of a text, or of an image."""
        y = self.positions(self.entry(x))
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y if self.is_text else y.mean(1)))


def losses(outputs: Tensor, target: Tensor) -> Tensor:
    """One for each sample; of a text, the target is the text."""
    if outputs.ndim == 2:
        return F.cross_entropy(outputs, target, reduction="none")
    return F.cross_entropy(outputs[:, :-1].mT, target[:, 1:], reduction="none").mean(1)


def vit() -> tuple[nn.Module, Tensor, Tensor]:
    """6 layers, 192 wide, 64 patches, 16 images."""
    model = Transformer(nn.Linear(48, 192), 64, 192, 6, 3, 10)
    return model, torch.randn(16, 64, 48), torch.randint(0, 10, (16,))


def gpt2(width: int, heads: int, length: int, words: int) -> tuple[nn.Module, Tensor, Tensor]:
    """12 layers, 4 texts; words are few and the head is not tied."""
    model = Transformer(nn.Embedding(words, width), length, width, 12, heads, words)
    x = torch.randint(0, words, (4, length))
    return model, x, x


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "vit-192": vit,
    "gpt2-64": lambda: gpt2(64, 4, 32, 512),
    "gpt2-768": lambda: gpt2(768, 12, 64, 8192),
}

Sites = list[tuple[str, nn.Module]]
Forward = Callable[[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]


class Tokens:
    """A model of the same parameters whose layers add tokens and note what factors need."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self._twin = copy.deepcopy(model)
        self.sites: Sites = []
        self._tokens: list[Tensor] | None = None
        self._seen: list[Any] = []
        self._shapes: list[Any] = []
        pairs = zip(self._twin.named_modules(), model.modules(), strict=True)
        for (name, module), source in pairs:
            module._parameters.update(source._parameters)
            if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding | Positions):
                module.forward = self._make_forward(module, len(self.sites))
                self.sites.append((name, module))
        self._shapes = [None] * len(self.sites)
        with torch.no_grad():
            self._seen = [None] * len(self.sites)
            self._twin(x)

    def tokens(self) -> list[Tensor]:
        """Zeros of the outputs' shapes, which take no memory."""
        zero = torch.zeros(())
        return [zero.expand(shape).requires_grad_() for shape in self._shapes]

    def forward(self, x: Tensor, tokens: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """What the model returns, and the activations at its sites."""
        self._tokens, self._seen = tokens, [None] * len(self.sites)
        return self._twin(x), self._seen

    def _make_forward(self, module: Any, index: int) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            weight, seen = module.weight.detach(), x
            bias = getattr(module, "bias", None)
            bias = None if bias is None else bias.detach()
            if isinstance(module, nn.Linear):
                output = F.linear(x, weight, bias)
            elif isinstance(module, nn.LayerNorm):
                seen = F.layer_norm(x, module.normalized_shape)
                output = seen * weight + bias
            elif isinstance(module, nn.Embedding):
                output = F.embedding(x, weight)
            else:
                output, seen = x + weight, x[:0]
            self._seen[index] = seen
            if self._tokens is None:
                self._shapes[index] = output.shape
                return output
            return output + self._tokens[index]

        return forward


def make_factors(
    sites: Sites, seen: Sequence[Tensor], grads: Sequence[Tensor]
) -> Iterator[tuple[str, Factor]]:
    """The factor of every parameter."""
    for (name, module), act, grad in zip(sites, seen, grads, strict=True):
        if isinstance(module, nn.Embedding):
            yield f"{name}.weight", Gather(act, grad, module.weight.shape)
            continue
        if isinstance(module, Positions):
            yield f"{name}.weight", Dense(grad)
            continue
        rows, cols = (grad, act) if grad.ndim == 3 else (grad[:, None], act[:, None])
        if module.bias is not None:
            yield f"{name}.bias", Dense(rows.sum(1))
        is_linear = isinstance(module, nn.Linear)
        yield f"{name}.weight", Outer(rows, cols) if is_linear else Dense((rows * cols).sum(1))


def reduce_plainly(
    sites: Sites, seen: Sequence[Tensor], grads: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Norms, weights and sums by fixed formulas that a compiler can see through; no guards."""
    squares: Any = 0.0
    kept: list[tuple[str, Tensor, Tensor | None]] = []
    for (name, module), act, grad in zip(sites, seen, grads, strict=True):
        rows = grad if grad.ndim == 3 else grad[:, None]
        cols = act if grad.ndim == 3 else act[:, None]
        dense = []
        if isinstance(module, nn.Linear):
            if rows.shape[1] ** 2 * 2 <= module.weight.numel():
                squares = squares + ((cols @ cols.mT) * (rows @ rows.mT)).sum((1, 2))
                kept.append((f"{name}.weight", rows, cols))
            else:
                dense.append(("weight", rows.mT @ cols))
        elif isinstance(module, nn.Embedding):
            same = act[:, :, None].eq(act[:, None, :]).to(rows.dtype)
            squares = squares + (same * (rows @ rows.mT)).sum((1, 2))
            kept.append((f"{name}.weight", rows, act))
        else:
            is_norm = isinstance(module, nn.LayerNorm)
            dense.append(("weight", (rows * cols).sum(1) if is_norm else grad))
        if getattr(module, "bias", None) is not None:
            dense.append(("bias", rows.sum(1)))
        for kind, each in dense:
            squares = squares + each.flatten(1).square().sum(1)
            kept.append((f"{name}.{kind}", each, None))
    weights = 1 / (squares.sqrt() + 0.01)
    tables = {f"{name}.weight": m.weight for name, m in sites if isinstance(m, nn.Embedding)}
    sums = {}
    for name, rows, others in kept:
        if others is None:
            sums[name] = torch.tensordot(weights, rows, 1)
            continue
        weighted = (rows * weights[:, None, None]).flatten(0, 1)
        if name in tables:
            zeros = torch.zeros(tables[name].shape)
            sums[name] = zeros.index_add(0, others.flatten(), weighted)
        else:
            sums[name] = weighted.mT @ others.flatten(0, 1)
    return sums


def variants(
    model: nn.Module, x: Tensor, y: Tensor
) -> tuple[dict[str, Callable[[], float]], dict[str, dict[str, Tensor]]]:
    """Functions that give the CPU time of one micro-batch, and the sums that they computed."""
    found: dict[str, dict[str, Tensor]] = {}
    tokens, clock, style = Tokens(model, x), time.process_time, clipping.resolve("auto-s")
    private = copy.deepcopy(model)
    engine = qg.PrivacyEngine(
        private,
        torch.optim.SGD(private.parameters(), lr=0.0),
        TensorDataset(x, y),
        batch_size=len(x),
        delta=1e-9,
        noise_multiplier=1.0,
        sampling="full-batch",
        verification="once",
    )

    def plain(called: Callable[..., Any]) -> float:
        began = clock()
        losses(called(x), y).sum().backward()  # type: ignore[no-untyped-call]
        took = clock() - began
        model.zero_grad()
        return took

    def by_engine() -> float:
        took = 0.0
        for batch in engine.batches():
            for inputs, target in batch:
                began = clock()
                engine.backward(losses(private(inputs), target))
                took = clock() - began
                found["engine"] = {k: v.clone() for k, v in engine._batch.sums.items()}
            engine.step()
        return took

    def gradients(forward: Forward) -> tuple[list[Tensor], Sequence[Tensor]]:
        given = tokens.tokens()
        outputs, seen = forward(x, given)
        grads = torch.autograd.grad(losses(outputs, y).sum(), given)
        return [each.detach() for each in seen], grads

    def by_tokens(forward: Forward, name: str, timings: Timings[Kernel]) -> float:
        began = clock()
        seen, grads = gradients(forward)
        evaluator = Evaluator("auto", None, timings)
        reducer = ClippedReducer(engine.groups, style, evaluator, len(x))
        for parameter, factor in make_factors(tokens.sites, seen, grads):
            reducer.parameter_done(parameter, factor)
        reducer.finish()
        took = clock() - began
        found[name] = dict(reducer.grads)
        return took

    def by_graphs(forward: Forward, reduce: Callable[..., dict[str, Tensor]]) -> float:
        began = clock()
        sums = reduce(tokens.sites, *gradients(forward))
        took = clock() - began
        found["graphs"] = sums
        return took

    compiled: Any = torch.compile(model, fullgraph=True)
    forward: Any = torch.compile(tokens.forward, fullgraph=True)
    reduce: Any = torch.compile(reduce_plainly, fullgraph=True)
    eager_times, compiled_times = Timings[Kernel](), Timings[Kernel]()
    return {
        "plain, eager": lambda: plain(model),
        "plain, compiled": lambda: plain(compiled),
        "private, engine": by_engine,
        "tokens, eager": lambda: by_tokens(tokens.forward, "eager", eager_times),
        "tokens, compiled": lambda: by_tokens(forward, "compiled", compiled_times),
        "tokens and sums, compiled": lambda: by_graphs(forward, reduce),
    }, found


def main(rounds: int, names: Sequence[str]) -> None:
    """Time the variants of some cases in turns."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in names:
        torch.manual_seed(0)
        torch._dynamo.reset()
        timed, found = variants(*CASES[case]())
        for run in timed.values():
            for _ in range(WARM):
                run()
        times: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(rounds):
            for name, run in timed.items():
                times[name].append(1e3 * run())
        base = statistics.median(times["plain, eager"])
        print(f"{case}, {rounds} rounds")
        for name, taken in times.items():
            low, middle, high = statistics.quantiles(taken, n=4)
            spread = f"{low:.1f} to {high:.1f}"
            print(f"  {name:26} {middle:8.1f} ms ({spread:>16})  {middle / base:.2f} x plain")
        expected = found.pop("engine")
        for name, sums in found.items():
            errors = [(sums[n] - e).abs().max() / e.abs().max() for n, e in expected.items()]
            print(f"  largest relative difference, {name}: {max(map(float, errors)):.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 40, sys.argv[2:] or list(CASES))
