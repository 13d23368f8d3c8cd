"""Host time and time of a step with ``compile=``: `python -m benchmarks.compiled_time`.

Usage: python -m benchmarks.compiled_time [--backend inductor] [--only mlp,gpt2] [--rounds 25]

CPU time on one thread of a steady step, medians of variants that took turns: plain, plain by
torch.compile, private, and private with ``compile=``. The small models of ``device_counts`` have
little to compute, so that host time shows; ``vit-192`` and ``gpt2-256`` are wider.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.engine.batch import BatchIterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.device_counts import MODELS, Build, Step

WARM = 5


def wide_vit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """6 layers, 192 wide, 64 patches, 16 images."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=32,
        patch_size=4,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config), (torch.randn(16, 3, 32, 32),)


def wide_gpt2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """4 layers, 256 wide, 4 texts of 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256,
        n_layer=4,
        n_head=4,
        vocab_size=1000,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config), (torch.randint(1, 1000, (4, 64)),)


def digits() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model of the recipe."""
    from quietgrad.recipes.images import digits as recipe

    places: Any = None  # it fetches nothing
    return recipe().build_model(places), (torch.randn(4, 1, 8, 8),)


CASES: dict[str, Build] = {**MODELS, "digits": digits, "vit-192": wide_vit, "gpt2-256": wide_gpt2}


def measure(build: Build, backend: str, rounds: int) -> tuple[dict[str, list[float]], str]:
    """Milliseconds of steps by variant, and what became of compilation."""
    private: dict[str, Any] = {"noise": "fast", "verification": "once"}
    steps = {
        "plain": Step(build, "cpu", None),
        "plain, compiled": Step(build, "cpu", None),
        "private": Step(build, "cpu", private),
        "private, compiled": Step(build, "cpu", private | {"compile": backend}),
    }
    steps["plain, compiled"]._model.compile(backend=backend)
    for step in steps.values():
        for _ in range(WARM):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(1e3 * step.seconds())
    engine = steps["private, compiled"]._engine
    assert engine is not None
    return times, engine.compilation


def main() -> None:
    """Time the variants of some cases in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="inductor", help="of torch's compiler")
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Only steady steps: others may be verified at random.
    BatchIterator._is_verification_due = (  # type: ignore[method-assign]
        lambda self, samples: (
            not self._capture._verifier.has_verified or self._capture.wants_certificate
        )
    )
    for case in options.only.split(","):
        began = time.perf_counter()
        times, status = measure(CASES[case], options.backend, options.rounds)
        base = statistics.median(times["plain"])
        print(f"{case}, {options.backend}, {status}, {time.perf_counter() - began:.0f} s")
        for name, taken in times.items():
            low, middle, high = statistics.quantiles(taken, n=4)
            spread = f"{low:.2f} to {high:.2f}"
            print(f"  {name:18} {middle:8.2f} ms ({spread:>18})  {middle / base:.2f} x plain")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
