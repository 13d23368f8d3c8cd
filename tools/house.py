"""Size and shape of the package, as figures: `python tools/house.py`.

A test keeps them within the limits below, so that the package does not grow back into many small
files. What is counted:

- files and lines of Python in ``src/quietgrad``;
- files that one training step passes through: the modules of quietgrad that execute a line while a
  steady step of a two-layer network runs (batches, backward, step);
- the longest chain of imports between modules, those inside functions too;
- modules of fewer than 100 lines that exactly one other module imports;
- class names that are defined more than once;
- modules of quietgrad that ``quietgrad.PrivacyEngine`` loads.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
LIMITS = {
    # 170 before compiled models (capture/compiled.py), 171 before distributed/, 174 before compiled
    # forwards (capture/traced_graph.py and compilation.py), 176 before sharded weights
    # (distributed/modes, sharding, shards; engine/parts; cli/ranks) and __main__, 182 before
    # pipelines and tensor parallelism (distributed/pipeline, tensors; engine/pipeline;
    # capture/rules/spread), 186 before capture/joining.py and traced_graph.py in three parts
    # (graph_builder, traceability), 189 before adapters of frameworks (integrations/), plans for
    # several ranks (planning/), verification and signatures of statements (report/) and recipes of
    # one's own.
    "files": 230,
    # 39,500 before accelerators (noise, loading, checkpoints, one read a step, half precision,
    # stacked factors, budgets that follow from the factors, verdicts) and compiled models; 42,400
    # before data parallel training; 43,200 before compiled forwards, 44,700 before sharded weights,
    # 45,900 before pipelines and tensor parallelism, 47,000 before sites that are joined
    # and calls that watch what guards do not see, 47,600 before what is named under "files",
    # 57,500 before units of several records (sampling/units, factors/membership, movielens), 58,000
    # before weights that are gathered on demand and what frameworks were found to let through.
    "lines": 59_500,
    # 36 before compiled models, 37 before distributed/world.py, 38 before sharding.py, 39 before
    # factors/membership.py.
    "files in one step": 40,
    "longest chain of imports": 17,
    "single-importer modules under 100 lines": 25,
    "class names defined twice": 0,
    "modules loaded by PrivacyEngine": 120,
}
_SHORT = 100

_STEP = """
import json, os, sys, tempfile, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
import quietgrad as qg

qg.PrivacyEngine
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "quietgrad")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ledger = os.path.join(tempfile.mkdtemp(), "ledger.jsonl")
engine = qg.PrivacyEngine(
    model, optimizer, data, batch_size=16, epochs=5, epsilon=8.0, delta=1e-3, ledger=ledger
)
root = os.path.dirname(qg.__file__) + os.sep
files = set()

def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(root):
        files.add(frame.f_code.co_filename[len(root):])

from quietgrad.capture.verification import Schedule

steps, is_due = 0, Schedule.is_due
# At random a step may be verified; the kernels are chosen by the tenth.
Schedule.is_due = lambda self, samples: steps < 10 and is_due(self, samples)
while steps < 16:
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        engine.step()
        steps += 1
        # From the end of one step to the end of the next one of the same pass.
        sys.setprofile(profile if steps == 13 else None)
print(json.dumps({"loaded": loaded, "files": sorted(files)}))
"""


def module_name(path: Path, source: Path = SOURCE) -> str:
    """``src/quietgrad/capture/tape.py`` -> ``quietgrad.capture.tape``."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.Module, modules: set[str]) -> set[str]:
    """What a module imports of ``modules``, inside functions too, but not for types alone."""
    found: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= full & modules or {node.module} & modules
            if full - modules:
                found |= {node.module} & modules
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        else:
            pending += ast.iter_child_nodes(node)
    return found


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """The longest path in a graph without cycles."""

    @cache
    def longest(module: str) -> tuple[str, ...]:
        tails = [longest(target) for target in sorted(graph[module] - {module})]
        return (module, *max(tails, key=len, default=()))

    return list(max((longest(module) for module in graph), key=len))


def observe_step(source: Path = SOURCE) -> dict[str, list[str]]:
    """Run a short training in a new process: modules loaded, and files in a steady step."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _STEP]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    observed: dict[str, list[str]] = json.loads(run.stdout)
    return observed


def measure(source: Path = SOURCE) -> tuple[dict[str, int], dict[str, list[str]]]:
    """The figures by name, and for each what it counts."""
    paths = sorted((source / "quietgrad").rglob("*.py"))
    texts = {module_name(path, source): path.read_text(encoding="utf-8") for path in paths}
    lines = {module: text.count("\n") for module, text in texts.items()}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    graph = {module: imports_of(tree, set(texts)) for module, tree in trees.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    for module, targets in graph.items():
        for target in targets:
            importers[target].add(module)
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    observed = observe_step(source)
    details = {
        "files": sorted(texts),
        "files in one step": observed["files"],
        "longest chain of imports": longest_chain(graph),
        "single-importer modules under 100 lines": sorted(
            m for m in texts if lines[m] < _SHORT and len(importers[m]) == 1
        ),
        "class names defined twice": sorted(name for name, n in classes.items() if n > 1),
        "modules loaded by PrivacyEngine": observed["loaded"],
    }
    figures = {name: len(entries) for name, entries in details.items()}
    figures["lines"] = sum(lines.values())
    return {name: figures[name] for name in LIMITS}, details


def main() -> int:
    """Print the figures; ``--details`` also what they count. Exit code 1 beyond a limit."""
    figures, details = measure()
    for name, figure in figures.items():
        print(f"{name:42} {figure:7,}  (at most {LIMITS[name]:,})")
        if "--details" in sys.argv and name in details and name != "files":
            print(*(f"    {entry}" for entry in details[name]), sep="\n")
    return int(any(figures[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
