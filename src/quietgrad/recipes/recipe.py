"""The parts of an experiment: data, model, task, and every public constant of its training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from quietgrad._checks import (
    require_count,
    require_delta,
    require_number,
    require_positive,
    unknown_name,
)
from quietgrad.accounting.events import Adjacency
from quietgrad.clipping import Clipping
from quietgrad.clipping import resolve as resolve_clipping
from quietgrad.methods.inner_outer import InnerOuter

OPTIMIZERS = ("sgd", "adam", "adamw", "nadam")
# The constant of each clipping function that has one besides the radius.
_STABILITY = {"auto-s": "gamma", "psac": "r"}
# Settings that PrivacyEngine takes under the same name.
_ENGINE_SETTINGS = (
    "batch_size epochs epsilon delta radius grouping physical_batch_size records_per_unit sampling"
    " adjacency accountant noise"
).split()


@dataclass(frozen=True)
class Settings:
    """Every public constant of a private training; a command's options have these names.

    Attributes:
        epochs: passes over the data.
        batch_size: expected number of samples in a step.
        learning_rate: of the optimizer.
        epsilon: budget to stay within.
        delta: probability with which the bound may fail.
        optimizer: ``sgd``, ``adam``, ``adamw`` or ``nadam``.
        momentum: of SGD, after the noise.
        weight_decay: of the optimizer.
        clipping: name of the clipping function.
        radius: its R.
        stability: gamma of auto-s, r of psac; None for the function's own.
        grouping: which parameters are clipped together.
        inner_steps: past weights in the inner momentum (K0); None for none.
        inner_momentum: their weight (gamma0).
        views: random views of each sample, clipped as one.
        physical_batch_size: most samples in memory at once.
        records_per_unit: most records of a unit in a step, where units of several are protected.
        sampling: how batches are drawn.
        adjacency: which data sets are neighbours.
        accountant: what epsilon is computed with.
        noise: where the noise comes from.
        limit: train on the first so many samples only, for a shorter experiment.
        ordinary_learning_rate: of the training without privacy, if another one serves it better.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    epsilon: float
    delta: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clipping: str = "auto-s"
    radius: float = 1.0
    stability: float | None = None
    grouping: str = "all-layer"
    inner_steps: int | None = None
    inner_momentum: float = 0.08
    views: int = 1
    physical_batch_size: int | None = None
    records_per_unit: int | None = None
    sampling: str = "poisson"
    adjacency: Adjacency | None = None
    accountant: str = "pld"
    noise: str = "secure"
    limit: int | None = None
    ordinary_learning_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "views"):
            require_count(name, getattr(self, name), at_least=1)
        for name in ("physical_batch_size", "records_per_unit", "limit"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), at_least=1)
        for name in ("learning_rate", "epsilon", "radius"):
            require_positive(name, getattr(self, name))
        if self.ordinary_learning_rate is not None:
            require_positive("ordinary_learning_rate", self.ordinary_learning_rate)
        require_delta("delta", self.delta)
        require_number("weight_decay", self.weight_decay, at_least=0)
        if require_number("momentum", self.momentum, at_least=0) >= 1:
            raise ValueError(f"momentum={self.momentum!r} is not valid: expected a number below 1")
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)
        _ = self.inner_outer  # refuses its own settings

    @property
    def clipping_function(self) -> Clipping:
        """The clipping function with its constant."""
        function = resolve_clipping(self.clipping)
        if self.stability is None:
            return function
        constant = _STABILITY.get(self.clipping)
        if constant is None:
            raise ValueError(
                f"clipping {self.clipping!r} has no constant for stability={self.stability:g}:"
                f" it is {' and '.join(f'{c} of {n}' for n, c in _STABILITY.items())}. Leave"
                " --stability out, or choose one of these"
            )
        return resolve_clipping(replace(function, **{constant: self.stability}))  # type: ignore[type-var]

    @property
    def inner_outer(self) -> InnerOuter | None:
        """Inner momentum with SGD's momentum after the noise; None where there is none."""
        if self.inner_steps is None:
            return None
        return InnerOuter(
            length=self.inner_steps,
            inner=self.inner_momentum,
            outer=self.momentum,
            outer_means="carried",
        )

    @property
    def engine_options(self) -> dict[str, Any]:
        """As `PrivacyEngine` takes them."""
        return {
            **{name: getattr(self, name) for name in _ENGINE_SETTINGS},
            "clipping": self.clipping_function,
            "momentum": self.inner_outer,
        }

    def require_effect(self, asked: Collection[str]) -> None:
        """Refuse settings that were asked for, by name, and that nothing reads."""
        if "momentum" in asked and self.optimizer != "sgd":
            raise ValueError(
                f"momentum={self.momentum:g} has no effect: {self.optimizer} has constants of"
                " its own. Expected sgd: choose --optimizer sgd, or leave --momentum out"
            )
        if "inner_momentum" in asked and not self.inner_steps:
            raise ValueError(
                f"inner_momentum={self.inner_momentum:g} has no effect without past weights to"
                " weigh: add --inner-steps (2, for example), or leave --inner-momentum out"
            )


