"""The faults: which text is replaced by what, and which tests should notice.

No fault names a file of the library, so files can move. A text that is rewritten must be rewritten
here too: it has to occur exactly once, or the fault counts as not planted.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        name: for --only and the table.
        what: the mistake in a sentence.
        edits: text and replacement; each text occurs exactly once in the library.
        tests: arguments of pytest that are tried first, before the whole fast suite.
    """

    name: str
    what: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def _fault(name: str, what: str, old: str, new: str, tests: str, only: str = "") -> Fault:
    selection = (*tests.split(), "-k", only) if only else tuple(tests.split())
    return Fault(name, what, ((old, new),), selection)


CLIPPING = [
    _fault(
        "auto-s",
        "AUTO-S divides by the norm plus twice gamma.",
        "norms + _at_least_tiny(self.gamma, norms)",
        "norms + 2 * _at_least_tiny(self.gamma, norms)",
        "tests/clipping/test_functions.py",
    ),
    _fault(
        "psac",
        "PSAC takes 1 for one of its two r.",
        "_ratio(radius, norms + r / (norms + r))",
        "_ratio(radius, norms + r / (norms + 1))",
        "tests/clipping/test_functions.py",
    ),
    _fault(
        "clip-without-min",
        "Abadi's clipping is R/n without the minimum, and lengthens short gradients.",
        "_ratio(radius, norms.clamp(min=_at_least_tiny(radius, norms)))",
        "_ratio(radius, norms.clamp(min=1e-30))",
        "tests/clipping/test_functions.py",
    ),
    _fault(
        "cross-term",
        "Norms forget the cross term between two uses of a parameter.",
        "2 * dot(a, b)",
        "0 * dot(a, b)",
        "tests/contract/test_exact.py tests/contract/test_factors.py",
        "tied or shared or combined or uses",
    ),
    _fault(
        "cancellation",
        "Norms from Gram matrices are kept where cancellation left no digits.",
        "(~fine).nonzero()",
        "(~fine).nonzero()[:0]",
        "tests/contract/test_cancellation.py",
    ),
    _fault(
        "rows-of-each",
        "In operations without a rule a sample gets the gradient of all rows.",
        "is_own = layout.owner_of(grad) == chosen.view(-1, *[1] * grad.ndim)",
        "is_own = layout.owner_of(grad) >= 0 * chosen.view(-1, *[1] * grad.ndim)",
        "tests/contract/test_exact.py",
        "fallback or custom",
    ),
    _fault(
        "spoiled",
        "In operations without a rule a sample that is not finite spoils the others.",
        "if spoiled.any():",
        "if False:",
        "tests/contract/test_sensitivity.py",
    ),
    _fault(
        "bias",
        "Biases are not counted into the norm of their group.",
        "known + squares.to(known.device)",
        "known + (squares.to(known.device) if len(factor.shape) > 1 else 0)",
        "tests/contract/test_exact.py",
    ),
    _fault(
        "half-precision",
        "Norms and sums of half-precision gradients stay in half precision.",
        "if tensor.dtype in (torch.float16, torch.bfloat16):\n        return tensor.float()",
        "if tensor.dtype in ():\n        return tensor.float()",
        "tests/contract/test_factors.py tests/contract/test_exact.py",
        "half or bfloat16 or float16",
    ),
    _fault(
        "extremes",
        "Norms whose squares overflow or underflow are not computed again.",
        "if not is_extreme.any():",
        "if True:",
        "tests/contract/test_extremes.py",
    ),
    _fault(
        "owners",
        "Rows are counted for the sample with the next number.",
        "owners = samples.to(codes.device)[codes.clamp_min(0)]",
        "owners = samples.to(codes.device).roll(1)[codes.clamp_min(0)]",
        "tests/contract/test_exact.py",
        "ragged",
    ),
    _fault(
        "owners-remembered",
        "Owners are read when something is verified, and not in every pass.",
        "is_open = graph.selects_rows or tape.has_owned_rows()",
        "is_open = False",
        "tests/refusals/test_owners_over_time.py",
    ),
    _fault(
        "joined-beside",
        "Rows of several samples are not exchanged if something beside them can be.",
        "if recorded.has_owned_rows or has_joined or recorded.was_joined:",
        "if False:",
        "tests/refusals/test_joined_mixing.py tests/refusals/test_joined_samples.py",
    ),
    _fault(
        "broken-rows",
        "A layout in which a broken sample's rows are another's is taken.",
        "self._broken is None or self._explains(site, whole)",
        "True",
        "tests/refusals/test_joined_mixing.py",
    ),
    _fault(
        "ids-out-of-range",
        "Ids out of range are taken modulo the number of rows.",
        "run = partial(F.embedding, input, padding_idx=padding_idx)",
        "run = partial(F.embedding, input % weight.shape[0], padding_idx=padding_idx)",
        "tests/contract/test_ids_out_of_range.py",
    ),
    _fault(
        "non-finite",
        "A sample whose gradient is not finite stays in the weighted sum.",
        "None if finite.all() else finite.nonzero().flatten()",
        "None",
        "tests/refusals/test_nonfinite.py",
    ),
    _fault(
        "sensitivity",
        "The sensitivity of several groups forgets the last one.",
        "hypot(*(bound(group.radius) for group in groups))",
        "hypot(*(bound(group.radius) for group in groups[:-1] or groups))",
        "tests/grouping/test_radii.py tests/engine/test_noise_of_a_step.py",
    ),
]

