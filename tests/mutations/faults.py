"""The faults: which text is replaced by what, and which tests should notice.

No fault names a file of the library, so files can move. A text that is rewritten must be rewritten
here too: it has to occur exactly once (``test_faults.py``).
"""

from .planting import Fault, make_fault
from .verification_faults import REFUSALS

CLIPPING = [
    make_fault(
        "auto-s",
        "AUTO-S divides by the norm plus twice gamma.",
        "norms + _at_least_tiny(self.gamma, norms)",
        "norms + 2 * _at_least_tiny(self.gamma, norms)",
        "tests/clipping/test_functions.py",
    ),
    make_fault(
        "psac",
        "PSAC takes 1 for one of its two r.",
        "_ratio(radius, norms + r / (norms + r))",
        "_ratio(radius, norms + r / (norms + 1))",
        "tests/clipping/test_functions.py",
    ),
    make_fault(
        "clip-without-min",
        "Abadi's clipping is R/n without the minimum, and lengthens short gradients.",
        "_ratio(radius, norms.clamp(min=_at_least_tiny(radius, norms)))",
        "_ratio(radius, norms.clamp(min=1e-30))",
        "tests/clipping/test_functions.py",
    ),
    make_fault(
        "cross-term",
        "Norms forget the cross term between two uses of a parameter.",
        "2 * dot(a, b)",
        "0 * dot(a, b)",
        "tests/contract/test_exact.py tests/contract/test_factors.py",
        "tied or shared or combined or uses",
    ),
    make_fault(
        "cancellation",
        "Norms from Gram matrices are kept where cancellation left no digits.",
        "self.are_fine = (squares >= least) & (largest < info.max**0.25)",
        "self.are_fine = largest < info.max**0.25",
        "tests/contract/test_cancellation.py",
    ),
    make_fault(
        "gram-symmetry",
        "Of a symmetric Gram matrix the blocks beside the diagonal are counted once, not twice.",
        "squares.append(rest.mul_(other).sum((1, 2)).mul_(2))",
        "squares.append(rest.mul_(other).sum((1, 2)))",
        "tests/contract/test_cancellation.py",
        "blocks",
    ),
    make_fault(
        "rows-of-each",
        "In operations without a rule a sample gets the gradient of all rows.",
        "is_own = layout.owner_of(grad) == chosen.view(-1, *[1] * grad.ndim)",
        "is_own = layout.owner_of(grad) >= 0 * chosen.view(-1, *[1] * grad.ndim)",
        "tests/contract/test_exact.py",
        "fallback or custom",
    ),
    make_fault(
        "spoiled",
        "In operations without a rule a sample that is not finite spoils the others.",
        "if spoiled.any():",
        "if False:",
        "tests/contract/test_sensitivity.py",
    ),
    make_fault(
        "bias",
        "Biases are not counted into the norm of their group.",
        "Measured(name, held, self._limited(index, norms), ())",
        "Measured(name, held, self._limited(index, norms)"
        " if len(factor.shape) > 1 else 0 * factor.sq_norm(), ())",
        "tests/contract/test_exact.py",
    ),
    make_fault(
        "half-precision",
        "Norms and sums of half-precision gradients stay in half precision.",
        "return tensor.float() if is_half(tensor) else tensor",
        "return tensor",
        "tests/contract/test_factors.py tests/contract/test_exact.py",
        "half or bfloat16 or float16",
    ),
    make_fault(
        "extremes",
        "Norms whose squares overflow or underflow are not computed again.",
        "if not is_extreme.any():",
        "if True:",
        "tests/contract/test_extremes.py",
    ),
    make_fault(
        "owners",
        "Rows are counted for the sample with the next number.",
        "owners = send(samples, codes.device).take(codes.clamp_min(0))",
        "owners = send(samples, codes.device).roll(1).take(codes.clamp_min(0))",
        "tests/contract/test_exact.py",
        "ragged",
    ),
    make_fault(
        "owners-remembered",
        "Owners are read when something is verified, and not in every pass.",
        "return probe_layouts(tape, losses) if is_open else None",
        "return None",
        "tests/refusals/test_owners_over_time.py",
    ),
    make_fault(
        "joined-beside",
        "Rows of several samples are not exchanged if something beside them can be.",
        "if recorded.has_owned_rows or has_joined or recorded.was_joined:",
        "if False:",
        "tests/refusals/test_joined_mixing.py tests/refusals/test_joined_samples.py",
    ),
    make_fault(
        "broken-rows",
        "A layout in which a broken sample's rows are another's is taken.",
        "self._broken is None or self._explains(site, whole)",
        "True",
        "tests/refusals/test_joined_mixing.py",
    ),
    make_fault(
        "ids-out-of-range",
        "Ids out of range are taken modulo the number of rows.",
        "run = partial(F.embedding, input, padding_idx=padding_idx)",
        "run = partial(F.embedding, input % weight.shape[0], padding_idx=padding_idx)",
        "tests/contract/test_ids_out_of_range.py",
    ),
    make_fault(
        "joined-factors",
        "Of factors of several parameters in one, all are taken to be that of the first.",
        "slice(place * self._batch, (place + 1) * self._batch)",
        "slice(0, self._batch)",
        "tests/contract/test_joined_factors.py",
    ),
    make_fault(
        "non-finite",
        "A sample whose gradient is not finite stays in the weighted sum.",
        "None if finite.all() else finite.nonzero().flatten()",
        "None",
        "tests/refusals/test_nonfinite.py",
    ),
    make_fault(
        "sensitivity",
        "The sensitivity of several groups forgets the last one.",
        "hypot(*(bound(group.radius) for group in groups))",
        "hypot(*(bound(group.radius) for group in groups[:-1] or groups))",
        "tests/grouping/test_radii.py tests/engine/test_noise_of_a_step.py",
    ),
]

