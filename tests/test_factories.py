"""Tensors are made where the package says, not on whatever device is the default one."""

import ast
from pathlib import Path

import quietgrad

PACKAGE = Path(quietgrad.__file__).parent
FACTORIES = frozenset(
    "arange as_tensor empty eye full linspace logspace ones rand randint randn randperm "
    "scalar_tensor tensor zeros".split()
)


def list_undecided():
    """Calls of torch's factories that do not say on which device."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            is_factory = ast.unparse(node.func.value) == "torch" and node.func.attr in FACTORIES
            if is_factory and not {k.arg for k in node.keywords} & {"device", None}:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"


def test_every_factory_is_told_where():
    assert not list(list_undecided())
