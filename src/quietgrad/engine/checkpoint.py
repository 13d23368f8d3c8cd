"""What a checkpoint of an engine holds, and whether one fits."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from quietgrad._files import replace_file
from quietgrad._version import __version__
from quietgrad.accounting.ledger import Ledger
from quietgrad.distributed.sharding import is_distributed_tensor, whole_of
from quietgrad.errors import EngineStateError, QuietgradError

if TYPE_CHECKING:
    from quietgrad.distributed.world import World
    from quietgrad.engine.budget import Budget
    from quietgrad.engine.update import Radii
    from quietgrad.methods.inner_outer import Momentum
    from quietgrad.sampling.loader import BatchLoader, LogicalBatch

_FORMAT = 2
_FIELDS: dict[str, Any] = {
    "settings": Mapping,
    "model": Mapping | None,
    "optimizer": Mapping | None,
    "position": Mapping,
    "budget": Mapping,
    "ledger": Mapping,
    "steps_taken": object,  # compared below
    "rng": torch.Tensor | None,
    "radii": Sequence,
    "momentum": Mapping | None,
    "digest": str,
}
_DIGESTED = ("settings", "position", "budget", "ledger", "steps_taken", "radii")
_BUDGET_FIELDS: dict[str, Any] = {
    "noise_multiplier": float,
    "recorded": object,  # compared below
    "lost": int,
    "is_off_plan": bool,
    "pass_number": int | None,
    "noise_in_pass": Sequence,
}
_LEDGER_FIELDS: dict[str, Any] = {"id": str, "adjacency": str, "events": Sequence}


def _stamp(content: dict[str, Any]) -> dict[str, Any]:
    """The content with what is needed to recognize it later, whole."""
    return {"format": _FORMAT, "quietgrad": __version__, "digest": _digest(content), **content}


def _digest(state: Mapping[str, Any]) -> str:
    """Of what the privacy of going on rests on. It finds damage; there is no secret in it."""
    plain = json.dumps({part: state[part] for part in _DIGESTED}, sort_keys=True, default=repr)
    return hashlib.sha256(plain.encode()).hexdigest()


def _check_state(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a state that is not one, or was taken under other settings.

    Args:
        state: what is to be loaded.
        settings: of the engine that is to load it.
    """
    if not isinstance(state, Mapping):
        raise EngineStateError(
            f"not a state: expected what engine.state_dict() returned, got {type(state).__name__}."
        )
    if state.get("format") != _FORMAT:
        raise EngineStateError(
            f"not a state this version can read: format {state.get('format')!r}, written by "
            f"quietgrad {state.get('quietgrad', 'unknown')}; expected format {_FORMAT}."
        )
    _check_fields(state, _FIELDS, "the state")
    _check_fields(state["budget"], _BUDGET_FIELDS, "its budget")
    _check_fields(state["ledger"], _LEDGER_FIELDS, "its ledger")
    taken, recorded = state["steps_taken"], state["budget"]["recorded"]
    held = Ledger.from_dict(state["ledger"]).steps
    counts = (taken, recorded, state["budget"]["lost"])
    plain = all(type(each) is int and each >= 0 for each in counts)
    if not plain or not taken <= recorded <= held:
        raise EngineStateError(
            f"the state contradicts itself: {taken} steps taken, {recorded} recorded, {held} in "
            "its ledger. It was edited, or put together from two; restore a copy of it."
        )
    _check_settings(state["settings"], settings)
    if _digest(state) != state["digest"]:
        raise EngineStateError(
            "the state was altered since it was saved: its digest is not that of its budget, "
            "ledger, settings and place in the data. Restore a copy of it."
        )


