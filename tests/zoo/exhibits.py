"""Everything that is judged."""

from __future__ import annotations

from .runner import Maker


def exhibits() -> dict[str, list[Maker]]:
    """Everything that is judged, by name; families, PEFT's methods, programs."""
    # Imported once, before processes are forked: it takes longer than most verdicts.
    import transformers.models.clip.modeling_clip
    import transformers.models.llama.modeling_llama
    import transformers.models.t5.modeling_t5  # noqa: F401

    from .adapters import adapters
    from .families import families
    from .models import subjects_of
    from .more_programs import programs

    found: dict[str, list[Maker]] = {}
    found |= {name: subjects_of(family) for name, family in families().items()}
    return found | {name: [make] for name, make in (adapters() | programs()).items()}
