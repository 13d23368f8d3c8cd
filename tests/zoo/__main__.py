"""`python -m tests.zoo run` judges the zoo, `page` makes docs/models.md, `reasons` groups."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import page
from .exhibits import exhibits
from .runner import read, run

DEFAULT = Path("build/zoo.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="judge what the file has no result of yet")
    running.add_argument("--families", help="names, separated by commas, judged again")
    running.add_argument("--out", type=Path, default=DEFAULT)
    running.add_argument("--jobs", type=int, default=1)
    for name in ("page", "reasons"):
        showing = commands.add_parser(name)
        showing.add_argument("file", type=Path, nargs="?", default=DEFAULT)
        showing.add_argument("--write", type=Path, help="write there instead of printing")
    options = parser.parse_args()
    if options.command == "run":
        chosen = exhibits()
        again = options.families.split(",") if options.families else []
        if again:
            chosen = {name: chosen[name] for name in again}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        run(chosen, options.out, jobs=options.jobs, again=again)
        return
    text = (page.page if options.command == "page" else page.reasons)(read(options.file))
    if options.write:
        options.write.write_text(text)
    else:
        print(text, end="")


main()
