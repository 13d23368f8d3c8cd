"""Private training with accelerate: an Accelerator that leaves training to an engine."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NoReturn

from quietgrad.engine.engine import PrivacyEngine
from quietgrad.errors import IntegrationError, MissingExtraError
from quietgrad.integrations.common import (
    Argument,
    attribute,
    refuse_arguments,
    share_weights,
)

try:
    _Accelerator: Any = import_module("accelerate").Accelerator
except ImportError as error:
    raise MissingExtraError("accelerate", "accelerate") from error

_SHARDING = (
    "accelerate would wrap or shard the model. Apply torch's fully_shard or parallelize_module to "
    "it yourself, before the optimizer and the engine are made, without an Accelerator "
    "(docs/distributed.md)"
)
_ACCUMULATION = (
    "the samples of a step are drawn at once. Pass PrivacyEngine(batch_size=) the expected number "
    "of samples of a whole step, and physical_batch_size= what goes through the model at once"
)
_COMPILATION = "what torch.compile makes cannot be seen. Pass PrivacyEngine(compile=True)"


def _precision(owner: Any) -> str | None:
    found = getattr(owner, "mixed_precision", None)
    return None if str(found) in ("None", "no", "bf16") else f"mixed_precision={str(found)!r}"


def _accumulation_plugin(owner: Any) -> str | None:
    plugin = getattr(owner, "gradient_accumulation_plugin", None)
    steps = getattr(plugin, "num_steps", 1)
    return f"gradient_accumulation_plugin=... of {steps} steps" if steps != 1 else None


def _handlers(owner: Any) -> str | None:
    kinds = [type(each).__name__ for each in getattr(owner, "kwargs_handlers", None) or ()]
    return next((f"kwargs_handlers=[{kind}]" for kind in kinds if kind in _FLOAT16), None)


_FLOAT16 = ("GradScalerKwargs", "FP8RecipeKwargs", "AORecipeKwargs", "TERecipeKwargs")


def _dynamo(owner: Any) -> str | None:
    """The one that is in force, which may come from the environment."""
    plugin = getattr(getattr(owner, "state", owner), "dynamo_plugin", None)
    backend = getattr(getattr(plugin, "backend", None), "value", "NO")
    return attribute("dynamo_backend", "no", "NO")(owner) or (
        f"dynamo_plugin=... of {backend}" if backend != "NO" else None
    )


def _distribution(owner: Any) -> str | None:
    """How ranks share a model, if accelerate does that; it may come from the environment."""
    for name in ("fsdp_plugin", "deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin"):
        if isinstance(owner, SimpleNamespace) and getattr(owner, name, None) is not None:
            return f"{name}=..."
    kind = str(getattr(getattr(owner, "distributed_type", None), "value", "NO"))
    is_plain = kind == "NO" or kind.startswith("MULTI_")
    return None if is_plain else f"with distributed_type {kind}"


_PLUGIN = Argument("refused", _SHARDING, _distribution)

ACCELERATOR_ARGUMENTS = {
    "device_placement": Argument("works"),
    "split_batches": Argument("harmless", "validation only"),
    "mixed_precision": Argument(
        "in part",
        "a GradScaler follows the data, and 8-bit types were not tried. Use 'bf16', or 'no' and "
        "PrivacyEngine(loss_scale=1024.0) for float16 of your own",
        _precision,
    ),
    "gradient_accumulation_steps": Argument(
        "refused", _ACCUMULATION, attribute("gradient_accumulation_steps", 1)
    ),
    "cpu": Argument("works"),
    "dataloader_config": Argument("harmless", "validation only"),
    "deepspeed_plugin": _PLUGIN,
    "fsdp_plugin": _PLUGIN,
    "torch_tp_plugin": Argument("refused", _SHARDING, attribute("torch_tp_plugin")),
    "megatron_lm_plugin": _PLUGIN,
    "rng_types": Argument("harmless", "validation only"),
    "log_with": Argument("works", "log no training losses"),
    "project_dir": Argument("works"),
    "project_config": Argument("works"),
    "gradient_accumulation_plugin": Argument("refused", _ACCUMULATION, _accumulation_plugin),
    "step_scheduler_with_optimizer": Argument("works"),
    "kwargs_handlers": Argument(
        "in part", "a GradScaler follows the data. Use mixed_precision='bf16'", _handlers
    ),
    "dynamo_backend": Argument("refused", _COMPILATION, _dynamo),
    "dynamo_plugin": Argument("refused", _COMPILATION, _dynamo),
    "deepspeed_plugins": _PLUGIN,
    "parallelism_config": Argument("refused", _SHARDING, attribute("parallelism_config")),
}

_NO_SYNC = "ranks add up clipped sums in engine.step(), and at no other time. Leave it out"
_NO_CLIPPING = (
    "the gradient of every sample is clipped already, and there is no gradient of a batch to clip. "
    "Leave it out; PrivacyEngine(clipping=, radius=) sets how samples are clipped"
)

REFUSED_METHODS = {
    "accumulate": f"{_ACCUMULATION}. Call engine.step() once after each batch of engine.batches()",
    "backward": (
        "a mean of losses cannot be clipped. Call engine.backward(losses) with one loss per "
        "sample, inside 'for batch in engine.batches()', and engine.step() for optimizer.step()"
    ),
    "clip_grad_norm_": _NO_CLIPPING,
    "clip_grad_value_": _NO_CLIPPING,
    "join_uneven_inputs": _NO_SYNC,
    "lomo_backward": "its steps are not the engine's. Use another optimizer",
    "maybe_context_parallel": _SHARDING,
    "no_sync": _NO_SYNC,
    "trigger_sync_in_backward": _NO_SYNC,
    "unscale_gradients": "there is no GradScaler. Leave it out",
}


def _refuse_method(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise IntegrationError(f"accelerator.{name}(): {REFUSED_METHODS[name]}.")

    method.__name__ = name
    method.__doc__ = "Refused."
    return method


class PrivateAccelerator(_Accelerator):  # type: ignore[misc]
    """An Accelerator for training with an engine, which does what ``backward`` and ``step`` did.

    ``prepare(model, optimizer, scheduler)`` may come before the engine or after it; the engine
    takes what it returned, or what it was given. Models are not wrapped: with several processes
    the engine adds up over them. ``save_state`` and ``load_state`` want the engine to be
    registered with ``register_for_checkpointing``.

    Args:
        args: As for ``Accelerator``.
        kwargs: As for ``Accelerator``. What would void the guarantee is refused.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(_Accelerator).bind(*args, **kwargs).arguments
        # Before anything is set for the whole process, as far as it can be seen.
        for name in given.keys() & ACCELERATOR_ARGUMENTS.keys():
            argument = ACCELERATOR_ARGUMENTS[name]
            if shown := argument.used(SimpleNamespace(**{name: given[name]})):
                raise IntegrationError(f"Accelerator({shown}): {argument.note}.")
        super().__init__(*args, **kwargs)
        self._engines: list[PrivacyEngine] = []
        refuse_arguments(self, _Accelerator, ACCELERATOR_ARGUMENTS)

    def prepare_model(
        self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        """The model on its device, with autocast if asked for, and in no wrapper."""
        prepared = super().prepare_model(model, device_placement, evaluation_mode=True)
        if self.num_processes > 1 and not evaluation_mode:
            share_weights(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """A scheduler that takes one step for each of the engine's, on any number of ranks."""
        prepared = super().prepare_scheduler(scheduler)
        prepared.split_batches = True  # batch_size= of an engine is that of all ranks together
        return prepared

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load these with :meth:`save_state` and :meth:`load_state`: the engine, too."""
        super().register_for_checkpointing(*objects)
        self._engines += [each for each in objects if isinstance(each, PrivacyEngine)]

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        """Save everything, between two steps of the engine."""
        self._require_engine("save_state")
        for engine in self._engines:
            engine._require_savable()
        return super().save_state(*args, **kwargs)

    def load_state(self, *args: Any, **kwargs: Any) -> Any:
        """Go on where :meth:`save_state` was called."""
        self._require_engine("load_state")
        return super().load_state(*args, **kwargs)

    def _require_engine(self, method: str) -> None:
        if not self._engines:
            raise IntegrationError(
                f"accelerator.{method}() without an engine: the state would not say what was "
                "spent. Call accelerator.register_for_checkpointing(engine) first."
            )


for _name in REFUSED_METHODS:
    setattr(PrivateAccelerator, _name, _refuse_method(_name))
