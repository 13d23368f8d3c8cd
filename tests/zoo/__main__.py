"""`python -m tests.zoo run` judges the zoo, `page` makes docs/models.md, `reasons` groups."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from . import page
from .runner import Maker, read, run

DEFAULT = Path("build/zoo.jsonl")


def exhibits() -> dict[str, Maker]:
    """Everything that is judged, by name: families, PEFT's methods, programs."""
    # Imported once, before processes are forked: it takes longer than most verdicts.
    import transformers.models.clip.modeling_clip
    import transformers.models.llama.modeling_llama
    import transformers.models.t5.modeling_t5  # noqa: F401

    from .adapters import adapters
    from .families import families
    from .models import subject_of
    from .more_programs import programs

    found: dict[str, Maker] = {}
    found |= {name: partial(subject_of, family) for name, family in families().items()}
    return found | adapters() | programs()


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
