"""Code blocks of a document, run in order as a reader would run them."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from quietgrad.cli import main

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\b(?:\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|inf)\b")
_RUN = ("python", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what else is said behind the fence, its text, its line."""

    language: str
    remark: str
    text: str
    line: int


def blocks_of(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2].strip(), found[3], text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
    ]


def printed_by(block: Block, names: dict[str, Any], document: Path) -> str:
    """What a block of Python or of commands prints."""
    if block.language == "console":
        return "".join(_printed_by_command(line) for line in block.text.splitlines())
    # Lines keep their numbers in the document, so that a traceback leads there.
    code = compile("\n" * block.line + block.text, str(document), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def _printed_by_command(line: str) -> str:
    prompt, program, *arguments = shlex.split(line)
    assert (prompt, program) == ("$", "quietgrad"), line
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (0, 1), result.output
    return result.output


def runs_of(document: Path) -> list[tuple[Block, Block | None]]:
    """Blocks to run, each with the output that is shown behind it."""
    blocks = blocks_of(document)
    following = [*blocks[1:], None]
    return [
        (block, shown if shown is not None and shown.language == "text" else None)
        for block, shown in zip(blocks, following, strict=True)
        if block.language in _RUN
    ]


def agrees(printed: str, shown: Block) -> bool:
    """Equal; or, where the document says *about*, equal but for figures and line breaks."""
    if shown.remark == "about":
        return _without_figures(printed) == _without_figures(shown.text)
    assert not shown.remark, f"line {shown.line}: what is {shown.remark!r}?"
    return printed == shown.text


def _without_figures(text: str) -> str:
    return " ".join(_NUMBER.sub("#", text).split())
