"""Which fields of ``TrainingArguments`` private training takes, and what to do about the others.

Every field of transformers' and TRL's arguments is in one of the tables below. A field that is in
none, of a release to come, may only have its default.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quietgrad.errors import IntegrationError


@dataclass(frozen=True)
class Refused:
    """A field of which only some values are taken.

    Attributes:
        accepts: whether a value is taken.
        why: what the others would do.
        remedy: what to do instead.
    """

    accepts: Callable[[Any], bool]
    why: str
    remedy: str


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value is each or value == each for each in values)


def _is_off(value: Any) -> bool:
    return not value


def _takes_checkpointing(options: Any) -> bool:
    known = dict(options or {})
    return not known.get("use_reentrant") and not known.get("offload")


def _is_of_held_out_data(metric: Any) -> bool:
    return metric is None or not str(metric).startswith(("train", "loss_not_private"))


# What training does with them; tests/integrations/test_arguments.py tests each.
WORKS = frozenset(
    """
    output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate
    lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay adam_beta1 adam_beta2
    adam_epsilon optim_args label_smoothing_factor bf16 gradient_checkpointing
    dataloader_num_workers remove_unused_columns label_names eval_strategy eval_steps
    save_strategy save_steps save_total_limit save_only_model load_best_model_at_end
    greater_is_better logging_strategy logging_steps logging_first_step report_to seed
    """.split()
)

# What has nothing to do with how samples are used: devices, evaluation, files, names, the hub. Of
# the data loader's options these act on evaluation alone, and of those of DistributedDataParallel
# none has an effect, because the engine adds up over ranks itself.
NEUTRAL = frozenset(
    """
    optim_target_modules average_tokens_across_devices bf16_full_eval fp16_full_eval tf32
    liger_kernel_config use_cache log_on_each_node logging_nan_inf_filter log_level
    log_level_replica disable_tqdm run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id eval_delay per_device_eval_batch_size prediction_loss_only
    eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
    include_for_metrics batch_eval_metrics save_on_each_node push_to_hub hub_token
    hub_private_repo hub_model_id hub_always_push hub_revision ignore_data_skip
    restore_callback_states_from_checkpoint use_cpu dataloader_drop_last dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
    dataloader_in_order length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb
    ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout do_train do_eval do_predict
    resume_from_checkpoint local_rank full_determinism
    predict_with_generate generation_max_length generation_num_beams generation_config
    model_init_kwargs trust_remote_code chat_template_path dataset_text_field dataset_kwargs
    dataset_num_proc eos_token max_length truncation_mode shuffle_dataset packing_strategy
    pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss pad_token
    disable_dropout precompute_ref_log_probs precompute_ref_batch_size ref_model_mixup_alpha
    ref_model_sync_steps f_alpha_divergence_coef discopop_tau label_smoothing beta
    """.split()
)

_BATCH = "pass batch_size=, the number of samples of a step, to the trainer"
_NO_SHARING = "launch ordinary data parallel training with torchrun (docs/distributed.md)"
_SIDE = "leave it out"

REFUSED: Mapping[str, Refused] = {
    "gradient_accumulation_steps": Refused(
        _is(1),
        "batches are added up by the engine, and a step has the samples of one draw",
        f"{_BATCH} (per_device_train_batch_size * gradient_accumulation_steps * processes); it "
        "runs in parts of per_device_train_batch_size",
    ),
    "max_grad_norm": Refused(
        _is(0, None, 1.0),
        "it clips the gradient of the whole batch, and private training clips that of each sample",
        "leave it out, or pass max_grad_norm=0 (the default, 1.0, is taken for 0 here); the radius "
        "of a sample is engine_options={'radius': ...}",
    ),
    "optim": Refused(
        lambda value: not any(part in str(value).lower() for part in ("lomo", "layerwise")),
        "it steps inside of the backward pass, where gradients have no noise yet",
        "take an optimizer that steps afterwards, such as 'adamw_torch'",
    ),
    "fp16": Refused(
        _is_off,
        "its GradScaler halves the scale of losses when a gradient overflows, which follows the "
        "data and is covered by no noise",
        "pass bf16=True, or train in float32; for a model in float16, "
        "engine_options={'loss_scale': 1024.0}, a constant",
    ),
    "train_sampling_strategy": Refused(
        _is("random"),
        "who takes part in a step must be drawn as the accountant was told",
        "leave it out: batches are Poisson samples, or what engine_options={'sampling': ...} says; "
        "to pad less, pass engine_options={'lengths': train_dataset['length']}",
    ),
    "data_seed": Refused(
        _is(None),
        "who takes part in a step must stay secret, and whoever knows the seed knows it",
        f"{_SIDE} (for tests: engine_options={{'seed': ...}})",
    ),
    "accelerator_config": Refused(
        lambda value: not getattr(value, "gradient_accumulation_kwargs", None),
        "its gradient_accumulation_kwargs set the number of batches of a step",
        _BATCH,
    ),
    "neftune_noise_alpha": Refused(
        _is(None, 0),
        "its noise follows the length of the longest text of the batch",
        _SIDE,
    ),
    "auto_find_batch_size": Refused(
        _is_off,
        "it begins again with smaller batches after an error that a single sample may have caused",
        "choose per_device_train_batch_size so that it fits; it does not change the result",
    ),
    "torch_compile": Refused(
        _is_off,
        "the engine looks into the forward pass, so that the model would run uncompiled",
        "pass engine_options={'compile': True}, which compiles what was verified",
    ),
    "torch_compile_backend": Refused(_is(None), "it sets torch_compile", "see torch_compile"),
    "torch_compile_mode": Refused(_is(None), "it sets torch_compile", "see torch_compile"),
    "use_liger_kernel": Refused(
        _is_off, "its kernels were not tried: gradients of samples may not be seen in them", _SIDE
    ),
    "gradient_checkpointing_kwargs": Refused(
        _takes_checkpointing,
        "reentrant checkpointing hides the backward pass, and offloading was not tried",
        "pass {'use_reentrant': False}, which is the default",
    ),
    "metric_for_best_model": Refused(
        _is_of_held_out_data,
        "what is chosen by a loss or a metric of the training data is not private",
        "name a metric of the evaluation, on data that is not trained on",
    ),
    "include_num_input_tokens_seen": Refused(
        _is("no"), "the number of tokens says who was drawn", _SIDE
    ),
    "skip_memory_metrics": Refused(
        _is(True), "the memory of a step says how many samples were drawn", _SIDE
    ),
    "debug": Refused(_is_off, "it prints activations of training samples", _SIDE),
    "torch_empty_cache_steps": Refused(
        _is(None), "the engine runs the micro-batches, and does not empty caches", _SIDE
    ),
    "enable_jit_checkpoint": Refused(
        _is_off,
        "it saves in the middle of a step, before its noise is added",
        "save more often (save_steps=): what is lost in between stays counted in the ledger",
    ),
    "fsdp": Refused(_is_off, "models that the Trainer shards were not tried", _NO_SHARING),
    "fsdp_config": Refused(
        lambda value: not value or not dict(value).get("version"),
        "models that the Trainer shards were not tried",
        _NO_SHARING,
    ),
    "deepspeed": Refused(_is_off, "DeepSpeed has a backward pass of its own", _NO_SHARING),
    "parallelism_config": Refused(_is(None), "it was not tried", _NO_SHARING),
    "hub_strategy": Refused(
        _is("every_save", "end"),
        "a checkpoint has the place in the data, which says with sampling='shuffled' who takes "
        "part in the steps to come",
        "pass 'every_save' or 'end', which upload the weights",
    ),
    # Seq2SeqTrainingArguments
    "sortish_sampler": Refused(
        _is_off,
        "who takes part in a step must be drawn as the accountant was told",
        "to pad less, pass engine_options={'lengths': ...}",
    ),
    # SFTConfig and DPOConfig
    "packing": Refused(
        _is_off,
        "texts of several samples share a row, so that none of them can be clipped by itself",
        "pass packing=False; to pad less, pass engine_options={'lengths': ...}",
    ),
    "padding_free": Refused(
        _is_off,
        "all texts of a batch share one row, so that none of them can be clipped by itself",
        "pass padding_free=False; to pad less, pass engine_options={'lengths': ...}",
    ),
    "activation_offloading": Refused(_is_off, "it was not tried", _SIDE),
    "router_aux_loss_coef": Refused(
        _is_off, "the auxiliary loss of experts is computed over the whole batch", "pass 0.0"
    ),
    "loss_type": Refused(
        lambda value: (
            value in ("nll", "sigmoid", "hinge")
            or (isinstance(value, list) and len(value) == 1 and _is_loss_of_pair(value[0]))
        ),
        "no loss per sample is known for it (some compare or sort the samples of a batch)",
        "use 'nll' in SFTConfig, or 'sigmoid' or 'hinge' in DPOConfig",
    ),
    "loss_weights": Refused(_is(None), "one loss is computed", _SIDE),
    "ld_alpha": Refused(_is(None), "it was not tried", _SIDE),
    "f_divergence_type": Refused(_is("reverse_kl"), "it was not tried", "use 'reverse_kl'"),
    "use_weighting": Refused(_is_off, "it was not tried", _SIDE),
    "sync_ref_model": Refused(_is_off, "it was not tried", _SIDE),
}


def _is_loss_of_pair(name: object) -> bool:
    return name in ("sigmoid", "hinge")


def check_arguments(args: Any) -> None:
    """Refuse what the guarantee could not be kept with.

    Fields that a user's own subclass adds are for the user's code, and are not looked at.

    Args:
        args: a ``TrainingArguments``, or one of a class derived from it.

    Raises:
        IntegrationError: a value is refused; it says which, why, and what to do.
    """
    for field in fields_of_frameworks(type(args)):
        value = getattr(args, field.name)
        rule = REFUSED.get(field.name)
        if rule is not None:
            if not rule.accepts(value):
                raise IntegrationError(
                    f"{field.name}={_shown(value)} is not possible in private training: "
                    f"{rule.why}. Instead: {rule.remedy}."
                )
        elif field.name not in WORKS | NEUTRAL and value != _default_of(field):
            raise IntegrationError(
                f"{field.name}={_shown(value)} is not known to this version of quietgrad: it is "
                f"not clear what it does to the guarantee. Leave it at {_default_of(field)!r}."
            )


def fields_of_frameworks(kind: type) -> Iterator[dataclasses.Field[Any]]:
    """The fields that transformers or TRL declare, in this class or in one above it."""
    known = {field.name: field for field in dataclasses.fields(kind)}
    declared = {
        name
        for base in kind.__mro__
        if base.__module__.split(".")[0] in ("transformers", "trl")
        for name in inspect.get_annotations(base)
    }
    return (field for name, field in known.items() if name in declared)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _shown(value: Any) -> str:
    text = str(getattr(value, "value", value))
    return repr(text) if isinstance(value, str) else text
