"""Guarantee: at its own limit, online work within its guarantee reclaims only lent capacity.

That is batch work of its own tenant. No limit is exceeded, and no preemption is in vain.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.plan import Eviction
from tests.effort import examples
from tests.properties.rig import Rig
from tests.properties.strategies import Scenario
from tests.properties.test_interactive_quota import (
    CROWDED,
    OTHER,
    PHYSICS,
    POLICY,
    Witness,
    batch_of_jobs,
    crowded,
)


@st.composite
def shared(draw: st.DrawFn) -> Scenario:
    """A tenant at its limits gets online jobs, and then more batch jobs."""
    first = draw(batch_of_jobs("a", 5, (CROWDED, CROWDED, OTHER)))
    second = draw(batch_of_jobs("b", 3, (CROWDED,), pool=Pool.ONLINE))
    third = draw(batch_of_jobs("c", 3, (CROWDED, OTHER)))
    percent = draw(st.sampled_from((25, 50, 75)))
    pools = (
        PoolQuota(pool=Pool.ONLINE, percent=percent),
        PoolQuota(pool=Pool.BATCH, percent=100 - percent),
    )
    return draw(crowded((first, second, third), pools))


class PoolWitness(Witness):
    """Also checks the pools."""

    ground = "lent"

    def check_no_preemption_in_vain(self, rig: Rig) -> None:
        """As in the base class; or the job waits for another place that is being freed."""
        claims = {
            number
            for number, reservation in rig.core.state.cluster.reservations.items()
            if reservation.claim
        }
        for job_id in list(self.stopped_for):
            record = rig.core.state.jobs.get(job_id)
            if (
                record is not None
                and record.job.number in claims
                and rig.core.state.cluster.stopping
            ):
                del self.stopped_for[job_id]
        super().check_no_preemption_in_vain(rig)

    def judge(self, rig: Rig, eviction: Eviction) -> None:
        super().judge(rig, eviction)
        if eviction.ground == self.ground:
            victim = rig.core.state.job(eviction.job_id).job
            job = rig.core.state.job(eviction.for_job_id).job
            assert victim.pool is not job.pool


@settings(max_examples=examples(100))
@given(scenario=shared(), physics=st.sampled_from(tuple(PHYSICS)))
def test_online_job_at_own_limit_reclaims_only_lent_capacity_and_never_in_vain(
    scenario: Scenario, physics: str
) -> None:
    witness = PoolWitness(scenario.tenants)
    rig = Rig(scenario, POLICY, PHYSICS[physics], watch=witness)

    while rig.advance():
        witness.check_no_preemption_in_vain(rig)

    assert rig.waiting() == []