def on_device_of(model: nn.Module, batch: Sequence[Tensor]) -> Sequence[Tensor]:
    """The batch where the model is; it does not wait for columns in pinned memory."""
    place = next(model.parameters()).device
    if place.type == "cpu":
        return batch
    return [column.to(place, non_blocking=column.is_pinned()) for column in batch]


class Task(ABC):
    """A kind of learning. Scores are of held-out data, so they may be shown."""

    metric: ClassVar[str]
    """The score that runs are compared by."""
    is_share: ClassVar[bool] = True
    """Whether it is a share of one, and printed in per cent."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """One loss for each sample of a batch."""

    @abstractmethod
    def scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Figures after an epoch, among them "loss"."""

    def final_scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Figures that take too long for every epoch."""
        return {}


class Classification(Task):
    """Labels in the last column; the model makes logits of the others."""

    metric = "accuracy"

    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Cross-entropy."""
        *inputs, labels = batch
        return F.cross_entropy(model(*inputs), labels, reduction="none")

    @torch.no_grad()
    def scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Cross-entropy and accuracy."""
        loss = right = total = 0.0
        for batch in DataLoader(test, batch_size=256):
            *inputs, labels = on_device_of(model, batch)
            logits = model(*inputs)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            right += (logits.argmax(1) == labels).sum().item()
            total += len(labels)
        return {"loss": loss / total, "accuracy": right / total}


@dataclass(frozen=True)
class Split:
    """Data sets of (input, ..., label) tuples. Only `train` is private.

    Attributes:
        train: the training data.
        test: held-out data.
        lengths: of the samples of `train` where they differ: similar ones are batched together.
        units: the id of the unit that each sample of `train` belongs to, if one is not a unit.
    """

    train: Dataset[Any]
    test: Dataset[Any]
    lengths: Sequence[int] | Tensor | None = None
    units: Sequence[Any] | Tensor | None = None

    @classmethod
    def of_columns(
        cls,
        train: Sequence[Tensor],
        test: Sequence[Tensor],
        lengths: Tensor | None = None,
        units: Sequence[Any] | Tensor | None = None,
    ) -> Split:
        """From the columns of both parts."""
        return cls(TensorDataset(*train), TensorDataset(*test), lengths, units)


@dataclass(frozen=True)
class Places:
    """The user's folders, instead of what was fetched.

    Attributes:
        data: with the data set's usual files.
        model: a pretrained model, as `transformers` saves it.
    """

    data: Path | None = None
    model: Path | None = None


@dataclass(frozen=True)
class Reference:
    """A figure of a paper to compare with.

    Attributes:
        source: paper and table.
        clipping: which clipping function it is for; "none" for training without privacy.
        epsilon: at which it was measured; None without privacy.
        value: of the recipe's metric, as a share of one.
        tolerance: how far a mean of ours may fall below it, where the recipe is the paper's.
        note: how the paper's experiment differs.
    """

    source: str
    clipping: str
    epsilon: float | None
    value: float
    tolerance: float = 0.01
    note: str = ""


# Papers that several recipes refer to.
AUTOMATIC_CLIPPING = '"Automatic Clipping"'
PSAC = '"Per-Sample Adaptive Clipping"'
CLIPPING_BIAS = '"A Theory to Instruct Differentially-Private Learning via Clipping Bias Reduction"'
INNER_OUTER = "inner-outer momentum, K0 = 2 and gamma0 = 0.08 (--inner-steps 2)"

LoadData = Callable[[Places], Split]
BuildModel = Callable[[Places], nn.Module]


def synthetic(columns: Callable[[torch.Generator], Sequence[Tensor]]) -> LoadData:
    """Draws random columns, the same for training and tests, for smoke runs."""

    def load_data(places: Places) -> Split:
        drawn = columns(torch.Generator().manual_seed(0))
        return Split.of_columns(drawn, drawn)

    return load_data


@dataclass(frozen=True)
class Smoke:
    """Synthetic data and a small model for a run of seconds that fetches nothing.

    Attributes:
        load_data: draws a few random samples.
        build_model: a small model of the same kind; None for the recipe's own.
        changes: to the settings.
    """

    load_data: LoadData
    build_model: BuildModel | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


_SMOKE_SETTINGS: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 16,
    "delta": 1e-3,
    "physical_batch_size": None,
}


@dataclass(frozen=True)
class Recipe:
    """The full configuration of an experiment; `changed` makes variants of it.

    Attributes:
        name: by which it is run.
        summary: one line.
        data: what must be there before, as docs/recipes.md says it: "nothing", "folder", or what
            to "fetch", with names in backticks.
        load_data: the data, from where `Places` says.
        build_model: a fresh model; its weights come from torch's generator or are public.
        settings: all constants.
        smoke: its small variant on synthetic data.
        task: what is learnt, and how it is measured.
        tuned: settings that belong to another clipping function, by its name.
        references: figures of papers.
        transform: makes random views of inputs, for `views`.
        takes: which of `Places` it reads.
        unit: what a unit of several samples is called; None where each sample is one.
        target: `module:function`, if it is no recipe of quietgrad; set when it is loaded.
        digest: SHA-256 of the file that the function is in; likewise.
    """

    name: str
    summary: str
    data: str
    load_data: LoadData
    build_model: BuildModel
    settings: Settings
    smoke: Smoke
    task: Task = field(default_factory=Classification)
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    references: tuple[Reference, ...] = ()
    transform: Callable[[Tensor], Tensor] | None = None
    takes: tuple[str, ...] = ("data",)
    unit: str | None = None
    target: str | None = None
    digest: str | None = None

    def changed(self, **changes: Any) -> Recipe:
        """With other settings. Another clipping function brings those that are tuned for it.

        Raises:
            ValueError: one of them is not possible, or would have no effect.
        """
        tuned = self.tuned.get(changes.get("clipping", ""), {})
        settings = replace(self.settings, **{**tuned, **changes})
        settings.require_effect(changes)
        if self.unit is None and settings.records_per_unit is not None:
            raise ValueError(
                f"records_per_unit={settings.records_per_unit} has no effect: in {self.name!r} each"
                " sample is a unit. Leave it out (--records-per-unit, Settings), or name the unit"
                " in the recipe, Recipe(unit='patient'), and pass the ids in Split(units=)"
            )
        return replace(self, settings=settings)

    def model(self, places: Places) -> nn.Module:
        """A fresh model; ValueError if the recipe makes something else."""
        model = self.build_model(places)
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"build_model of {self.name!r} returned a {type(model).__name__}: expected a"
                " torch.nn.Module"
            )
        return model

    def split(self, places: Places) -> Split:
        """The data, cut to the first samples if the settings say so."""
        # A folder that was given and not read would be on record as what was used.
        for name, folder in vars(places).items():
            if folder is not None and name not in self.takes:
                raise ValueError(
                    f"{self.name!r} does not read --{name}-dir ({folder}): leave it out. With"
                    " --smoke no recipe reads a folder: data and model are generated"
                )
        split, limit = self.load_data(places), self.settings.limit
        if not isinstance(split, Split):
            raise ValueError(
                f"load_data of {self.name!r} returned a {type(split).__name__}: expected a Split"
            )
        if limit is None:
            return split
        size = len(cast(Sized, split.train))
        if not 1 <= limit <= size:
            raise ValueError(f"limit={limit}: expected 1 to {size}, of which {self.name} consists")
        lengths = None if split.lengths is None else split.lengths[:limit]
        units = None if split.units is None else split.units[:limit]
        train = Subset(split.train, range(limit))
        return replace(split, train=train, lengths=lengths, units=units)

    def small(self) -> Recipe:
        """The smoke run: synthetic data, a small model, one epoch, no figures of papers."""
        smoke = self.smoke
        settings = replace(self.settings, **{**_SMOKE_SETTINGS, **smoke.changes})
        build_model = smoke.build_model or self.build_model
        return replace(
            self,
            load_data=smoke.load_data,
            build_model=build_model,
            settings=settings,
            takes=(),
            tuned={},
            references=(),
        )

    def reference(self, clipping: str, epsilon: float | None) -> Reference | None:
        """The paper's figure for this clipping function and epsilon, if it has one."""
        for each in self.references:
            if (each.clipping, each.epsilon) == (clipping, epsilon):
                return each
        return None

    def as_dict(self) -> dict[str, Any]:
        """Name, settings and references as plain data."""
        return {
            "name": self.name,
            "summary": self.summary,
            "data": self.data,
            "metric": self.task.metric,
            "settings": asdict(self.settings),
            "tuned": {name: dict(changes) for name, changes in self.tuned.items()},
            "references": [asdict(each) for each in self.references],
        }
