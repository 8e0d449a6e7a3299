"""Guarantee: at its own limit, an interactive job preempts only batch jobs of its tenant.

No job of another tenant is preempted for it, no limit is exceeded, and no preemption is in vain.
Tenants here allow any number of preemptions, so only the preemption rules prevent cycles.
"""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Eviction, Plan
from gpu_scheduler.model.request import mig_memory_mb
from gpu_scheduler.model.tenant import Quota, Tenant
from tests.effort import examples
from tests.properties.rig import Rig, StopBehaviour
from tests.properties.strategies import (
    BRISK,
    HARDWARE,
    NO_GPU,
    SHARES,
    STEP_MS,
    TENANTS,
    USERS,
    WHOLE,
    Scenario,
    Step,
    works,
)

SMALL = (WHOLE[0], WHOLE[0], WHOLE[3], SHARES[0], SHARES[7], NO_GPU[0])
CAP_MILLI = 2_000
POLICY = replace(BRISK["fair"], interactive_gpu_milli=CAP_MILLI)
AT_ONCE = ("gpu_milli", "gpu_memory_mb", "cpu_milli", "memory_mb", "concurrent_jobs")
CROWDED, OTHER = TENANTS[:2]
QUOTAS = (
    Quota(gpu_milli=1_000),
    Quota(gpu_milli=2_000),
    Quota(concurrent_jobs=1),
    Quota(concurrent_jobs=2),
    Quota(cpu_milli=4_000, gpu_memory_mb=10_000),
    Quota(),
)
USER_QUOTAS = (Quota(), Quota(gpu_milli=1_000), Quota(concurrent_jobs=1), Quota(concurrent_jobs=2))
NOTHING: Counter[str] = Counter()
STOP_MS = 90_000


