"""Faults of what is verified and refused, and of what is said."""

from .planting import Fault, make_fault

REFUSALS = [
    make_fault(
        "losses",
        "More or fewer losses than samples are accepted.",
        "len(losses) != batch",
        "len(losses) < 0",
        "tests/refusals/test_losses.py",
    ),
    make_fault(
        "buffers",
        "A buffer written from data by way of .data or numpy is accepted.",
        "fine = seen.is_unchanged",
        "fine = True",
        "tests/faults/test_buffers.py",
    ),
    make_fault(
        "mixing",
        "A model is not called with some samples replaced, to see whether the others notice.",
        "check_independence(recorded, is_new=is_new, is_first=is_first)",
        "recorded",
        "tests/refusals/test_mixing.py",
        "before_the_first_parameter",
    ),
    make_fault(
        "mixing-backward",
        "Gradients of a repeated call are not compared with the recorded ones.",
        "same_factors = self._same_factors(reference.factors, run, old, new, patient=patient)",
        "same_factors = True",
        "tests/verification/test_traps.py",
        "test_refused and D:",
    ),
    make_fault(
        "state-after-the-call",
        "A call is repeated from the state after it.",
        "if self.state is not None:\n                self.state.restore()",
        "if self.state is not None:\n                pass",
        "tests/verification/test_traps.py",
        "test_refused and A:",
    ),
    make_fault(
        "mixing-later",
        "Losses are probed for mixed samples in the first batches only, whatever changes later.",
        "tape.verify or kind not in self._known or tape.is_unsettled()",
        "tape.is_unsettled()",
        "tests/refusals/test_later_batches.py",
    ),
    make_fault(
        "weights-put-back",
        "Contents of weights are compared in verified micro-batches only.",
        "is_watched = is_due or (secrets.randbelow(_WATCHED) == 0 and self._is_on_host())",
        "is_watched = is_due",
        "tests/refusals/test_later_batches.py",
    ),
    Fault(
        "kept-places",
        "Samples that are run without others stay in order, and the first ones at their places.",
        (
            (
                "take_several(displace(alone, self.recorded.samples), self",
                "take_several(alone, self",
            ),
            (
                "yield displace(mask.nonzero().flatten(), len(mask))",
                "yield mask.nonzero().flatten()",
            ),
        ),
        ("tests/verification/test_large_batches.py",),
    ),
    make_fault(
        "own-places",
        "Samples that are run without others are shuffled, and some stay at their places.",
        "if found[place] == place:",
        "if False:",
        "tests/verification/test_large_batches.py",
    ),
    make_fault(
        "certificate",
        "A compiled graph is used without a comparison with the call as it was written.",
        "    if run is None or not run.is_alike:\n        return False\n    return bool(",
        "    return run is not None and bool(True or ",
        "tests/engine/test_compiled_forward.py",
    ),
    make_fault(
        "whole-numbers",
        "Whole numbers are compared with those of fewer samples only, but for a few.",
        "self._call.with_gradients and not self._gives_whole",
        "True",
        "tests/verification/test_large_batches.py",
    ),
    make_fault(
        "steady-draws",
        "Draws that are the same for every row are large or small, and never in between.",
        "STEADY_SHARES = (0.05, 0.5, 0.95)",
        "STEADY_SHARES = (0.05, 0.95)",
        "tests/verification/test_routed_rows.py",
    ),
    make_fault(
        "stray-step",
        "optimizer.step() outside of the engine is allowed.",
        "if not self._is_due and (has_closure or not self._is_idle()):",
        "if False:",
        "tests/refusals/test_optimizer.py",
    ),
    make_fault(
        "added-twice",
        "A micro-batch can be added to the sum twice.",
        "self._propagated >= self._fetched",
        "self._propagated > self._fetched",
        "tests/refusals/test_order_of_verbs.py",
    ),
    make_fault(
        "contradiction",
        "The report's verdict passes over evidence that contradicts itself.",
        "if has_conflicts:",
        "if False:",
        "tests/report/test_contradictions.py",
    ),
]
