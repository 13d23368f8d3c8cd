"""Whether a model treats its samples independently: change others, and a sample must not notice.

Probes (see ``layout``) find mixing through gradients, down to the last bit, but only above the
first trainable parameter and only where gradients flow. Here the call itself is repeated, from the
state it began with: once with half of the samples replaced by copies of another one, once with the
other half alone and in another order. What it returns for these samples, and the gradients of every
parameter for them, must be what the call itself gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quietgrad.capture.choice import (
    COPIED,
    FEW,
    choose_singles,
    displace,
    draw_below,
    list_companies,
    random_order,
    replace_others,
    score_samples,
    separate_samples,
    take_several,
)
from quietgrad.capture.compare import (
    agree_by_sample,
    find_largest,
    has_digits,
    leaves,
    measure_gaps,
)
from quietgrad.capture.draws import (
    STEADY_SHARES,
    ConstantDraws,
    DrawMode,
    DrawRecorder,
    DrawReplayer,
    SteadyDraws,
    list_singles,
)
from quietgrad.capture.layout import Layout
from quietgrad.capture.outputs import (
    OutputComparison,
    find_broken,
    same_factors,
    tells_samples_apart,
)
from quietgrad.capture.refusals import (
    broken_refusal,
    counted_refusal,
    kept_data_refusal,
    mixed_refusal,
    nothing_to_compare_refusal,
    placed_refusal,
    raw_data_refusal,
    reordered_refusal,
    unrepeatable_refusal,
    unseen_refusal,
)
from quietgrad.capture.repetition import (
    Execution,
    Factors,
    ModelCall,
    Recapture,
    Tremble,
    repeat,
)
from quietgrad.capture.samples import (
    Arguments,
    InputLayout,
    JoinedInput,
    change_values,
    copy_arguments,
    has_joined_rows,
    list_frozen_layouts,
    list_input_layouts,
)
from quietgrad.errors import QuietgradError
from quietgrad.factors.base import Later, Verdict, all_of, any_of

Choose = Callable[[Any], Any]
"""Makes other arguments of those of a call."""
Trial = tuple[Verdict, Callable[[], QuietgradError | None]]
"""Whether some samples got the same in a repeat, and what is wrong if not: perhaps nothing."""

MovedWeights = Callable[[nn.Module, Callable[[str, Tensor], Tensor]], AbstractContextManager[None]]

Gaps = dict[tuple[Any, int, int], tuple[Tensor, Tensor]]
"""Of each part of a gradient, by sample: how far apart it is in two runs, and how far it may be."""

_TREMBLES = 16  # each has an even chance to show it
_MOVED_LESS = 2.0  # at the same number of samples not all that is nearly zero may change its sign


@dataclass(frozen=True)
class RecordedCall:
    """A call as it was made: what is verified.

    Attributes:
        call: the call.
        factors: of the gradients that arrived at its sites.
        recapture: captures repeats.
        moved_weights: in it a model has other weights.
        batch: the number of samples.
        is_bypassed: whether losses depend on something else of it than what it returned; a hook may
            hand on what is inside.
        find_shared: tells, by id, parts of its arguments that were the same with other samples.
        has_owned_rows: whether rows of some operation belong to samples in any order and number.
        saves_room: whether memory is worth more than copies.
        was_joined: whether an earlier call had rows of several samples in one tensor; this one may
            have as many as samples.
        is_trial: whether repeats run compiled, where all outputs come out of one operation.
    """

    call: ModelCall
    factors: Factors
    recapture: Recapture
    moved_weights: MovedWeights
    batch: int
    is_bypassed: bool = False
    find_shared: Callable[[], frozenset[int]] = frozenset
    has_owned_rows: bool = False
    was_joined: bool = False
    saves_room: bool = False
    is_trial: bool = False

    @cached_property
    def broken(self) -> Tensor:
        """The samples whose losses sent something that is not finite to the outputs."""
        return find_broken(self.call.outputs, self.batch)


def check_independence(recorded: RecordedCall, *, is_new: bool, is_first: bool) -> bool:
    """Refuse a call whose results for some samples depend on others, on places or on their number.

    Args:
        recorded: the call.
        is_new: whether nothing like it was verified before.
        is_first: whether nothing at all was verified before. Then each half of the samples is
            replaced once, and every two samples are told apart by further repeats, without a
            backward pass.

    Returns:
        Whether it is called with rows of several samples in one tensor.
    """
    call = recorded.call
    has_joined = call.with_gradients and has_joined_rows((call.args, call.kwargs), recorded.batch)
    if recorded.has_owned_rows or has_joined or recorded.was_joined:
        joined = _find_joined(recorded)
        if joined is not None:
            examination = _Examination(recorded, joined)
            if complaint := examination.find_complaint(is_new=is_new, is_first=is_first):
                raise complaint
            return True
    layouts = list_input_layouts((call.args, call.kwargs), recorded.batch)
    if has_joined:
        # Not a layout in which only something beside them would be exchanged.
        layouts = [layout for layout in layouts if layout.folded]
    if not call.with_gradients:
        assert call.returned is not None
        layouts = list_frozen_layouts(layouts, call.arguments, call.returned)
        if not layouts:
            check_single(replace(recorded, batch=1))
            return False
        recorded = replace(recorded, batch=layouts[0].batch)
    complaint = _try_layouts(recorded, layouts, is_new=is_new, is_first=is_first)
    if complaint is not None:
        joined = _find_joined(recorded)
        other = None if joined is None else _Examination(recorded, joined)
        if other is None or other.find_complaint(is_new=is_new, is_first=is_first):
            raise complaint
        return True
    return False


def _try_layouts(
    recorded: RecordedCall, layouts: Sequence[InputLayout], *, is_new: bool, is_first: bool
) -> QuietgradError | None:
    """What is wrong with a call wherever its samples are; None if it is well in some layout."""
    complaints: list[QuietgradError] = []
    refused: list[_Examination] = []
    for layout in layouts:
        examination = _Examination(recorded, layout)
        complaint = examination.find_complaint(is_new=is_new, is_first=is_first)
        for other in examination.list_alternatives() if complaint is not None else ():
            complaint = complaint and other.find_complaint(is_new=is_new, is_first=is_first)
        # Where the samples could be in several places, one of them must do; but not one in which
        # the model cannot be run with another number of samples, if it can in another.
        if complaint is None and (
            not refused or examination.is_sizable or not any(each.is_sizable for each in refused)
        ):
            return None
        refused.append(examination)
        complaints += [complaint] if complaint is not None else []
    if complaints:
        return complaints[0]
    if not any(output.holds_samples(recorded.batch) for output in recorded.call.outputs):
        return None
    return unseen_refusal(type(recorded.call.model).__name__, recorded.batch)


def _find_joined(recorded: RecordedCall) -> JoinedInput | None:
    """Arguments in which samples are rows of one tensor; None if there are none."""
    if not recorded.call.with_gradients:
        return None
    batch = recorded.batch
    run = _Examination(recorded, InputLayout(Layout(batch))).run_if_possible(
        copy_arguments, torch.arange(batch, device="cpu"), read_rows=True
    )
    # What has no gradient may still reach others' rows: it must be seen to change nothing.
    if run is None or run.rows is None or run.rows.untold:
        return None
    rows = run.rows.found
    if not all(each.keeps_places for each in rows.values()):
        return None
    if not all(each.is_usual for each in rows.values()):
        raise reordered_refusal(type(recorded.call.model).__name__)
    is_joined = any(each.is_ragged or each.owners.numel() > batch for each in rows.values())
    if not is_joined and not recorded.was_joined:
        return None
    return JoinedInput.of((recorded.call.args, recorded.call.kwargs), rows, batch)


def is_repeated_alike(recorded: RecordedCall) -> bool:
    """Whether a call gives the same outputs and gradients when it is made again, compiled."""
    recorded = replace(recorded, is_trial=True)
    examination = _Examination(recorded, InputLayout(Layout(recorded.batch)))
    everyone = torch.arange(recorded.batch, device="cpu")
    run = examination.run_if_possible(copy_arguments, everyone)
    return run is not None and run.is_alike and bool(examination._agrees(run, everyone, everyone))


def check_single(recorded: RecordedCall, earlier: Arguments | None = None) -> None:
    """Refuse a call with one sample that gives something else after another sample was run.

    ``earlier`` are the arguments of a call with another sample, if there was one.
    """
    examination = _Examination(recorded, InputLayout(Layout(1)))
    everyone = torch.arange(1, device="cpu")
    examination.require_repeatable()
    others: list[Choose] = [partial(change_values, scale=scale) for scale in (1, 8, 0)]
    if earlier is not None:
        others.append(lambda _: copy_arguments(earlier))
    for choose in others:
        other = examination.run_if_possible(choose, everyone)
        if other is not None:
            examination.refuse_kept_data(other)
    examination.require_repeatable()


def explains_gaps(gaps: Gaps, moved: Sequence[Gaps | None]) -> bool:
    """Whether gradients moved as far when nothing but the rounding of weights changed."""
    known = [each for each in moved if each is not None and each.keys() == gaps.keys()]
    if not known:
        return False
    for key, (apart, allowed) in gaps.items():
        farthest = torch.stack([each[key][0] for each in known]).amax(0)
        if not bool(apart.le(allowed + _MOVED_LESS * farthest).all()):
            return False
    return True


class _Examination:
    """Repeats of one call, with one layout of its arguments."""

    def __init__(
        self,
        recorded: RecordedCall,
        layout: InputLayout | JoinedInput,
        steady: Callable[[], DrawMode] | None = None,
    ) -> None:
        self.recorded, self.layout, self._steady = recorded, layout, steady
        self._call = recorded.call
        self._kind = type(recorded.call.model).__name__
        self._everyone = torch.arange(recorded.batch, device="cpu")
        self._drawn = DrawRecorder()
        self._error: Exception | None = None  # of the model, with other samples

    def find_complaint(self, *, is_new: bool, is_first: bool) -> QuietgradError | None:
        """What is wrong with the call, if anything is."""
        complaint = self._find_complaint(is_new=is_new, is_first=is_first)
        if complaint is None or not self._moves_draws():
            return complaint
        # What draws decide must be right whichever way they fall.
        complaints = (
            other._find_complaint(is_new=True, is_first=is_first)
            for other in self._list_with_steady_draws()
        )
        return next(filter(None, complaints), None)

    def _moves_draws(self) -> bool:
        """Whether a sample may draw otherwise because others were replaced.

        That is where rows belong to samples in any order and number, and are drawn for, and where
        it depends on values how much is drawn.
        """
        if not self._drawn.drawn or self._steady is not None or self._recorded_draws is None:
            return False
        draws, others = (
            [draw for draws in each.drawn.values() for draw in draws]
            for each in (self._recorded_draws, self._drawn)
        )
        shapes = [draw.values.shape for draw in draws]
        if not any(shape.numel() > 1 for shape in shapes):
            return False
        has_moved = shapes != [draw.values.shape for draw in others]
        return has_moved or self.recorded.has_owned_rows or any(d.rejects for d in draws)

    @cached_property
    def _recorded_draws(self) -> DrawRecorder | None:
        """What the call drew; None if it cannot be repeated."""
        recorder = DrawRecorder()
        run = self.run_if_possible(self._unchanged, self._everyone, recorder, backward=False)
        return None if run is None else recorder

    def _list_with_steady_draws(self) -> Iterator[_Examination]:
        """The same with draws that are the same for every row: small, middling and large ones."""
        singles = [] if self._recorded_draws is None else list_singles(self._recorded_draws)
        for share in STEADY_SHARES:
            steady = partial(SteadyDraws, singles, share=share)
            yield _Examination(self.recorded, self.layout, steady)

    def _find_complaint(self, *, is_new: bool, is_first: bool) -> QuietgradError | None:
        unread: list[Trial] = []
        for is_same, explain in self._try(is_new=is_new, is_first=is_first):
            if is_same is False and (complaint := explain()):
                return complaint
            if not isinstance(is_same, bool):
                unread.append((is_same, explain))
        for is_same, explain in unread:  # on a device all verdicts are read here
            if not is_same and (complaint := explain()):
                return complaint
        return None if self._is_verifiable else nothing_to_compare_refusal(self._kind)

    def _try(self, *, is_new: bool, is_first: bool) -> Iterator[Trial]:
        kept, *others = separate_samples(self.recorded.batch)
        # Of what is known already, gradients are compared in one of two repeats, and of few alone.
        in_whole = is_new or draw_below(2) == 0
        recorder = self._drawn if self._steady is None else None
        is_same = self._replace_others(kept, recorder, backward=in_whole, largest=True)
        if self._drawn.has_hidden:
            # Draws that depend on values are drawn for all, here and in what is compared with.
            self._reference = self.run(self._unchanged, self._everyone, DrawRecorder())
            is_same = self._replace_others(kept, DrawRecorder())
        yield is_same, self._explaining_mixed
        alone = kept.nonzero().flatten()
        if not is_new:
            alone = alone[random_order(len(alone))[:COPIED]]
        alone = take_several(displace(alone, self.recorded.batch), self.recorded.batch)
        backward = is_new or not in_whole
        is_same_alone = self._is_same_for(alone, self._drawn, backward=backward)
        explain = partial(self._explain_company, alone, self._drawn, backward=backward)
        yield is_same_alone is None or is_same_alone, explain
        if is_first:
            # Draws that depend on values are others for samples that are replaced.
            is_hidden = self._drawn.has_hidden
            for each in self._list_with_steady_draws() if is_hidden else (self,):
                yield from each._try_every_two(~kept, others)

    @cached_property
    def _scores(self) -> Tensor | None:
        """The sum of each sample's values in the first tensor that has them."""
        dim, batch = self.layout.main.dim, self.recorded.batch
        for tensor in self._call.arguments:
            if tensor.is_floating_point() and tensor.ndim > dim and tensor.shape[dim] == batch:
                return score_samples(tensor, batch, dim)
        return None

    @property
    def _gives_whole(self) -> bool:
        """Whether whole numbers are returned: ids, masks, places."""
        assert self._call.returned is not None
        return not all(map(has_digits, leaves(self._call.returned)))

    @cached_property
    def is_sizable(self) -> bool:
        """Whether the model runs with another number of samples."""
        few = take_several(self._everyone[1:], self.recorded.batch)
        return self.run_if_possible(self.layout.select(few), few, backward=False) is not None

    def list_alternatives(self) -> Iterator[_Examination]:
        """The same, but for what is as long as the batch by chance.

        That is what was the same with other samples; and lists and arrays, if the model runs with
        another number of samples only as long as these stay as they are.
        """
        if isinstance(self.layout, JoinedInput):
            return
        if shared := self.recorded.find_shared():
            yield _Examination(self.recorded, replace(self.layout, shared=shared))
        other = _Examination(self.recorded, replace(self.layout, has_sides=False))
        few = take_several(self._everyone[: (self.recorded.batch + 1) // 2], self.recorded.batch)
        if self.run_if_possible(self.layout.select(few), few, backward=False) is not None:
            return
        if other.run_if_possible(other.layout.select(few), few, backward=False) is not None:
            yield other

    def _replace_others(
        self,
        kept: Tensor,
        mode: DrawRecorder | None = None,
        *,
        backward: bool = True,
        largest: bool | None = None,
    ) -> Verdict:
        """Whether these samples get the same when all others are replaced.

        Refuses a model that then holds other values afterwards.
        """
        samples = replace_others(kept, self._scores, largest=largest)
        return self._notices_nothing(samples, kept.nonzero().flatten(), mode, backward=backward)

    def _notices_nothing(
        self,
        samples: Tensor,
        rest: Tensor,
        mode: DrawRecorder | None,
        *,
        backward: bool,
        patient: bool = False,
    ) -> Verdict:
        """Whether the ``rest`` gets the same with these samples in the places of the call's."""
        try:
            only = rest if self.recorded.saves_room else None
            run = self.run(self.layout.select(samples), samples, mode, backward=backward, only=only)
        except Exception as error:
            self._error = error
            return False
        is_same = self._agrees(run, rest, rest, backward=backward, patient=patient)
        if is_same is False:
            return False
        kept_values = self._call.compare_kept(run.held)
        if not any(isinstance(each, Later) for each in (is_same, *kept_values.values())):
            return self._refuse_kept_data(kept_values)

        def conclude() -> bool:
            if is_same or patient:
                return bool(is_same) and self._refuse_kept_data(kept_values)
            again = None if mode is None else DrawRecorder()
            return bool(
                self._notices_nothing(samples, rest, again, backward=backward, patient=True)
            )

        return Later(conclude)

    def _try_every_two(self, first: Tensor, masks: Sequence[Tensor]) -> Iterator[Trial]:
        """Whether some sample notices another one, where these masks tell every two apart.

        Gradients are compared of those of the first one. In a large batch it takes half as long to
        leave others out as to replace them; but kernels round otherwise for fewer samples, so that
        whole numbers, and what has no gradient, are told for sure by replacing alone.
        """
        drawn = DrawRecorder()
        if self._drawn.drawn:  # now also for samples that were replaced
            self.run(self._unchanged, self._everyone, drawn, backward=False)
        if self.recorded.batch > FEW and self._call.with_gradients and not self._gives_whole:
            for number, samples in enumerate(list_companies([first, *masks], self._scores)):
                is_same = self._is_same_for(
                    samples, drawn, backward=not number, with_constants=False
                )
                if is_same is None:
                    break
                yield is_same, partial(self._explain_company, samples, drawn, backward=not number)
            else:
                return
        yield self._replace_others(first, largest=False), self._explaining_mixed
        for is_same in self._replace_any(masks):
            yield is_same, self._explaining_mixed
        samples = take_several(self._everyone[1:], self.recorded.batch)
        is_same = self._is_same_for(samples, drawn, backward=False)
        yield is_same is None or is_same, self._explain_place

    def _replace_any(self, masks: Sequence[Tensor]) -> Iterator[Verdict]:
        """Whether each of these samples get the same when the others are replaced."""
        singles = choose_singles(self.recorded.batch)
        ends = ((singles[0], True), (singles[0], False))
        for kept, largest in (*ends, *((each, None) for each in (*masks, *singles))):
            yield self._replace_others(kept, backward=False, largest=largest)

    def _is_same_for(
        self,
        samples: Tensor,
        drawn: DrawRecorder,
        *,
        backward: bool = True,
        with_constants: bool = True,
        patient: bool = False,
    ) -> Verdict | None:
        """Whether these samples get the same when they are alone, in this order.

        None if that cannot be told: the model is made for one size of batch, or its draws cannot be
        given again to each sample. Then outputs are compared in runs with constants in the place of
        draws, unless nothing but the draws themselves will do.
        """
        if not drawn.is_complete:
            return None
        for major in (True, False) if drawn.drawn else (True,):
            given = DrawReplayer(drawn, self.recorded.batch, samples, major=major)
            chosen, mode = self.layout.select(samples), given if drawn.drawn else None
            run = self.run_if_possible(chosen, samples, mode, backward=backward)
            if run is None:
                return None
            if drawn.drawn and given.unaligned:
                if not with_constants:
                    return None
                return self._is_same_with_constants(samples, backward=backward)
            is_same = self._agrees(run, samples, backward=backward, patient=patient)
            if isinstance(is_same, Later) and run.has_same_draws and not patient:
                options = {"backward": backward, "with_constants": with_constants}
                again = partial(self._is_same_for, samples, drawn, **options, patient=True)
                return any_of((is_same, Later(again)))
            if not drawn.drawn and run.has_same_draws:
                return is_same
            if is_same:
                return True
            if not run.has_same_draws:
                return None
        return False

    def _is_same_with_constants(self, samples: Tensor, *, backward: bool) -> Verdict | None:
        """The same if every draw is one and the same number, in both runs."""
        other = _Examination(self.recorded, self.layout, ConstantDraws)
        return other._is_same_for(samples, DrawRecorder(), backward=backward)

    @property
    def _explaining_mixed(self) -> Callable[[], QuietgradError]:
        """Why samples notice that others are replaced; or the error that the model has raised."""
        return partial(self._explain, mixed_refusal(self._kind), self._error)

    def _explain_company(
        self, samples: Tensor, drawn: DrawRecorder, *, backward: bool
    ) -> QuietgradError | None:
        """Why samples get something else when they are alone, in this order; None if by rounding.

        With ``backward``, gradients were compared, too.
        """
        if not all_of(self._replace_any(separate_samples(self.recorded.batch))):
            return self._explain(mixed_refusal(self._kind), self._error)
        if backward and self._is_by_rounding(samples, drawn):
            return None
        return self._explain_place()

    def _is_by_rounding(self, samples: Tensor, drawn: DrawRecorder) -> bool:
        """Whether gradients of some of these samples differ because of how kernels round.

        For another number of samples they may round otherwise, so that what is nearly zero falls on
        the other side of it, where a ReLU has another slope. Then outputs are the same; so are
        gradients when others are replaced, which changes no number; and gradients move as far, for
        the same samples, when weights are moved by no more than rounding and nothing else changes.
        """
        is_kept = torch.zeros(self.recorded.batch, dtype=torch.bool, device="cpu")
        is_kept[samples] = True
        if not (
            self._is_same_for(samples, drawn, backward=False) and self._replace_others(is_kept)
        ):
            return False
        moved: list[Gaps | None] = []
        for _ in range(_TREMBLES):
            with self.recorded.moved_weights(self._call.model, Tremble()):
                mode = DrawRecorder() if self._drawn.has_hidden else None
                run = self.run(self._unchanged, self._everyone, mode)
            moved.append(self._measure_gaps(run, samples, samples))
        everyone = torch.arange(len(samples), device="cpu")
        for major in (True, False) if drawn.drawn else (True,):
            replayed = DrawReplayer(drawn, self.recorded.batch, samples, major=major)
            chosen = self.layout.select(samples)
            alone = self.run_if_possible(chosen, samples, replayed if drawn.drawn else None)
            gaps = None if alone is None else self._measure_gaps(alone, samples, everyone)
            if gaps is not None and explains_gaps(gaps, moved):
                return True
        return False

    def _measure_gaps(self, run: Execution, old: Tensor, new: Tensor) -> Gaps | None:
        """How far apart gradients of samples are; None if they are not made of the same parts."""
        if run.unknown or run.inner:
            return None
        gaps: Gaps = {}
        for key, ones in self._reference.factors.items():
            others = run.factors.get(key)
            if ones is None or others is None or len(ones) != len(others):
                return None
            for number, (one, other) in enumerate(zip(ones, others, strict=True)):
                parts, found = one.select(old).tensors, other.select(new).tensors
                alike = [t.shape for t in parts] == [t.shape for t in found]
                if one.is_owned or other.is_owned or not alike:
                    return None
                for place, pair in enumerate(zip(parts, found, strict=True)):
                    if has_digits(pair[0]):
                        gaps[key, number, place] = measure_gaps(
                            *pair, self._call.bits, self._largest_gradient
                        )
        return gaps

    def _explain_place(self) -> QuietgradError:
        return self._explain((placed_refusal if self._is_moved() else counted_refusal)(self._kind))

    def _is_moved(self) -> bool:
        """Whether samples notice that all change places."""
        samples = self._everyone.roll(1)
        if self._drawn.drawn:  # draws would change with places
            is_same = self._is_same_with_constants(samples, backward=False)
            return is_same is not None and not is_same
        run = self.run(self.layout.select(samples), samples)
        return not self._agrees(run, samples)

    def _explain(self, complaint: QuietgradError, error: Exception | None = None) -> QuietgradError:
        """The complaint, unless the call cannot even be repeated unchanged."""
        if error is not None:
            return broken_refusal(self._kind, error)
        return complaint if self._is_repeatable() else unrepeatable_refusal(self._kind)

    def require_repeatable(self) -> None:
        """Refuse a call that gives something else when it is repeated unchanged."""
        if not self._is_repeatable():
            raise unrepeatable_refusal(self._kind)

    def _is_repeatable(self) -> bool:
        mode = DrawRecorder() if self._drawn.has_hidden else None
        run = self.run(self._unchanged, self._everyone, mode)
        return bool(self._agrees(run, self._everyone))

    @cached_property
    def _unchanged(self) -> Choose:
        return self.layout.select(self._everyone)

    def run(
        self,
        choose: Choose,
        samples: Tensor,
        mode: AbstractContextManager[Any] | None = None,
        *,
        backward: bool = True,
        only: Tensor | None = None,
        read_rows: bool = False,
    ) -> Execution:
        """A repeat in which sample ``i`` is ``samples[i]`` of the call.

        With ``only``, gradients of these of its samples are all that will be compared.
        """
        call, count = self._call, len(samples)
        returned = call.returned
        assert returned is not None
        if isinstance(self.layout, JoinedInput) and not self.layout.is_complete:
            samples = torch.arange(count, device="cpu")  # each keeps its rows, with other values
        comparison = self._comparison(samples, torch.arange(count, device="cpu"), samples)
        seeds = partial(comparison.seed, returned) if backward and call.with_gradients else None
        hold = count == self.recorded.batch
        options: Any = {"hold": hold, "only": only, "read_rows": read_rows}
        if self._steady is not None:
            mode = self._steady()
        return repeat(call, choose, samples, seeds, self.recorded.recapture, mode, **options)

    def run_if_possible(
        self,
        choose: Choose,
        samples: Tensor,
        mode: AbstractContextManager[Any] | None = None,
        **options: Any,
    ) -> Execution | None:
        """The same; None if the model does not run like this."""
        try:
            return self.run(choose, samples, mode, **options)
        except Exception:
            return None

    def refuse_kept_data(self, run: Execution) -> None:
        """Refuse a model that holds other values now than after the call with other samples."""
        self._refuse_kept_data(self._call.compare_kept(run.held))

    def _refuse_kept_data(self, are_same: Mapping[str, Verdict]) -> Literal[True]:
        changed = {name for name, is_same in are_same.items() if not is_same}
        if changed:
            # What differs between equal runs, too, was not computed from samples: a clock.
            again = self.run(self._unchanged, self._everyone, backward=False)
            kept = self._call.compare_kept(again.held).items()
            changed -= {name for name, is_same in kept if not is_same}
        if changed:
            name = min(changed)
            buffers = dict(self._call.model.named_buffers())
            raise raw_data_refusal(name) if name in buffers else kept_data_refusal(name)
        return True

    def _agrees(
        self,
        run: Execution,
        old: Tensor,
        new: Tensor | None = None,
        *,
        backward: bool = True,
        patient: bool = True,
    ) -> Verdict:
        """Whether samples ``old`` of the call got the same as samples ``new`` of a repeat.

        ``new`` are all of the repeat's, unless it is given. Without ``backward`` only what was
        returned is compared. Unless ``patient``, a verdict that is not known yet may be false where
        a patient one is true.
        """
        new = torch.arange(run.batch, device="cpu") if new is None else new
        comparison = self._comparison(old, new, run.samples, is_alike=run.is_alike)
        reference = self._reference
        is_same = comparison.holds(reference.outputs, run.outputs)
        if is_same is False or not backward:
            return is_same
        inner = zip(reference.inner, run.inner, strict=True) if reference.inner else ()
        are_same = [
            comparison.unprobed.holds(one, other)
            for one, other in inner
            if one is not None and other is not None
        ]
        is_same = all_of((is_same, *are_same))
        if is_same is False or (patient and not is_same):
            return False
        same_factors = self._same_factors(reference.factors, run, old, new, patient=patient)
        return all_of((is_same, same_factors))

    def _comparison(
        self, old: Tensor, new: Tensor, samples: Tensor, *, is_alike: bool = True
    ) -> OutputComparison:
        known, batch, count = self._call.outputs, self.recorded.batch, len(samples)
        # What a frozen part gives may be ids, which are not to depend on the number of samples.
        has_whole = not self._call.with_gradients
        bits, only_direct = self._call.bits, self.recorded.is_trial
        return OutputComparison(
            known, batch, count, old, new, samples, bits, is_alike, has_whole, only_direct
        )

    @cached_property
    def _reference(self) -> Execution:
        """The call itself; what it returned is computed again if it was written to since."""
        outputs = self._call.recorded_outputs
        has_inner = any(tensor.requires_grad for tensor in self._call.arguments)
        if self._steady is not None:
            return self.run(self._unchanged, self._everyone)
        if outputs is None or has_inner or self.recorded.is_bypassed:
            again = self.run(self._unchanged, self._everyone)
            outputs = again.outputs if outputs is None else outputs
            known = again.factors if self.recorded.is_bypassed else self.recorded.factors
            return replace(again, factors=known, outputs=outputs)
        return Execution(self._everyone, outputs, self.recorded.factors)

    def _same_factors(
        self, before: Factors, run: Execution, old: Tensor, new: Tensor, *, patient: bool
    ) -> Verdict:
        same_size = run.is_alike and run.batch == self.recorded.batch
        same = partial(
            agree_by_sample,
            bits=self._call.bits,
            largest=self._largest_gradient,
            same_size=same_size,
        )
        broken = partial(getattr, self.recorded, "broken")
        return same_factors(before, run, old, new, same, broken, patient=patient)

    @cached_property
    def _largest_gradient(self) -> float | Tensor:
        return find_largest(made[0].tensors[0] for made in self.recorded.factors.values() if made)

    @property
    def _is_verifiable(self) -> bool:
        """Whether samples were told apart in something that losses can depend on."""
        call = self._call
        if not call.with_gradients or not any(p.requires_grad for p in call.model.parameters()):
            return True
        assert call.returned is not None
        return tells_samples_apart(call.returned, call.outputs, self.recorded.batch)