@st.composite
def batch_of_jobs(
    draw: st.DrawFn,
    name: str,
    most: int,
    tenants: tuple[str, ...],
    *,
    interactive: bool = False,
    pool: Pool = Pool.BATCH,
) -> list[Step]:
    """Some jobs of one kind, at one moment or while others are being stopped."""
    steps = []
    for number in range(draw(st.integers(1, most))):
        work = draw(
            works(
                f"{name}{number}",
                requests=SMALL,
                manners=False,
                gangs=draw(st.integers(0, 3)) == 0,
                arrays=draw(st.integers(0, 3)) == 0,
                priorities=(250, 750) if not interactive else (750, 1_500),
            )
        )
        changes = {
            "interactive": interactive,
            "preemptible": draw(st.integers(0, 5)) > 0,
            "pool": pool,
            "tenant": draw(st.sampled_from(tenants)),
        }
        pause_ms = draw(st.sampled_from((0, 0, STOP_MS // 3)))
        steps.append(Step(pause_ms, replace(work, job=replace(work.job, **changes))))
    return steps


@st.composite
def shared(draw: st.DrawFn) -> Scenario:
    """A tenant at its limits gets interactive jobs, and then more batch jobs."""
    first = draw(batch_of_jobs("a", 5, (CROWDED, CROWDED, OTHER)))
    second = draw(batch_of_jobs("b", 3, (CROWDED,), interactive=True))
    third = draw(batch_of_jobs("c", 3, (CROWDED, OTHER)))
    return draw(crowded((first, second, third)))


@st.composite
def crowded(
    draw: st.DrawFn,
    waves: tuple[list[Step], list[Step], list[Step]],
    pools: tuple[PoolQuota, ...] = (),
) -> Scenario:
    """Successive waves of jobs on one or two nodes, by a tenant with limits and one without."""
    first, second, third = waves
    second[0] = replace(second[0], pause_ms=STEP_MS // 2)
    tenants = (
        Tenant(
            id=CROWDED,
            quota=draw(st.sampled_from(QUOTAS)),
            user_quota=draw(st.sampled_from(USER_QUOTAS)),
            can_preempt_others=draw(st.booleans()),
            max_preemptions=1_000,
        ),
        Tenant(id=OTHER, max_preemptions=1_000),
    )
    machines = tuple(
        Node(
            id=f"n{ordinal}",
            ordinal=ordinal,
            cpu_milli=8_000,
            memory_mb=64_000,
            devices=draw(st.sampled_from(HARDWARE[1:3])),
        )
        for ordinal in range(draw(st.integers(1, 2)))
    )
    steps = (*first, *second, *third)
    return Scenario(nodes=machines, steps=steps, tenants=tenants, pools=pools)


def wanted(job: Job, members: int) -> Counter[str]:
    """The holdings of a job with so many members, by the names of the quota."""
    requests = job.members[:members]
    return Counter(
        gpu_milli=sum(request.gpu_milli for request in requests),
        gpu_memory_mb=sum(
            request.gpu_memory_total_mb
            or (
                request.gpu_count * mig_memory_mb(request.mig_profile) if request.mig_profile else 0
            )
            for request in requests
        ),
        cpu_milli=sum(request.cpu_milli for request in requests),
        memory_mb=sum(request.memory_mb for request in requests),
        concurrent_jobs=1,
    )


def is_over(held: Counter[str], more: Counter[str], quota: Quota) -> bool:
    limits = ((name, getattr(quota, name)) for name in AT_ONCE)
    return any(
        limit is not None and held[name] + more[name] > limit and (more[name] or more is NOTHING)
        for name, limit in limits
    )


class Witness:
    """Sums what every tenant and user holds, from the orders alone."""

    ground = "interactive"

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self.tenants = {tenant.id: tenant for tenant in tenants}
        self.stopped_for: dict[str, tuple[int, set[str]]] = {}

    def held(self, rig: Rig, tenant: str, user: str | None = None) -> Counter[str]:
        total: Counter[str] = Counter()
        for job, allocation in rig.audit.held.values():
            if job.tenant == tenant and user in {None, job.user}:
                total.update(wanted(job, len(allocation.placements)))
        return total

    def __call__(self, rig: Rig, plan: Plan) -> None:
        for tenant in self.tenants.values():
            assert not is_over(self.held(rig, tenant.id), NOTHING, tenant.quota)
            for user in USERS:
                assert not is_over(self.held(rig, tenant.id, user), NOTHING, tenant.user_quota)
        for eviction in plan.evictions:
            self.judge(rig, eviction)
            _, victims = self.stopped_for.setdefault(eviction.for_job_id, (rig.now_ms, set()))
            victims.add(eviction.allocation_id)

    def judge(self, rig: Rig, eviction: Eviction) -> None:
        """If the job is over its own limit, only its own batch jobs are preempted."""
        victim = rig.core.state.job(eviction.job_id).job
        job = rig.core.state.job(eviction.for_job_id).job
        tenant = self.tenants[job.tenant]
        more = wanted(job, job.min_members)
        is_users = is_over(self.held(rig, job.tenant, job.user), more, tenant.user_quota)
        if is_users or is_over(self.held(rig, job.tenant), more, tenant.quota):
            assert eviction.ground == self.ground
            assert job.interactive == (self.ground == "interactive")
            assert victim.preemptible
            assert not victim.interactive
            assert victim.tenant == job.tenant
        if is_users:
            assert victim.user == job.user

    def check_no_preemption_in_vain(self, rig: Rig) -> None:
        """The preemptor runs as soon as its victims are gone."""
        for job_id, (at_ms, victims) in list(self.stopped_for.items()):
            starts = [
                start.job_id
                for when_ms, plan in rig.record.plans
                if when_ms >= at_ms
                for start in plan.starts
            ]
            if job_id in starts:
                del self.stopped_for[job_id]
            else:
                assert victims & set(rig.audit.held), f"{victims} were stopped for {job_id}"


PHYSICS = {
    "ideal": StopBehaviour(),
    "progress is lost": StopBehaviour(keeps_progress=False),
    "stops take long": StopBehaviour(stop_ms=STOP_MS),
}


@settings(max_examples=examples(100))
@given(scenario=shared(), physics=st.sampled_from(tuple(PHYSICS)))
def test_interactive_job_at_own_limit_preempts_only_own_batch_and_never_in_vain(
    scenario: Scenario, physics: str
) -> None:
    witness = Witness(scenario.tenants)
    rig = Rig(scenario, POLICY, PHYSICS[physics], watch=witness)

    while rig.advance():
        witness.check_no_preemption_in_vain(rig)

    assert rig.waiting() == []
