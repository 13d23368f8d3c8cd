"""Predicted peaks against the resident memory of real processes, for a model of full size.

Freed blocks are given back at once here. By default glibc keeps many, and a process is larger than
its tensors: see docs/design/0011-group-planner.md.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quietgrad as qg
from quietgrad import grouping

from .resident import vit_base

SAMPLES = 8
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
PROGRAM = Path(__file__).with_name("resident.py")


def measured(spec):
    command = [sys.executable, str(PROGRAM), str(SAMPLES), spec]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | GIVEN_BACK
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(run.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_resident_memory_is_as_predicted():
    """Planned on two samples, run on eight."""
    model, batch, loss_fn = vit_base(2)
    plan = qg.plan(model, batch, loss_fn, memory="16GB")
    elsewhere = plan.step.fixed + SAMPLES * plan.step.trace.inputs
    for spec in ("all-layer", "layer-wise"):
        predicted = plan.peak_of(grouping.resolve(spec, model), SAMPLES) - elsewhere
        assert predicted == pytest.approx(measured(spec), rel=0.05), spec
