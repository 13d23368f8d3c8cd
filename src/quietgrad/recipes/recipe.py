"""What an experiment consists of: data, model, task, and every public constant of its training."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from quietgrad.recipes.settings import Settings, require_effect

_TEST_BATCH = 256


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
        for *inputs, labels in DataLoader(test, batch_size=_TEST_BATCH):
            logits = model(*inputs)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            right += (logits.argmax(1) == labels).sum().item()
            total += len(labels)
        return {"loss": loss / total, "accuracy": right / total}


class ManyLabels(Task):
    """Several yes-or-no labels for each sample."""

    metric = "accuracy"

    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Mean binary cross-entropy over the labels."""
        *inputs, labels = batch
        each = F.binary_cross_entropy_with_logits(model(*inputs), labels, reduction="none")
        return each.mean(1)

    @torch.no_grad()
    def scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Binary cross-entropy, and the share of labels that are right."""
        loss = right = total = 0.0
        for *inputs, labels in DataLoader(test, batch_size=_TEST_BATCH):
            logits = model(*inputs)
            loss += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum").item()
            right += ((logits > 0) == (labels > 0.5)).sum().item()
            total += labels.numel()
        return {"loss": loss / total, "accuracy": right / total}


@dataclass(frozen=True)
class Split:
    """Data sets of (input, ..., label) tuples. Only `train` is what privacy is about.

    Attributes:
        train: to learn from.
        test: to measure with.
        lengths: of the samples of `train` where they differ: like ones are computed together.
    """

    train: Dataset[Any]
    test: Dataset[Any]
    lengths: Sequence[int] | Tensor | None = None


@dataclass(frozen=True)
class Places:
    """Folders of one's own, instead of what was fetched.

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


LoadData = Callable[[Places], Split]
BuildModel = Callable[[Places], nn.Module]


@dataclass(frozen=True)
class Smoke:
    """What stands for data and model in a run of seconds that fetches nothing.

    Attributes:
        load_data: makes a few random samples.
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
        smoke: a small stand-in.
        task: what is learnt, and how it is measured.
        tuned: settings that belong to another clipping function, by its name.
        references: figures of papers.
        transform: makes random views of inputs, for `views`.
        takes: which of `Places` it reads.
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

    def changed(self, **changes: Any) -> "Recipe":
        """With other settings. Another clipping function brings those that are tuned for it.

        Raises:
            ValueError: one of them is not possible, or would have no effect.
        """
        tuned = self.tuned.get(changes.get("clipping", ""), {})
        settings = replace(self.settings, **{**tuned, **changes})
        require_effect(settings, changes)
        return replace(self, settings=settings)

    def split(self, places: Places) -> Split:
        """The data, cut to the first samples if the settings say so."""
        self._require_read(places)
        split, limit = self.load_data(places), self.settings.limit
        if limit is None:
            return split
        size = len(cast(Sized, split.train))
        if not 1 <= limit <= size:
            raise ValueError(f"limit={limit}: expected 1 to {size}, of which {self.name} consists")
        lengths = None if split.lengths is None else split.lengths[:limit]
        return replace(split, train=Subset(split.train, range(limit)), lengths=lengths)

    def small(self) -> "Recipe":
        """The smoke run: made data, a small model, one epoch; no paper has figures for it."""
        smoke = self.smoke
        settings = replace(self.settings, **{**_SMOKE_SETTINGS, **smoke.changes})
        build_model = smoke.build_model or self.build_model
        made = replace(self, load_data=smoke.load_data, build_model=build_model, takes=())
        return replace(made, settings=settings, tuned={}, references=())

    def _require_read(self, places: Places) -> None:
        """A folder that was given and not looked at would be on record as what was used."""
        for name, folder in vars(places).items():
            if folder is not None and name not in self.takes:
                raise ValueError(
                    f"{self.name!r} does not read --{name}-dir ({folder}): leave it out. With"
                    " --smoke no recipe reads a folder: data and model are made"
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