def _check_settings(saved: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if saved.get(name) != value:
            raise EngineStateError(
                f"the state was saved with {name}={saved.get(name)!r}, and this engine has "
                f"{value!r}: a run is resumed as it was begun. To go on with other settings, "
                "train a new engine with ledger= the old one's ledger; both then count."
            )


def _check_ledger_file(saved: Mapping[str, Any], ledger: Ledger) -> None:
    """Refuse to go on in memory with what was kept in a file: the file may hold more.

    Args:
        saved: a ledger, as it was saved.
        ledger: the one to go on with.
    """
    if saved.get("has_file") and not ledger.has_file and saved["id"] != ledger.id:
        raise EngineStateError(
            "the state was saved by an engine that kept its ledger in a file, and this one has "
            "none: steps taken after the state was saved would be forgotten. Pass ledger= that "
            "file (or, if it is lost, a new one, knowing that such steps are not counted)."
        )


def _check_fields(part: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    advice = "expected a whole one, as engine.state_dict() returned it; restore a copy."
    if lacking := sorted(set(expected) - set(part)):
        raise EngineStateError(f"{where} lacks {', '.join(lacking)}: {advice}")
    for name, kind in expected.items():
        value = part[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise EngineStateError(f"{where} has {type(value).__name__} for {name}: {advice}")


@contextmanager
def _explain_load_errors() -> Iterator[None]:
    """Whatever loading makes of a part that fits nowhere, said in terms of the state."""
    try:
        yield
    except QuietgradError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise EngineStateError(
            f"the state does not fit this engine ({type(e).__name__}: {e}): load one saved from "
            "the same model and optimizer. The weights may be half loaded by now; the ledger "
            "holds everything."
        ) from e


def _copy_to_host(state: Any) -> Any:
    """A copy on the CPU, which takes no room on a device and can be loaded where there is none.

    What is sharded is gathered.
    """
    leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    moved = {
        id(leaf): whole_of(leaf.detach()).cpu()
        for leaf in leaves
        if leaf.device.type != "cpu" or is_distributed_tensor(leaf)
    }
    return copy.deepcopy(state, moved)  # which takes these for copies that it made before


def whole_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """Of a sharded model, gathered on the CPU by all ranks together; None of one that is whole.

    Weights that are tied have one name.
    """
    held = dict(model.named_parameters())
    if not any(map(is_distributed_tensor, held.values())):
        return None
    kept = {*held, *dict(model.named_buffers())}
    found = {name: value for name, value in model.state_dict().items() if name in kept}
    return {name: whole_of(value.detach()).cpu().contiguous() for name, value in found.items()}


def read_state(path: str | Path) -> dict[str, Any]:
    """The state in a file, on the CPU. Only plain data is read from it, never code.

    Raises:
        EngineStateError: the file holds no state, or not a whole one.
    """
    try:
        # Loading it moves each part to the device that the engine has it on.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged file makes of torch.load
        raise EngineStateError(
            f"{path} cannot be read as a checkpoint: restore a copy of it. The ledger still says "
            "what was spent."
        ) from error
    if not isinstance(state, dict):
        raise EngineStateError(f"{path} is not a checkpoint of an engine.")
    return state


def save_state(path: Path, state: Mapping[str, Any], world: World) -> None:
    """Write it to a file, whole, or each part of the model to its own.

    The leader's file is written last and says of how many steps the others are: a crash leaves the
    old files, or the new ones.
    """
    own = world.file_of_part(path, state["steps_taken"])

    def write(is_last: bool) -> None:
        with world.agreeing():
            if world.writes_part and (own == path) is is_last:
                replace_file(own, lambda stream: torch.save(dict(state), stream))

    if world.part_name:
        write(is_last=False)
    write(is_last=True)
    if own != path and world.writes_part:
        name = own.name.rpartition("-")[0]
        for old in path.parent.glob(f"{escape(name)}-*"):
            if old != own:
                old.unlink(missing_ok=True)


def load_state(path: Path, world: World) -> dict[str, Any]:
    """What `save_state` wrote, for this rank's part of the model."""
    if not world.part_name:
        with world.agreeing():
            return read_state(path)
    steps = world.lead(lambda: int(read_state(path).get("steps_taken", -1)))
    with world.agreeing():
        state = read_state(world.file_of_part(path, steps))
    facts = [state.get("steps_taken"), state.get("ledger", {}).get("id")]
    world.require_same(lambda: {"the steps and the ledger of the saved state": facts})
    return state


@dataclass
class TrainingState:
    """The weights, the place in the data and what was spent, which move on together.

    Attributes:
        model: the weights.
        optimizer: what it keeps from step to step.
        loader: the place in the data.
        ledger: everything that was released, by others too.
        budget: what is planned, and what was recorded of it.
        settings: what must be the same to go on.
        seed: with one, the generator of dropout is saved too.
        radii: of the groups, which may move.
        momentum: past weights and gradients, if they count.
        steps_taken: number of updates in the weights.
        generation: how often a state was loaded.
    """

    model: nn.Module
    optimizer: Optimizer
    loader: BatchLoader
    ledger: Ledger
    budget: Budget
    settings: Mapping[str, Any]
    seed: int | None
    radii: Radii
    momentum: Momentum | None = None
    steps_taken: int = 0
    generation: int = 0
    _last_batch: LogicalBatch | None = None

    @property
    def epochs_completed(self) -> int:
        """Number of whole passes behind the weights."""
        return int(self.loader.bookmark(self._last_batch)["pass"])

    def advance(self, batch: LogicalBatch) -> int:
        """The step of this batch is taken.

        Returns:
            Its number, from 0.
        """
        self._last_batch = batch
        self.steps_taken += 1
        return self.steps_taken - 1

    def state_dict(self, *, is_copied: bool = True, has_weights: bool = True) -> dict[str, Any]:
        """A copy of everything, as plain data and tensors on the CPU.

        If it is not copied, the tensors are the model's and the optimizer's own. They may be left
        out.
        """
        copied = _copy_to_host if is_copied else dict
        return _stamp(
            {
                "settings": dict(self.settings),
                # Copies: weights that go on changing would run ahead of the ledger beside them.
                "model": copied(self.model.state_dict()) if has_weights else None,
                "optimizer": copied(self.optimizer.state_dict()) if has_weights else None,
                "position": self.loader.bookmark(self._last_batch),
                "budget": self.budget.state_dict(),
                "ledger": self.ledger.to_dict(),
                "steps_taken": self.steps_taken,
                # Dropout draws from it. Noise and sampling do not, and their keys are never saved.
                "rng": None if self.seed is None else torch.get_rng_state(),
                "radii": [group.radius for group in self.radii.groups],
                "momentum": None if self.momentum is None else self.momentum.state_dict(),
            }
        )

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        spread: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        """Go on where `state_dict` was taken; what the ledger holds beyond it stays counted.

        Args:
            state: as it was saved.
            spread: makes of the weights in it this rank's part.
        """
        _check_state(state, self.settings)
        self.generation += 1
        # First the ledger, then the weights: whatever fails below, nothing is left uncounted.
        saved = Ledger.from_dict(state["ledger"])
        _check_ledger_file(state["ledger"], self.ledger)
        same_history = not self.ledger.events or saved.id == self.ledger.id
        lost = self.ledger.cover(saved)
        with _explain_load_errors():
            same_pass = self.loader.go_to(state["position"])
            self.budget.load_state_dict(
                state["budget"], lost=lost, same_history=same_history, same_pass=same_pass
            )
            if state["model"] is not None:
                state = spread(state)
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
            self.radii.load(state["radii"])
            if self.momentum is not None:
                self.momentum.load_state_dict(state["momentum"])
            if state["rng"] is not None and self.seed is not None:
                torch.set_rng_state(state["rng"].cpu())
        self.steps_taken = state["steps_taken"]
        self._last_batch = None
