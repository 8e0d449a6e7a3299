"""A job is told how often jobs like it were preempted, if that is often."""

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.preemption_risk import LAST, LEAST, MOST_KINDS, PreemptionRisk
from tests.builders import MINUTE, a_job


def seen(preempted: int, ended: int, job: Job | None = None) -> PreemptionRisk:
    risk = PreemptionRisk()
    for place in range(preempted):
        risk.add(job or a_job(), place * MINUTE, preempted=True)
    for _ in range(ended):
        risk.add(job or a_job(), MINUTE, preempted=False)
    return risk


def test_share_and_median_time_of_preempted_attempts() -> None:
    assert seen(5, 15).of(a_job()) == (20, 5, 2 * MINUTE)


def test_nothing_is_said_of_few_attempts_or_seldom_preemption() -> None:
    assert seen(LEAST - 1, 0).of(a_job()) is None
    assert seen(3, 17).of(a_job()) is None


def test_other_tenants_priorities_and_jobs_that_cannot_be_preempted_have_no_risk() -> None:
    risk = seen(20, 0)
    assert risk.of(a_job(tenant="speech")) is None
    assert risk.of(a_job(priority=1)) is None
    assert risk.of(a_job(preemptible=False)) is None


def test_only_last_attempts_count_and_kinds_are_bounded() -> None:
    assert seen(LAST, LAST).of(a_job()) is None
    risk = seen(LEAST, 0)
    for number in range(MOST_KINDS):
        risk.add(a_job(tenant=f"t{number}"), 0, preempted=True)
    assert risk.of(a_job()) is None
