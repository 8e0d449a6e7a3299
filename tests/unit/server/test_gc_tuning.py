"""Many jobs at once are put where the collector does not look; garbage is found all the same."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.server.background.housekeeping import FEW_JOBS, MANY_JOBS, GcTuner
from gpu_scheduler.store.rows import NewJobs


class Knot:
    """Holds itself."""

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


def test_many_jobs_are_put_aside_and_go_when_nobody_holds_them() -> None:
    new = jobs_of(MANY_JOBS)
    assert is_searched(new.jobs[0])
    GcTuner(lambda: 0).on_commit([new])
    assert not is_searched(new.jobs[0])
    aside = gc.get_freeze_count()
    del new
    assert gc.get_freeze_count() <= aside - MANY_JOBS


def test_a_few_jobs_stay_where_they_are() -> None:
    new = jobs_of(MANY_JOBS - 1)
    GcTuner(lambda: 0).on_commit([new])
    assert is_searched(new.jobs[0])


def test_a_cycle_that_was_put_aside_is_found_later() -> None:
    tuner, knot = GcTuner(lambda: FEW_JOBS), Knot()
    tuner.on_commit([jobs_of(MANY_JOBS)])
    gone = weakref.ref(knot)
    del knot
    gc.collect()
    assert gone() is not None, "or the test would show nothing"
    tuner.collect_if_few()
    assert gone() is None


def test_not_while_there_is_too_much_to_search() -> None:
    tuner, knot = GcTuner(lambda: FEW_JOBS + 1), Knot()
    tuner.on_commit([jobs_of(MANY_JOBS)])
    gone = weakref.ref(knot)
    del knot
    tuner.collect_if_few()
    assert gone() is not None
    tuner.close()  # as when a leader stops
    gc.collect()
    assert gone() is None