NOISE_AND_SAMPLING = [
    _fault(
        "noise-scale",
        "The noise is scaled by the noise multiplier alone, not by the sensitivity too.",
        "sum_multiplier(sigma) * self.sensitivity",
        "sum_multiplier(sigma)",
        "tests/engine/test_noise_of_a_step.py",
    ),
    _fault(
        "unused-parameters",
        "A parameter that no sample used gets no noise.",
        "self._noise.add(totals, std, divisor)",
        "[g if n in sums else 0 * g"
        " for n, g in zip(trained, self._noise.add(totals, std, divisor), strict=True)]",
        "tests/engine/test_noise_of_a_step.py",
    ),
    _fault(
        "noise-without-tails",
        "Values outside of all rectangles are zero: the noise ends at 4.5 deviations.",
        "= self._rest(len(outside)) * self._std",
        "= 0 * self._rest(len(outside))",
        "tests/noise/test_secure.py tests/noise/test_gaussian.py",
    ),
    _fault(
        "noise-layers",
        "The tail of the noise is drawn as often as its box is large, without rejection.",
        "is_kept[tail] = level[tail] * x[tail] < start",
        "is_kept[tail] = True",
        "tests/noise/test_secure.py",
    ),
    _fault(
        "predictable-noise",
        "Keys of noise and sampling are zeros instead of random bytes.",
        "os.urandom(KEY_BYTES)",
        "bytes(KEY_BYTES)",
        "tests/test_keystream.py tests/engine/test_noise_of_a_step.py",
    ),
    _fault(
        "sampling-rate",
        "Poisson sampling draws every sample half as often as it says.",
        "int(self.rate * 2.0**64)",
        "int(self.rate * 2.0**63)",
        "tests/sampling/test_poisson.py",
    ),
    _fault(
        "recorded-rate",
        "What is recorded for accounting is half the sampling rate.",
        "return Poisson(self.rate)",
        "return Poisson(self.rate / 2)",
        "tests/sampling/test_poisson.py tests/engine/test_ledger.py",
    ),
]

