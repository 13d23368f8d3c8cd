"""Groups of ranks that several files share: to start processes takes longer than many jobs."""

import pytest


@pytest.fixture(scope="session")
def sharded_pair():
    """What two ranks made of all fast jobs with sharded weights, by file and name."""
    from . import test_gathering, test_sharded
    from .ranks import run

    jobs = {("sharded", name): job for name, job in test_sharded.JOBS.items()}
    for name, (job, options) in test_gathering.JOBS.items():
        jobs["gathering", name] = (f"gathering_jobs.{job}", options)
    found = dict(zip(jobs, run([*jobs.values()]), strict=True))
    return {
        file: {name: found[own, name] for own, name in found if own == file}
        for file in ("sharded", "gathering")
    }