NOISE_AND_SAMPLING = [
    make_fault(
        "noise-scale",
        "The noise is scaled by the noise multiplier alone, not by the sensitivity too.",
        "sum_multiplier(sigma) * self.sensitivity",
        "sum_multiplier(sigma)",
        "tests/engine/test_noise_of_a_step.py",
    ),
    make_fault(
        "unused-parameters",
        "A parameter that no sample used gets no noise.",
        "return self._world.noisy(totals, add_noise, list(self._trained))",
        "noisy = self._world.noisy(totals, add_noise, list(self._trained))\n"
        "        pairs = zip(self._trained, noisy, strict=True)\n"
        "        return [g if n in sums else 0 * g for n, g in pairs]",
        "tests/engine/test_noise_of_a_step.py",
    ),
    make_fault(
        "noise-without-tails",
        "Values outside of all rectangles are zero: the noise ends at 4.5 deviations.",
        "= self._rest(len(outside)) * self._std",
        "= 0 * self._rest(len(outside))",
        "tests/noise/test_secure.py tests/noise/test_gaussian.py",
    ),
    make_fault(
        "noise-layers",
        "The tail of the noise is drawn as often as its box is large, without rejection.",
        "is_kept[tail] = level[tail] * x[tail] < start",
        "is_kept[tail] = True",
        "tests/noise/test_secure.py",
    ),
    make_fault(
        "predictable-noise",
        "Keys of noise and sampling are zeros instead of random bytes.",
        "os.urandom(KEY_BYTES)",
        "bytes(KEY_BYTES)",
        "tests/test_keystream.py tests/engine/test_noise_of_a_step.py",
    ),
    make_fault(
        "noise-of-no-rank",
        "Of several ranks each releases its part of the sums without noise.",
        "zip(kinds.values(), add_noise(owned), strict=True)",
        "zip(kinds.values(), owned, strict=True)",
        "tests/distributed/test_data_parallel.py",
        "noise",
    ),
    make_fault(
        "noise-of-leader",
        "Of several ranks only the leader adds noise to its part of the sums.",
        "zip(kinds.values(), add_noise(owned), strict=True)",
        "zip(kinds.values(), add_noise(owned) if self.is_leader else owned, strict=True)",
        "tests/distributed/test_data_parallel.py",
        "noise",
    ),
    Fault(
        "noise-of-all-ranks",
        "Of several ranks each adds noise to its own sums, before they are added up.",
        (
            (
                "owned = [self._reduce([totals[i] for i in places]) for places in kinds.values()]",
                "totals = add_noise(totals)\n            owned = ["
                "self._reduce([totals[i] for i in places]) for places in kinds.values()]",
            ),
            (
                "zip(kinds.values(), add_noise(owned), strict=True)",
                "zip(kinds.values(), owned, strict=True)",
            ),
        ),
        ("tests/distributed/test_data_parallel.py", "-k", "noise"),
    ),
    make_fault(
        "noise-shared",
        "Of several ranks each adds its share of the noise, though every entry has one owner.",
        "return self._noise.add(parts, std, divisor)",
        "return self._noise.add(parts, std / self._world.size**0.5, divisor)",
        "tests/distributed/test_data_parallel.py",
        "noise",
    ),
    make_fault(
        "sampling-rate",
        "Poisson sampling draws every sample half as often as it says.",
        "int(self.rate * 2.0**64)",
        "int(self.rate * 2.0**63)",
        "tests/sampling/test_poisson.py",
    ),
    make_fault(
        "recorded-rate",
        "What is recorded for accounting is half the sampling rate.",
        "return Poisson(self.rate)",
        "return Poisson(self.rate / 2)",
        "tests/sampling/test_poisson.py tests/engine/test_ledger.py",
    ),
]

ACCOUNTING = [
    make_fault(
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
    make_fault(
        "substitution",
        "Replacing a sample moves the sum no further than removing it (by divergences).",
        "GaussianDpEvent(sigma / 2)",
        "GaussianDpEvent(sigma)",
        "tests/accounting/test_adjacency.py",
    ),
    make_fault(
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
    make_fault(
        "flush-not-awaited",
        "A step is released without waiting for its record to be on the disk.",
        "            flush.wait()\n        self._hash",
        "            pass\n        self._hash",
        "tests/faults/test_record_beside_noise.py",
    ),
    make_fault(
        "forked-line",
        "A forked process takes back the line that its parent is writing.",
        "if os.getpid() == self._process and self._flush is flush:",
        "if self._flush is flush:",
        "tests/faults/test_record_beside_noise.py",
    ),
    make_fault(
        "hash-chain",
        "Hashes in a ledger file are not verified.",
        'if line + b"\\n" != written:',
        "if False:",
        "tests/accounting/test_ledger_file_damage.py",
    ),
    make_fault(
        "budget",
        "One step more than planned is allowed.",
        "max(0, self._planned_steps - self._recorded)",
        "max(0, self._planned_steps + 1 - self._recorded)",
        "tests/engine/test_budget.py",
        "spent",
    ),
    make_fault(
        "resume",
        "A resumed run forgets what was spent before it was saved.",
        "lost = self.ledger.cover(saved)",
        "lost = 0",
        "tests/engine/test_resume.py",
    ),
]

FAULTS = [*CLIPPING, *NOISE_AND_SAMPLING, *ACCOUNTING, *REFUSALS]