ACCOUNTING = [
    _fault(
        "composition",
        "One step of every kind is not counted.",
        "return event.steps",
        "return max(1, event.steps - 1)",
        "tests/accounting/test_ledger_composition.py tests/accounting/test_guarantees.py",
    ),
    Fault(
        "calibration",
        "Calibrated noise spends a little more than the target instead of a little less.",
        (
            ("goal = target - slack / 2", "goal = target + slack / 2"),
            ("target - slack <= found <= target", "target <= found <= target + slack"),
        ),
        ("tests/accounting/test_calibrate.py",),
    ),
    _fault(
        "substitution",
        "Replacing a sample moves the sum no further than removing it (by divergences).",
        "GaussianDpEvent(sigma / 2)",
        "GaussianDpEvent(sigma)",
        "tests/accounting/test_adjacency.py",
    ),
    _fault(
        "tuning",
        "A random search is charged for half of its runs.",
        "RepeatAndSelectDpEvent(one, self.mean,",
        "RepeatAndSelectDpEvent(one, max(1.0, self.mean / 2),",
        "tests/cli/test_tune_cost.py tests/accounting/test_tuning.py",
    ),
    Fault(
        "late-ledger",
        "A step is recorded after the weights were updated.",
        (
            (
                "self._budget.record(step, pass_number=batch.pass_number)",
                "self._budget._event(step, batch.pass_number).noise_multiplier",
            ),
            (
                "self._radii.adapt(",
                "self._budget.record(step, pass_number=batch.pass_number)\n"
                "            self._radii.adapt(",
            ),
        ),
        ("tests/engine/test_ledger.py", "-k", "on_disk_before or cannot_be_recorded"),
    ),
    _fault(
        "flush-not-awaited",
        "A step is released without waiting for its record to be on the disk.",
        "            flush.wait()\n        self._hash",
        "            pass\n        self._hash",
        "tests/faults/test_record_beside_noise.py",
    ),
    _fault(
        "forked-line",
        "A forked process takes back the line that its parent is writing.",
        "if os.getpid() == self._process and self._flush is flush:",
        "if self._flush is flush:",
        "tests/faults/test_record_beside_noise.py",
    ),
    _fault(
        "hash-chain",
        "Hashes in a ledger file are not verified.",
        'if line + b"\\n" != written:',
        "if False:",
        "tests/accounting/test_ledger_file_damage.py",
    ),
    _fault(
        "budget",
        "One step more than planned is allowed.",
        "self._recorded >= self._planned_steps",
        "self._recorded > self._planned_steps",
        "tests/engine/test_budget.py",
        "spent",
    ),
    _fault(
        "resume",
        "A resumed run forgets what was spent before it was saved.",
        "lost = self.ledger.cover(saved)",
        "lost = 0",
        "tests/engine/test_resume.py",
    ),
]

REFUSALS = [
    _fault(
        "losses",
        "More or fewer losses than samples are accepted.",
        "len(losses) != batch",
        "len(losses) < 0",
        "tests/refusals/test_losses.py",
    ),
    _fault(
        "buffers",
        "A buffer written from data by way of .data or numpy is accepted.",
        "fine = seen.is_unchanged",
        "fine = True",
        "tests/faults/test_buffers.py",
    ),
    _fault(
        "mixing",
        "A model is not called with some samples replaced, to see whether the others notice.",
        "check_independence(recorded, is_new=is_new, is_first=is_first)",
        "recorded",
        "tests/refusals/test_mixing.py",
        "before_the_first_parameter",
    ),
    _fault(
        "mixing-backward",
        "Gradients of a repeated call are not compared with the recorded ones.",
        "return self._same_factors(reference.factors, run, old, new)",
        "return True",
        "tests/verification/test_traps.py",
        "test_refused and D:",
    ),
    _fault(
        "state-after-the-call",
        "A call is repeated from the state after it.",
        "if self.state is not None:\n                self.state.restore()",
        "if self.state is not None:\n                pass",
        "tests/verification/test_traps.py",
        "test_refused and A:",
    ),
    _fault(
        "mixing-later",
        "Losses are probed for mixed samples in the first batches only, whatever changes later.",
        "tape.verify or kind not in self._known or tape.is_unsettled()",
        "tape.is_unsettled()",
        "tests/refusals/test_later_batches.py",
    ),
    _fault(
        "weights-put-back",
        "Contents of weights are compared in verified micro-batches only.",
        "is_watched = is_due or secrets.randbelow(_WATCHED) == 0",
        "is_watched = is_due",
        "tests/refusals/test_later_batches.py",
    ),
    _fault(
        "whole-numbers",
        "Whole numbers are compared with those of fewer samples only, but for a few.",
        "self._call.with_gradients and not self._gives_whole",
        "True",
        "tests/verification/test_large_batches.py",
    ),
    _fault(
        "steady-draws",
        "Draws that are the same for every row are large or small, and never in between.",
        "STEADY_SHARES = (0.05, 0.5, 0.95)",
        "STEADY_SHARES = (0.05, 0.95)",
        "tests/verification/test_routed_rows.py",
    ),
    _fault(
        "stray-step",
        "optimizer.step() outside of the engine is allowed.",
        "if not self._is_due:",
        "if False:",
        "tests/refusals/test_optimizer.py",
    ),
    _fault(
        "added-twice",
        "A micro-batch can be added to the sum twice.",
        "self._propagated >= self._fetched",
        "self._propagated > self._fetched",
        "tests/refusals/test_order_of_verbs.py",
    ),
    _fault(
        "contradiction",
        "The report's verdict passes over evidence that contradicts itself.",
        "if has_conflicts:",
        "if False:",
        "tests/report/test_contradictions.py",
    ),
]

FAULTS = [*CLIPPING, *NOISE_AND_SAMPLING, *ACCOUNTING, *REFUSALS]
