"""Guarantee: no user exceeds a cap or a budget."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.tenant import Quota
from tests.effort import examples
from tests.properties.rig import Rig
from tests.properties.strategies import BRISK, STEP_MS, Scenario, policies, scenarios

CAPS = (
    Quota(gpu_milli=1_500),
    Quota(gpu_milli=2_000, concurrent_jobs=2),
    Quota(concurrent_jobs=1),
    Quota(pending_jobs=2),
    Quota(gpu_milli_ms=15_000 * STEP_MS),
)


class Witness:
    """Sums what each user holds and has used, from the orders alone."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota

    def __call__(self, rig: Rig, plan: Plan) -> None:
        gpu_milli: Counter[tuple[str, str]] = Counter()
        jobs: Counter[tuple[str, str]] = Counter()
        for job, allocation in rig.audit.held.values():
            gpu_milli[job.tenant, job.user] += allocation.gpu_milli
            jobs[job.tenant, job.user] += 1
        quota = self._quota
        if quota.gpu_milli is not None:
            assert max(gpu_milli.values(), default=0) <= quota.gpu_milli
        if quota.concurrent_jobs is not None:
            assert max(jobs.values(), default=0) <= quota.concurrent_jobs
        if quota.gpu_milli_ms is not None:
            for account in gpu_milli:
                used = rig.core.state.usage_totals.total(account).gpu_milli_ms
                assert used <= quota.gpu_milli_ms, f"{account} has used {used}"


@settings(max_examples=examples(60))
@given(scenario=scenarios(most_jobs=7), policy=policies(), quota=st.sampled_from(CAPS))
def test_no_user_exceeds_cap_or_budget(scenario: Scenario, policy: str, quota: Quota) -> None:
    chosen = replace(BRISK[policy], user_quota=quota, default_limit_ms=30 * STEP_MS)
    rig = Rig(scenario, chosen, watch=Witness(quota))
    while rig.advance():
        waiting: Counter[tuple[str, str]] = Counter()
        for record in rig.core.state.jobs.values():
            count = record.job.task_count if record.job.array else 1
            waiting[record.job.tenant, record.job.user] += count if record.waits else 0
        queued = rig.core.state.queued_of
        assert all(queued[owner] <= waiting[owner] for owner in queued)
        assert sum(queued.values()) == rig.core.state.queued_tasks
