"""The engine: three verbs around a user's own model, optimizer and training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakMethod

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from quietgrad import clipping as clippings
from quietgrad.accounting.events import Adjacency, require_dataset
from quietgrad.accounting.ledger import Ledger
from quietgrad.capture.compiled import original, refuse_compiled_caller
from quietgrad.capture.refusals import refuse_distributed
from quietgrad.capture.session import Capture
from quietgrad.capture.tape import Sink
from quietgrad.capture.verification import Frequency, Schedule
from quietgrad.clipping import Clipping
from quietgrad.distributed.facts import list_facts
from quietgrad.distributed.modes import find_world
from quietgrad.distributed.pipeline import Pipeline, Stages
from quietgrad.distributed.world import World
from quietgrad.engine.arguments import (
    attach_ledger_file,
    check_accountant,
    check_backend,
    check_delta,
    check_functions,
    check_length,
    check_loss_scale,
    check_momentum,
    check_optimizer,
    check_pinning,
    check_pipeline,
    check_seed,
    check_world,
    describe_settings,
    disclose_settings,
    open_common_ledger,
    require_accountable,
)
from quietgrad.engine.batch import (
    BatchAccumulator,
    BatchIterator,
    ExclusiveCall,
    LogicalBatches,
    ViolationLatch,
)
from quietgrad.engine.budget import Budget, NoiseSchedule
from quietgrad.engine.checkpoint import TrainingState, load_state, save_state
from quietgrad.engine.parts import read_parts, save_parts, spread
from quietgrad.engine.pipeline import (
    RoundIterator,
    StageRunner,
    gather_groups,
    resolve_stage_groups,
)
from quietgrad.engine.update import NoisyUpdate, Radii, check_sums, explain_memory_errors
from quietgrad.errors import (
    BudgetExhaustedError,
    EngineStateError,
    QuietgradError,
)
from quietgrad.factors.base import Factor
from quietgrad.grouping.base import Group, Grouping
from quietgrad.grouping.styles import AUTO
from quietgrad.grouping.styles import resolve as resolve_grouping
from quietgrad.joint_reduction import JointReducer
from quietgrad.methods.adaptive_radius import AdaptiveRadius
from quietgrad.methods.inner_outer import InnerOuter, Losses, Momentum
from quietgrad.noise import resolve as resolve_noise
from quietgrad.reduction import ClippedReducer, Sums
from quietgrad.sampling.loader import BatchLoader, LogicalBatch
from quietgrad.sampling.samplers import Sampler, population, require_batch_size
from quietgrad.sampling.samplers import resolve as resolve_sampler
from quietgrad.strategies import Evaluator, Kernel, Strategy, Timings

if TYPE_CHECKING:
    from quietgrad.diagnostics.recorder import StepRecorder
    from quietgrad.planning.planner import Example
    from quietgrad.report.evidence import AuditFindings
    from quietgrad.report.statement import Statement


class PrivacyEngine:
    """Trains a model with differential privacy: ``batches``, ``backward``, ``step``.

    Each logical batch is a Poisson sample of the data set. ``backward`` clips every sample's
    gradient and adds it up; ``step`` records the release in the ledger, adds Gaussian noise of
    standard deviation ``noise_multiplier * sensitivity``, divides by the expected batch size and
    runs the optimizer. Model, optimizer and schedulers stay plain objects.

    The guarantee is (epsilon, delta)-differential privacy of everything ``step`` releases, for
    adding or removing one element of ``dataset`` (or as ``adjacency`` says). What else leaves the
    process (logged training losses, choices made by looking at the data) is not covered.

    Args:
        model: Any module. Parameters with ``requires_grad`` are trained.
        optimizer: Any torch optimizer over exactly those parameters.
        dataset: A map-style data set; one element is the unit of privacy.
        batch_size: Expected number of samples per step; also the constant the sum is divided by.
        epochs: Number of passes planned; with ``epsilon`` it fixes how many steps there can be.
        steps: Number of steps planned, instead of passes. The last pass ends with the last of them;
            train ``while engine.has_budget``.
        epsilon: Target for all planned steps and for what is in ``ledger`` already; the noise is
            calibrated to stay within it.
        noise_multiplier: The noise itself, instead of a target.
        noise_schedule: Factor on the noise of each step, a function of the step's number (from 0)
            and of nothing else; the target is kept whatever it is.
        delta: Probability with which the guarantee may fail; should be below 1 / len(dataset).
        ledger: Where releases are recorded: a new one in memory if None; a path, for a file in
            which every step is on disk before it is released; or a ``Ledger``, to go on with what
            other engines recorded about the same data.
        data_name: Names ``dataset`` in a ledger that several data sets share. Those that the ledger
            is told are disjoint (``ledger.declare_disjoint``) spend their epsilons side by side.
        sampling: How batches are drawn: ``"poisson"``, ``"poisson:320"`` (cut to 320 samples),
            ``"shuffled"``, ``"full-batch"``, or an object of ``quietgrad.sampling``.
        adjacency: Which data sets are neighbours: ``"add-remove-one"`` unless the ledger says
            otherwise, ``"replace-one"`` or ``"zero-out-one"``.
        accountant: What the target and :meth:`epsilon` are computed with.
        clipping: Clipping function, by name or as an object with options.
        grouping: Grouping of parameters, by name or as an object with radii. ``"auto"`` is planned
            for ``example``.
        example: For ``grouping="auto"``: ``(batch, loss_fn)``, a few samples of public shape and
            ``loss_fn(model, batch)``. The values do not matter, and are not trained on.
        radius: Total clipping radius R where ``grouping`` is a name (default 1; automatic clipping
            needs no tuning of it), or ``qg.AdaptiveRadius()``, which follows a private quantile
            and wants ``clipping="abadi"``.
        pipeline: The schedule (``torch.distributed.pipelining``) of the stage that ``model`` is, or
            of the stages in a ``ModuleList``. With ``grouping="per-device"`` each stage clips by
            itself. :meth:`run` takes the place of :meth:`backward`, and ``physical_batch_size`` is
            that of a micro-batch of the schedule.
        momentum: Inner-outer momentum (``qg.InnerOuter()``): the gradients of a sample at the last
            weights are added up before they are clipped. :meth:`backward` then takes a function.
        physical_batch_size: Largest number of samples to run through the model at once.
        loss_scale: A power of two, chosen without looking at the data, by which losses are
            multiplied in the backward pass, so that small gradients do not vanish in float16. It is
            divided out in float32 before clipping: radii, norms and noise are as without it.
        diagnostics: Measures raw gradients in some steps (``qg.diagnostics.StepRecorder``). What it
            returns and writes is NOT private.
        noise: Where the noise comes from: ``"secure"``, a cryptographic stream; or ``"fast"``, an
            ordinary generator on the parameters' own device.
        strategy: How norms are evaluated; changes speed and memory only.
        memory_budget: Bytes of materialized per-sample gradients that may be held; by default it
            follows from the size of the activations.
        collate_fn: Makes a micro-batch from a list of elements.
        num_workers: Worker processes that load data.
        pin_memory: Load into pinned memory, from which ``x.to(device, non_blocking=True)`` does not
            wait for an accelerator.
        lengths: Of each sample, say its number of tokens: micro-batches are then filled with
            samples of like length. Pad each to its longest in ``collate_fn`` or in the loss
            function, and let padded places count for nothing. Changes speed only.
        verification: How often it is verified again that samples do not depend on each other:
            ``"default"`` (micro-batch t with probability max(1/t, 1/100), at random), ``"every"``,
            or ``"once"``. The first micro-batch, and each that does something new, always is.
        compile: Whether training forwards run compiled by ``torch.compile`` once a verified
            micro-batch has shown that this gives the same, with inductor or another backend, by
            name. What cannot be compiled runs as it was written. Changes speed only.
        seed: Fixes sampling and noise, for tests only: whoever knows it can subtract the noise.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        delta: float,
        epochs: int | None = None,
        steps: int | None = None,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        noise_schedule: NoiseSchedule | None = None,
        ledger: Ledger | str | Path | None = None,
        data_name: str | None = None,
        sampling: str | Sampler = "poisson",
        adjacency: Adjacency | None = None,
        accountant: str = "pld",
        clipping: str | Clipping = "auto-s",
        grouping: str | Grouping = "all-layer",
        example: Example | None = None,
        pipeline: Any = None,
        radius: float | AdaptiveRadius | None = None,
        momentum: InnerOuter | None = None,
        physical_batch_size: int | None = None,
        loss_scale: float = 1.0,
        diagnostics: StepRecorder | None = None,
        noise: str = "secure",
        strategy: Strategy = "auto",
        memory_budget: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        lengths: Sequence[int] | Tensor | None = None,
        verification: Frequency = "default",
        compile: bool | str = False,
        seed: int | None = None,
    ) -> None:
        model = original(model)
        stages = None if pipeline is None else Pipeline(pipeline, model, physical_batch_size)
        is_seeded = seed is not None
        self._world = world = (
            find_world(model, is_seeded=is_seeded)
            if stages is None
            else Stages(stages, is_seeded=is_seeded)
        )
        refuse_distributed(model, ranks=world.size, is_sharded=world.has_collectives)
        optimizer = check_optimizer(optimizer)
        schedule = Schedule(verification, world.common_choices())
        check_functions(noise_schedule, collate_fn, diagnostics)
        check_world(world, diagnostics, momentum, compile)
        if stages is not None:
            check_pipeline(example, radius, momentum, compile)
            physical_batch_size = stages.round_size
        self._population = population(dataset)
        self._batch_size = require_batch_size(batch_size, self._population)
        self._delta = check_delta(delta, self._population)
        self._accountant = check_accountant(accountant)
        self._clipping = clippings.resolve(clipping)
        self._noise = resolve_noise(noise, world.own_seed(check_seed(seed)))
        self._seed = seed
        adaptive = radius if isinstance(radius, AdaptiveRadius) else None
        start = radius.start if isinstance(radius, AdaptiveRadius) else radius
        if stages is None:
            groups, everywhere = _resolve_groups(grouping, model, start, example), None
        else:
            groups = resolve_stage_groups(stages, grouping, model, start)
            everywhere = gather_groups(world, stages, groups)
        self._radii = Radii(groups, self._clipping, adaptive, self._batch_size, everywhere)
        self._evaluator_options = (strategy, memory_budget)
        Evaluator(*self._evaluator_options)
        # What is fastest today may not be tomorrow: a run that is to be repeated goes by formulas.
        self._timings = Timings[Kernel]() if seed is None else None
        draws = resolve_sampler(sampling).bind(self._population, self._batch_size)
        loader = BatchLoader(
            dataset,
            draws,
            physical_batch_size=physical_batch_size,
            collate_fn=collate_fn,
            num_workers=num_workers,
            pin_memory=check_pinning(pin_memory),
            lengths=lengths,
            seed=seed,
            share=world.share,
            part=world.part,
            most=world.most,
            fill=list if stages is None else stages.fill,
        )
        planned = check_length(epochs, steps, draws.length)
        self._data_name = data_name
        if data_name is not None:
            require_dataset("data_name", data_name)
        self._ledger = open_common_ledger(world, ledger, adjacency, draws.accounting)
        require_accountable(accountant, draws.accounting, self._ledger.adjacency)
        self._budget = Budget(
            self._ledger,
            draws.accounting,
            delta=self._delta,
            accountant=accountant,
            planned_steps=planned,
            ends_anywhere=steps is not None,
            dataset=data_name,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            schedule=noise_schedule,
            source=noise if seed is None else "seeded",
        )
        self._radii.require_payable(self._budget, noise_schedule)
        loss_scale = check_loss_scale(loss_scale)
        settings = describe_settings(
            optimizer=optimizer,
            sampling=draws.accounting,
            clipping=self._clipping,
            groups=self._radii.everywhere,
            epochs=epochs,
            steps=None if steps is None else int(steps),
            data_name=data_name,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            noise=noise,
            noise_schedule=self._budget.schedule,
            batch_size=self._batch_size,
            **{"dataset size": self._population},
            delta=self._delta,
            accountant=accountant,
            adjacency=self._ledger.adjacency,
            momentum=None if momentum is None else repr(momentum),
            adaptive_radius=None if adaptive is None else repr(adaptive),
            loss_scale=None if loss_scale == 1 else loss_scale,
            pipeline=None if stages is None else stages.describe(),
        )

        def trained() -> dict[str, nn.Parameter]:
            return capture.parameters.trainable()

        self._options = {
            "clipping": self._clipping,
            "momentum": momentum,
            "adaptive_radius": adaptive,
        }
        self._momentum = (
            None if momentum is None else Momentum(check_momentum(momentum, optimizer), trained)
        )
        self._state = TrainingState(
            model,
            optimizer,
            loader,
            self._ledger,
            self._budget,
            settings,
            seed,
            self._radii,
            self._momentum,
        )
        self._model, self._optimizer, self._loader = model, optimizer, loader
        self._diagnostics = diagnostics
        self._violations, self._exclusive = ViolationLatch(), ExclusiveCall()
        radii = self._radii
        self._batch = BatchAccumulator(
            radii.limits, lambda: world.new_sums(Sums, trained, radii.groups)
        )
        self._capture = capture = Capture(
            model, when=lambda: model.training, world=world, backend=check_backend(compile)
        )
        self._uncompiled = capture.lend_stance()
        self._placed = self._capture.parameters.tree.look()  # when it was last judged
        self._capture.on_verified = schedule.note_done
        self._capture.loss_scale = loss_scale
        parts = self._state, self._batch, self._capture, schedule
        self._runner = None if stages is None else StageRunner(stages, self._capture, schedule)
        require_usable = _weakly(self._require_usable)
        self._iterator = (
            BatchIterator(*parts, require_usable=require_usable)
            if self._runner is None
            else RoundIterator(*parts, require_usable=require_usable, runner=self._runner)
        )
        self._capture.on_refusal = self._violations.note
        self._violations.on_violation = self._capture.rest
        self._violations.tell = world.note_failure
        try:
            self._update = NoisyUpdate(optimizer, self._capture, self._noise, self._momentum, world)
        except QuietgradError:
            self._capture.detach()
            raise
        self._attachment = _Attachment(self._capture, world, self._update, self._batch)
        self._capture.on_detach = self._attachment.end
        try:
            with world.agreeing():
                if world.is_leader:
                    attach_ledger_file(self._ledger, ledger)
            world.require_same(
                lambda: (
                    list_facts(model, dataset, settings, world.part_name)
                    | self._loader.facts(is_in_step=world.has_collectives)
                    | world.digest_weights(model)
                )
            )
        except QuietgradError:
            self.detach()
            raise

    # -- the three verbs -----------------------------------------------------------------------

    def batches(self) -> LogicalBatches:
        """One epoch of logical batches; iterate each for its physical micro-batches.

        A batch may be empty: it has no micro-batches, and its step still adds noise. ``len`` of
        what is returned is the number of batches.
        """
        self._require_usable()
        self._world.rest()
        # Also a part of it may have been wrapped or sharded since.
        self._require_in_place()
        self._batch.require_none()
        self._budget.require_room(self.steps_taken)
        return self._iterator.epoch()

    def backward(self, losses: Losses) -> None:
        """Clip every sample's gradient of the current micro-batch and add it to the sum.

        Do not scale the losses: gradients are clipped as they are scaled, so that a factor changes
        what ``clipping="abadi"`` clips, and a factor that follows the data, as a ``GradScaler``'s
        does, is private itself. ``loss_scale=`` is for float16.

        Args:
            losses: One loss per sample, a 1-D tensor; or a function that computes it.
        """
        refuse_compiled_caller()
        with self._exclusive:
            self._require_ready()
            if self._runner is not None:
                raise EngineStateError(
                    "backward() in a pipeline: call engine.run(x, target=y), on all ranks, which "
                    "runs the schedule."
                )
            with self._batch.adding() as size:
                reducer = self._make_reducer(self.groups, size)
                sink, keep = self._watch(reducer, size)
                sink = _NoSink() if self._batch.is_idle else sink
                with (
                    self._violations.watched(),
                    explain_memory_errors(size),
                    self._world.together(reducer),
                ):
                    self._capture.begin_backward()
                    if self._momentum is not None:
                        self._momentum.backward(self._capture, losses, sink)
                    else:
                        self._capture.backward(losses() if callable(losses) else losses, sink)
                    self._world.confirm()
                    reducer.finish(settled=False)
                self._batch.add(reducer)
                self._capture.rest()
                keep()

    def run(self, *args: Any, target: Any = None, **kwargs: Any) -> None:
        """In a pipeline, run its schedule for what ``batches()`` handed out, in place of backward.

        All ranks of a pipeline call it, with what ``schedule.step`` takes. Every sample's gradient
        of this rank's stages is clipped and added to the sum. What the last stage computes is not
        returned: losses of training samples are private.

        Args:
            args: For the first stage; all samples, of which the schedule makes micro-batches.
            target: For the ``loss_fn`` of the last stage.
            kwargs: For every stage.
        """
        refuse_compiled_caller()
        with self._exclusive:
            self._require_ready()
            runner = self._require_runner()
            with self._batch.adding() as size:
                self._batch.sums.is_torn = True  # a run that is cut short is not taken up again
                try:
                    with (
                        self._violations.watched(),
                        explain_memory_errors(size),
                        self._world.explaining(),
                    ):
                        self._capture.begin_backward()
                        reducers = runner.run(args, kwargs, target, self.groups, self._make_reducer)
                except Exception as error:
                    self._world.note_failure(error)  # the others wait for this rank
                    raise
                self._batch.add(*reducers)
                self._capture.rest()

    def step(self) -> None:
        """Release: record the step in the ledger, add the noise, run the optimizer.

        Noise is added to every trainable parameter, whether or not a sample used it.
        """
        refuse_compiled_caller()
        with self._exclusive:
            self._require_ready()
            self._world.call = "step()"
            self._release_batch(self._batch.require_complete())

    # -- in between ----------------------------------------------------------------------------

    def discard_batch(self) -> None:
        """Drop the logical batch under way; nothing of it is released."""
        self._require_attached()
        self._capture.begin()
        self._world.rest()
        self._update.clear()
        self._batch.drop()

    def detach(self) -> None:
        """Leave the model and the optimizer exactly as they were before attaching."""
        self._attachment.end()

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write :meth:`state_dict` to a file, which a crash leaves whole: the old or the new.

        Where the model is sharded it is a folder, to which every rank writes what it holds. In a
        pipeline stages beside that of rank 0 have files beside it, of their numbers.
        """
        self._require_savable()
        self._world.call = "save()"
        state = self._state.state_dict(is_copied=not self._world.has_collectives)
        self._world.require_same(lambda: self._world.digest_weights(self._model))
        if self._world.has_collectives:
            save_parts(state, Path(path), self._world)
        else:
            save_state(Path(path), state, self._world)

    def load(self, path: str | Path) -> None:
        """Go on where :meth:`save` was called, in an engine made with the same arguments.

        The model may be on another device than it was: everything is moved to where it is now.
        """
        self._world.rest()
        place, self._world.call = Path(path), "load()"
        if place.is_dir():
            with self._world.agreeing():
                state = read_parts(place, self._model, self._optimizer)
        else:
            state = load_state(place, self._world)
        self.load_state_dict(state)

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """Everything needed to go on later: weights, optimizer, place in the data, ledger.

        Neither the noise's keys nor Poisson sampling's are in it. Schedulers are yours to save.
        Unlike a module's ``state_dict`` it is a copy, on the CPU, which training does not change.
        ``torch.save`` it, and load it with ``torch.load(..., weights_only=True)``.

        Args:
            weights: False leaves out the states of the model and of the optimizer, for those who
                save them beside it. They must be loaded before this state is.
        """
        self._require_savable()
        return self._state.state_dict(has_weights=weights)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, in an engine made with the same arguments.

        What this engine's ledger holds beyond the saved one stays counted: steps whose updates were
        lost in a crash, or undone by loading an earlier state, are spent all the same.
        """
        self._require_usable()
        if self._batch.is_begun:
            raise EngineStateError("a batch is under way: step or discard_batch() before loading.")
        self._world.rest()
        self._world.call = "load()"
        with self._world.agreeing():
            self._state.load_state_dict(
                state, lambda state: spread(state, self._model, self._optimizer)
            )
        self._world.require_same(
            lambda: self._list_facts() | self._world.digest_weights(self._model),
            "Load the same state on all ranks.",
        )

    # -- figures and settings; asking changes nothing -------------------------------------------

    @property
    def batch_size(self) -> int:
        """Expected number of samples per step, and the constant sums are divided by."""
        return self._batch_size

    @property
    def ranks(self) -> int:
        """Number of processes that train the model together."""
        return self._world.size

    @property
    def is_leader(self) -> bool:
        """Whether this process keeps the ledger's file: the only one, or rank 0."""
        return self._world.is_leader

    @property
    def delta(self) -> float:
        """Probability with which the guarantee may fail."""
        return self._delta

    @property
    def sample_rate(self) -> float:
        """Expected share of the data set in a step."""
        return self._batch_size / self._population

    @property
    def steps_per_epoch(self) -> int:
        """Number of logical batches that :meth:`batches` yields, unless it finishes an epoch."""
        return len(self._loader)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity (times the schedule, if any)."""
        return self._budget.noise_multiplier

    @property
    def noise(self) -> str:
        """Where the noise comes from, in words."""
        seeded = "" if self._seed is None else ", seeded: protects nobody"
        return f"{self._noise.description}{seeded}"

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of parameters that are clipped together, with their radii."""
        return self._radii.groups

    @property
    def sensitivity(self) -> float:
        """How far one sample can move the sum of clipped gradients (Euclidean)."""
        return self._radii.sensitivity

    @property
    def steps_taken(self) -> int:
        """Number of updates in the weights. The ledger may hold more: lost ones count as spent."""
        return self._state.steps_taken

    @property
    def epochs_completed(self) -> int:
        """Number of whole passes behind the weights; a resumed loop starts here."""
        return self._state.epochs_completed

    @property
    def has_budget(self) -> bool:
        """Whether the target, if there is one, leaves room for another step."""
        try:
            self._budget.require_room(self.steps_taken, pass_number=self.epochs_completed)
        except BudgetExhaustedError:
            return False
        return True

    @property
    def ledger(self) -> Ledger:
        """What was released, by this engine and by others that share it."""
        return self._ledger

    @property
    def planned_steps(self) -> int | None:
        """Number of steps planned; None if neither ``epochs`` nor ``steps`` was given."""
        return self._budget.planned_steps

    @property
    def compilation(self) -> str:
        """Whether training forwards run compiled, or why they do not."""
        return "not asked for" if (own := self._capture.compiler) is None else own.status

    @property
    def nonfinite_samples(self) -> int:
        """Samples dropped so far for a non-finite gradient. Read from raw data: NOT private."""
        return self._batch.nonfinite_samples

    def epsilon(self, delta: float | None = None) -> float:
        """What all steps so far have spent: an upper bound, 0 before the first step.

        It is what a record of ``dataset`` spends, where the ledger has disjoint data sets.
        """
        at = self.delta if delta is None else delta
        return self._ledger.epsilon(at, accountant=self._accountant, dataset=self._data_name)

    def settings(self) -> dict[str, Any]:
        """What only the engine knows of a run, as plain data that JSON holds.

        All but "progress" stays the same during a run. A run folder keeps it as ``settings.json``.
        """
        shared = self._world.description
        found = disclose_settings(
            self._state,
            self._options,
            noise=self.noise,
            diagnostics=self._diagnostics is not None,
        )
        return found | ({} if shared is None else {"ranks": self.ranks, "shared": shared})

    def report(
        self,
        path: str | Path | None = None,
        *,
        audit: AuditFindings | None = None,
        metrics: Iterable[Mapping[str, Any]] = (),
        title: str | None = None,
        unit: str | None = None,
        data: str | None = None,
        owner: str | None = None,
        contact: str | None = None,
        purpose: str | None = None,
    ) -> Statement:
        """The privacy report so far: what is promised, to whom, and what is not covered.

        What you state in words is marked as stated by the user, because no evidence confirms it.

        Args:
            path: writes it there, as one HTML file that needs nothing else.
            audit: what an audit of such training found: its result, or its JSON object.
            metrics: one mapping per epoch, with "epoch" and for example "test_accuracy" and
                "epsilon". They are shown as they are: pass none that was read from training data.
            title: what was trained. None for the name of the model's class.
            unit: what one record is, such as "one admission to hospital".
            data: the training data.
            owner: who answers for the claim.
            contact: how to reach them.
            purpose: what the model is for.
        """
        report = import_module("quietgrad.report")  # by name: the engine does not depend on it
        statement: Statement = report.statement_of_engine(
            self._ledger,
            self.settings(),
            audit=audit,
            metrics=metrics,
            title=title,
            unit=unit,
            data=data,
            owner=owner,
            contact=contact,
            purpose=purpose,
        )
        if path is not None and self._world.is_leader:
            report.write(statement, path)
        return statement

    def save_run(
        self,
        folder: str | Path,
        *,
        weights: bool = True,
        audit: AuditFindings | None = None,
        metrics: Iterable[Mapping[str, Any]] | None = None,
        **stated: str | None,
    ) -> Statement:
        """Keep the run in a folder as `quietgrad train` does, with its report in ``report.html``.

        Call it at the end of training, or after each epoch: it replaces what it wrote before. The
        folder has what ``quietgrad report`` and ``quietgrad verify`` need: a copy of the ledger
        (or the ledger itself, if ``ledger=`` is ``ledger.jsonl`` in it), settings, weights, result
        and what you state.

        Args:
            folder: is made if it is not there; it holds one run.
            weights: whether the weights are written, to ``model.safetensors``.
            audit: as for :meth:`report`.
            metrics: as for :meth:`report`, for all epochs so far; None keeps what is there.
            stated: ``title``, ``unit``, ``data``, ``owner``, ``contact`` and ``purpose``, as for
                :meth:`report`; what is left out stays as it was stated before.

        Returns:
            The statement. Note its ``head`` elsewhere: ``quietgrad verify --head`` compares it.
        """
        self._require_savable()
        own_loop = import_module("quietgrad.runs.own_loop")  # by name, likewise
        statement: Statement = own_loop.save_run(
            self,
            self._model,
            Path(folder),
            weights=weights,
            is_split=self._world.has_collectives or bool(self._world.part_name),
            audit=audit,
            metrics=metrics,
            stated=stated,
        )
        return statement

    def __repr__(self) -> str:
        groups = f"{len(self.groups)} group{'s' if len(self.groups) > 1 else ''}"
        return (
            f"PrivacyEngine({type(self._model).__name__}, {self._clipping}, {groups}, "
            f"batch_size={self.batch_size}, {self._budget.describe()}, delta={self.delta:g}, "
            f"{self.steps_taken} steps taken)"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an engine cannot be copied or pickled: the copy would train without a ledger entry, "
            "or with the same noise. Save engine.state_dict(), and load it into a new engine."
        )

    # -- internals -----------------------------------------------------------------------------

    def _require_runner(self) -> StageRunner:
        if self._runner is None:
            raise EngineStateError(
                "run() without a pipeline: pass PrivacyEngine(..., pipeline=schedule), or call "
                "engine.backward(losses)."
            )
        return self._runner

    def _make_reducer(
        self, groups: Sequence[Group], samples: int, counted: Tensor | None = None
    ) -> ClippedReducer:
        evaluator = Evaluator(*self._evaluator_options, self._timings)
        sums, scale, joint = self._batch.sums, self._capture.loss_scale, self._world.joint
        parts = groups, self._clipping, evaluator, samples, sums, scale, counted
        return ClippedReducer(*parts) if joint is None else JointReducer(*parts, joint=joint)

    def _watch(self, reducer: ClippedReducer, samples: int) -> tuple[Sink, Callable[[], None]]:
        if self._diagnostics is None:
            return reducer, _do_nothing
        return self._diagnostics.watch(self.steps_taken, reducer, samples)

    def _require_usable(self) -> None:
        refuse_compiled_caller()
        self._require_ready()

    def _require_ready(self) -> None:
        """The same where the caller is known to be no compiled code."""
        self._update.revoke_step()
        refuse_distributed(ranks=self._world.size)  # a process group may come later, or end
        self._require_attached()
        self._violations.check()

    def _require_savable(self) -> None:
        self._violations.check()
        if self._batch.is_begun:
            raise EngineStateError(
                "a batch is under way: save between engine.step() and the next batch."
            )
        self._world.rest()

    def _require_in_place(self) -> None:
        """Refuse a model that was wrapped or sharded after the engine was made."""
        if self._placed != (now := self._capture.parameters.tree.look()):
            is_sharded = self._world.has_collectives
            refuse_distributed(self._model, ranks=self._world.size, is_sharded=is_sharded)
            self._placed = now

    def _require_attached(self) -> None:
        if not self._attachment.is_on:
            raise EngineStateError("the engine was detached: make a new one to go on training.")

    def _release_batch(self, batch: LogicalBatch) -> None:
        self._world.rest()
        # Parts of different batches may have a sample twice; radii say how much noise there is.
        with self._world.agreeing(
            partial(self._list_facts, batch),
            "All ranks must go through the same batches, and load, discard and set the same.",
        ):
            self._budget.require_room(self.steps_taken, pass_number=batch.pass_number)
            with self._violations.watched():
                trained = self._capture.require_intact()
                self._update.require_same_parameters(trained)
                if not self._world.has_collectives:
                    self._check_sums(batch.size)
        if self._world.has_collectives:  # all ranks are here
            with self._world.agreeing(), self._violations.watched():
                self._check_sums(batch.size)
                self._world.refuse_apart(self._batch.sums)
        # First the ledger, then the update: a crash in between overstates what was spent. If a disk
        # is slow, noise is made meanwhile, of copies: if it fails, the step can be taken again.
        step, noisy = self.steps_taken, None
        if self._world.size > 1:
            sigma = self._record_in_all(step, batch.pass_number)
        elif self._ledger.is_slow and self._update.takes_a_while(self._batch.sums):
            with self._budget.recording(step, pass_number=batch.pass_number) as sigma:
                noisy = self._noisy_sums(step, sigma, keeps_sums=True)
        else:
            sigma = self._budget.record(step, pass_number=batch.pass_number)
        try:
            self._batch.spend()
            # Also if the optimizer fails: part of the update may be in the weights by then.
            self._state.advance(batch)
            self._update.update(self._noisy_sums(step, sigma) if noisy is None else noisy)
            self._radii.adapt(self._batch.tally, self._noise, self._world)
        finally:
            self._batch.end()
            self._capture.begin()  # a forward from here on has nothing to do with this batch

    def _list_facts(self, batch: LogicalBatch | None = None) -> dict[str, object]:
        """What must be the same on all ranks in every step."""
        if self._world.size == 1:
            return {}
        own: dict[str, object] = {
            f"the radius of group '{group.name}'": group.radius for group in self.groups
        }
        own |= self._update.list_options()
        place = {} if batch is None else {"pass": batch.pass_number, "step": batch.step}
        return {
            "the number of steps taken": self.steps_taken,
            **{f"the {name} of the batch": value for name, value in place.items()},
            **({} if batch is None else {"the samples of the batch": batch.mark}),
            **{f"{name}{self._world.part_name}": value for name, value in own.items()},
            "the sensitivity": self.sensitivity,
        }

    def _record_in_all(self, step: int, pass_number: int) -> float:
        """Rank 0's ledger first, on its disk; then the copies of the others."""
        sigma = self._world.lead(lambda: self._budget.record(step, pass_number=pass_number))
        if not self._world.is_leader:
            own = self._budget.record(step, pass_number=pass_number)
            assert own == sigma, "ranks plan different noise"
        return sigma

    def _check_sums(self, samples: int) -> None:
        """Before anything is released: that nothing is open, and no sum longer than it can be."""
        doubt, groups = self._batch.doubt, self.groups
        is_doubtful = check_sums(
            self._batch.sums, groups, self._clipping, samples, doubt=doubt, world=self._world
        )
        self._batch.settle(is_doubtful)
        if is_doubtful:
            check_sums(self._batch.sums, groups, self._clipping, samples)

    def _noisy_sums(self, step: int, sigma: float, *, keeps_sums: bool = False) -> list[Tensor]:
        sums, std = self._batch.sums, self._radii.sum_multiplier(sigma) * self.sensitivity
        return self._update.noisy(
            sums, step=step, std=std, divisor=self._batch_size, keeps_sums=keeps_sums
        )


