"""The families: the model types that the installed transformers has classes for."""

from __future__ import annotations

from dataclasses import dataclass

# Where a family has several classes, the first of these tasks that it has is judged: what people
# fine-tune comes first, a bare encoder last.
TASKS = [
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "CAUSAL_LM",
    "MASKED_LM",
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


@dataclass(frozen=True)
class Family:
    """One model type.

    Attributes:
        name: the model type, as in a config.json.
        config: name of its configuration class.
        model: name of the class that is judged.
        task: the table that names it; empty for a bare model.
    """

    name: str
    config: str
    model: str
    task: str


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

    tables = {task: getattr(models, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS}
    tables[""] = models.MODEL_MAPPING_NAMES
    for task, table in tables.items():
        if name in table:
            model = table[name]
            model = model if isinstance(model, str) else model[0]
            return Family(name, configs.CONFIG_MAPPING_NAMES[name], model, task)
    return None
