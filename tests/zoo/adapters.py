"""PEFT's methods on small stock models, as things to judge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .families import Family
from .inputs import make_samples
from .judge import Subject, Unbuildable
from .models import build, losses, settle

_BASES = {
    "llama": Family("llama", "LlamaConfig", "LlamaForCausalLM"),
    "gpt2": Family("gpt2", "GPT2Config", "GPT2LMHeadModel"),
    "bert": Family("bert", "BertConfig", "BertForMaskedLM"),
}
_TARGETS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"], "bert": ["query", "value"]}
_CAUSAL = {"task_type": "CAUSAL_LM"}
_PROMPT = {**_CAUSAL, "num_virtual_tokens": 3}
_RANK = {"r": 4}

# Name -> configuration class of peft, and its arguments; target_modules are added if it has them.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("LoraConfig", _RANK),
    "lora bias": ("LoraConfig", {**_RANK, "bias": "all"}),
    "lora embedding": ("LoraConfig", {**_RANK, "target_modules": ["q_proj", "embed_tokens"]}),
    "lora modules_to_save": ("LoraConfig", {**_RANK, "modules_to_save": ["lm_head"]}),
    "lora trainable tokens": ("LoraConfig", {**_RANK, "trainable_token_indices": [*range(5, 40)]}),
    "rslora": ("LoraConfig", {**_RANK, "use_rslora": True}),
    "dora": ("LoraConfig", {**_RANK, "use_dora": True}),
    "pissa": ("LoraConfig", {**_RANK, "init_lora_weights": "pissa"}),
    "olora": ("LoraConfig", {**_RANK, "init_lora_weights": "olora"}),
    "adalora": ("AdaLoraConfig", {"init_r": 4, "target_r": 2, "total_step": 10}),
    "adamss": ("AdamssConfig", {**_RANK, "num_subspaces": 2}),
    "adaption prompt": (
        "AdaptionPromptConfig",
        {**_CAUSAL, "adapter_len": 3, "adapter_layers": 2, "target_modules": None},
    ),
    "beft": ("BeftConfig", {}),
    "boft": ("BOFTConfig", {"boft_block_size": 4}),
    "c3a": ("C3AConfig", {"block_size": 8}),
    "cartridge": ("CartridgeConfig", _PROMPT),
    "cpt": (
        "CPTConfig",
        {**_CAUSAL, "cpt_token_ids": [5, 6, 7], "cpt_mask": [1, 1, 1]}
        | {"cpt_tokens_type_mask": [1, 2, 2]},
    ),
    "deft": ("DeftConfig", _RANK),
    "delora": ("DeloraConfig", _RANK),
    "fourierft": ("FourierFTConfig", {"n_frequency": 20}),
    "frod": ("FrodConfig", {}),
    "glora": ("GloraConfig", _RANK),
    "gralora": ("GraloraConfig", {**_RANK, "gralora_k": 2}),
    "hira": ("HiraConfig", _RANK),
    "hra": ("HRAConfig", _RANK),
    "ia3": ("IA3Config", {}),
    "lily": ("LilyConfig", _RANK),
    "ln tuning": ("LNTuningConfig", {"target_modules": ["norm", "input_layernorm"]}),
    "loha": ("LoHaConfig", _RANK),
    "lokr": ("LoKrConfig", _RANK),
    "miss": ("MissConfig", _RANK),
    "oft": ("OFTConfig", {"oft_block_size": 4}),
    "shira": ("ShiraConfig", _RANK),
    "prompt tuning": ("PromptTuningConfig", _PROMPT),
    "multitask prompt tuning": ("MultitaskPromptTuningConfig", {**_PROMPT, "num_tasks": 2}),
    "osf": ("OSFConfig", {}),
    "p-tuning": ("PromptEncoderConfig", {**_PROMPT, "encoder_hidden_size": 16}),
    "peanut": ("PeanutConfig", {}),
    "poly": ("PolyConfig", {**_RANK, **_CAUSAL, "n_tasks": 2, "n_skills": 2, "n_splits": 2}),
    "prefix tuning": ("PrefixTuningConfig", _PROMPT),
    "prefix projection": (
        "PrefixTuningConfig",
        {**_PROMPT, "prefix_projection": True, "encoder_hidden_size": 16},
    ),
    "psoft": ("PsoftConfig", _RANK),
    "pvera": ("PveraConfig", _RANK),
    "randlora": ("RandLoraConfig", _RANK),
    "road": ("RoadConfig", {"group_size": 8}),
    "shadow": ("ShadowConfig", {}),
    "supertuning": ("SupertuningConfig", {}),
    "tinylora": ("TinyLoraConfig", {}),
    "trainable tokens": (
        "TrainableTokensConfig",
        {"token_indices": list(range(5, 40)), "target_modules": ["embed_tokens"]},
    ),
    "unilora": ("UniLoraConfig", {}),
    "vblora": ("VBLoRAConfig", {**_RANK, "num_vectors": 8, "vector_length": 16, "topk": 2}),
    "vera": ("VeraConfig", _RANK),
    "waveft": ("WaveFTConfig", {"n_frequency": 20}),
}
# Methods that are tried on another kind of layer or of attention, too.
ELSEWHERE = {
    "gpt2": ["lora", "dora", "ia3", "adalora", "prompt tuning", "prefix tuning", "p-tuning"],
    "bert": ["lora", "dora", "ia3", "adalora", "loha", "lokr", "oft", "boft", "vera", "hra"],
}


def adapters() -> dict[str, Callable[[], Subject]]:
    """Every method on a Llama, and some on other models, by name."""
    found = {f"peft {name}": partial(adapted, name, "llama") for name in METHODS}
    for base, names in ELSEWHERE.items():
        found |= {f"peft {name} on {base}": partial(adapted, name, base) for name in names}
    return found


def adapted(name: str, base: str) -> Subject:
    """A small model with this method's parameters alone trainable."""
    import peft

    class_name, given = METHODS[name]
    config_class = getattr(peft, class_name, None)
    if config_class is None:
        raise Unbuildable(f"peft {peft.__version__} has no {class_name}")
    fields = config_class.__dataclass_fields__
    arguments = dict(given)
    if "target_modules" in fields:
        arguments.setdefault("target_modules", _TARGETS[base])
    if base == "bert":
        arguments.pop("task_type", None)
    if class_name == "IA3Config":
        arguments["feedforward_modules"] = _TARGETS[base][1:]
    try:
        # Some methods are initialized in float32 only; what they become is judged in float64.
        torch.set_default_dtype(torch.float32)
        model = build(_BASES[base]).float()
        model = peft.get_peft_model(model, config_class(**arguments))
    except Exception as error:
        raise Unbuildable(f"{type(error).__name__}: {error}") from error
    finally:
        torch.set_default_dtype(torch.float64)
    settle(model)
    samples = make_samples(model.get_base_model())
    if name in ("poly", "multitask prompt tuning"):
        for place, sample in enumerate(samples):
            sample["task_ids"] = torch.tensor([place % 2])
    return Subject(model, samples, losses, f"{class_name} on {base}")