class _NoSink:
    """Takes what a micro-batch gives that counts for nothing."""

    def parameter_done(self, name: str, factor: Factor) -> None:
        """It is dropped."""


class _Attachment:
    """What an engine has put on a model and an optimizer; it holds no engine, which may be lost.

    Attributes:
        is_on: whether it still is.
    """

    def __init__(
        self, capture: Capture, world: World, update: NoisyUpdate, batch: BatchAccumulator
    ) -> None:
        self._capture, self._world, self._update, self._batch = capture, world, update, batch
        self.is_on = True

    def end(self) -> None:
        """Leave model and optimizer exactly as they were."""
        if self.is_on:
            self._capture.detach()
            self._world.rest()
            self._update.detach()
            self._batch.end()
            self.is_on = False


def _weakly(require: Callable[[], None]) -> Callable[[], None]:
    """A method of an engine, for its parts, which must not keep it: it may hold others back."""
    reference = WeakMethod(require)

    def call() -> None:
        found = reference()
        if found is None:
            raise EngineStateError(
                "the engine of these batches is gone: keep it in a variable as long as it trains."
            )
        found()

    return call


def _do_nothing() -> None:
    pass


def _resolve_groups(
    spec: str | Grouping, model: nn.Module, radius: float | None, example: Example | None
) -> tuple[Group, ...]:
    if spec == AUTO or example is not None:
        planner = import_module("quietgrad.planning.planner")  # by name: only "auto" needs it
        groups: tuple[Group, ...] = planner.resolve_groups(spec, model, radius, example)
        return groups
    return resolve_grouping(spec, model, radius)
