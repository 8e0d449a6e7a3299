"""Many jobs at once are put where the collector does not look; garbage is found all the same."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.server.runtime import FEW_JOBS, MANY_JOBS, Collector
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
    Collector(lambda: 0).note([new])
    assert not is_searched(new.jobs[0])
    aside = gc.get_freeze_count()
    del new
    assert gc.get_freeze_count() <= aside - MANY_JOBS


def test_a_few_jobs_stay_where_they_are() -> None:
    new = jobs_of(MANY_JOBS - 1)
    Collector(lambda: 0).note([new])
    assert is_searched(new.jobs[0])


def test_a_cycle_that_was_put_aside_is_found_later() -> None:
    mine, knot = Collector(lambda: FEW_JOBS), Knot()
    mine.note([jobs_of(MANY_JOBS)])
    gone = weakref.ref(knot)
    del knot
    gc.collect()
    assert gone() is not None, "or the test would show nothing"
    mine.look_again()
    assert gone() is None


def test_not_while_there_is_too_much_to_search() -> None:
    mine, knot = Collector(lambda: FEW_JOBS + 1), Knot()
    mine.note([jobs_of(MANY_JOBS)])
    gone = weakref.ref(knot)
    del knot
    mine.look_again()
    assert gone() is not None
    mine.end()  # whoever led and does not lead any more
    gc.collect()
    assert gone() is None
