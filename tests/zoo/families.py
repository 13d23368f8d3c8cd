"""The families: the model types that the installed transformers has classes for."""

from __future__ import annotations

from dataclasses import dataclass

# Where a family has several classes, the first of these tasks that it has is judged: what people
# fine-tune comes first, a bare encoder last.
TASKS = [
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MASKED_LM",
    "CAUSAL_LM",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "CTC",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "MULTIMODAL_LM",
    "SEQUENCE_CLASSIFICATION",
    "TIME_SERIES_PREDICTION",
    "IMAGE_TO_IMAGE",
    "UNIVERSAL_SEGMENTATION",
    "TEXT_TO_SPECTROGRAM",
    "TEXT_TO_WAVEFORM",
    "PRETRAINING",
]

# Judged as well, where a family has them: classes that people fine-tune most.
SECOND = ["SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION"]


@dataclass(frozen=True)
class Family:
    """One model type.

    Attributes:
        name: the model type, as in a config.json.
        config: name of its configuration class.
        model: name of the class that is judged.
        second: name of another class to judge, or empty.
    """

    name: str
    config: str
    model: str
    second: str = ""


def families() -> dict[str, Family]:
    """All of them, by name: one per package of transformers, or each type if none is the main."""
    from transformers.models.auto import configuration_auto as configs

    by_package: dict[str, list[str]] = {}
    for name in configs.CONFIG_MAPPING_NAMES:
        by_package.setdefault(configs.model_type_to_module_name(name), []).append(name)
    found = {}
    for package, names in sorted(by_package.items()):
        main = [n for n in names if n.replace("-", "_").replace(".", "_") == package]
        for name in main or names:
            if family := find(name):
                found[name] = family
    return found


def find(name: str) -> Family | None:
    """The family of a model type, if there is a model of it."""
    from transformers.models.auto import configuration_auto as configs
    from transformers.models.auto import modeling_auto as models

    tables = [getattr(models, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS]
    found = [
        _first(table[name]) for table in [*tables, models.MODEL_MAPPING_NAMES] if name in table
    ]
    if not found:
        return None
    tables = [getattr(models, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in SECOND]
    more = [_first(table[name]) for table in tables if name in table]
    second = next((model for model in more if model != found[0]), "")
    return Family(name, configs.CONFIG_MAPPING_NAMES[name], found[0], second)


def _first(names: str | tuple[str, ...]) -> str:
    return names if isinstance(names, str) else names[0]
