"""Large submissions are excluded from garbage collection; garbage is still found later."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.server.background.housekeeping import FEW_JOBS, MANY_JOBS, GcTuner
from gpu_scheduler.store.rows import NewJobs


class ReferenceCycle:
    """A reference cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def jobs_of(count: int) -> NewJobs:
    jobs = tuple(
        Job(
            id=f"job-{number}",
            number=number,
            submit_ms=0,
            tenant="default",
            user="ada",
            name="train",
            command=("true",),
            members=(Request.for_gpus(1000),),
        )
        for number in range(1, count + 1)
    )
    return NewJobs(at_ms=0, jobs=jobs, expected_ms=(1,) * count, launch=Launch(argv=("true",)))


def is_searched(job: Job) -> bool:
    return any(other is job for other in gc.get_objects())


def test_many_jobs_are_frozen_and_freed_by_reference_counting() -> None:
    new = jobs_of(MANY_JOBS)
    assert is_searched(new.jobs[0])
    GcTuner(lambda: 0).on_commit([new])
    assert not is_searched(new.jobs[0])
    aside = gc.get_freeze_count()
    del new
    assert gc.get_freeze_count() <= aside - MANY_JOBS


def test_few_jobs_are_not_frozen() -> None:
    new = jobs_of(MANY_JOBS - 1)
    GcTuner(lambda: 0).on_commit([new])
    assert is_searched(new.jobs[0])


def test_frozen_cycle_is_collected_later() -> None:
    tuner, knot = GcTuner(lambda: FEW_JOBS), ReferenceCycle()
    tuner.on_commit([jobs_of(MANY_JOBS)])
    gone = weakref.ref(knot)
    del knot
    gc.collect()
    assert gone() is not None, "or the test would show nothing"
    tuner.collect_if_few()
    assert gone() is None


def test_nothing_is_collected_while_there_are_many_jobs() -> None:
    tuner, knot = GcTuner(lambda: FEW_JOBS + 1), ReferenceCycle()
    tuner.on_commit([jobs_of(MANY_JOBS)])
    gone = weakref.ref(knot)
    del knot
    tuner.collect_if_few()
    assert gone() is not None
    tuner.close()  # as when a leader stops
    gc.collect()
    assert gone() is None
