"""Guarantee: online work gets its pool share within one grace period, whatever batch work does."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.control.messages import Cordon
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import QuotaTooSmall
from gpu_scheduler.model.job import Job, JobState, Pool
from tests.builders import MINUTE, SECOND, a_cluster, a_job
from tests.effort import examples
from tests.scenarios.lab import Lab

NODES, GPUS = 3, 4
GRACE_MS = 10 * SECOND
TOTAL = NODES * GPUS * 1000


@st.composite
def batch_jobs(draw: st.DrawFn) -> list[Job]:
    """All kinds of batch jobs on whole GPUs, in any order: shares are amounts, not places."""
    count = draw(st.integers(1, 12))
    return [
        a_job(
            number=number,
            gpus=draw(st.sampled_from([0, 1, 2, 4])),
            priority=draw(st.sampled_from([0, 750, 10_000])),
            preemptible=draw(st.booleans()),
            tenant=draw(st.sampled_from(["a", "b"])),
            user=draw(st.sampled_from(["ada", "bob"])),
            estimate_ms=draw(st.sampled_from([5 * SECOND, 60 * MINUTE])),
        )
        for number in range(1, count + 1)
    ]


@settings(max_examples=examples(15), deadline=None)
@given(
    batch=batch_jobs(),
    later=batch_jobs(),
    percent=st.integers(10, 90),
    closed=st.sampled_from([0, 1, 2]),
)
def test_online_starts_within_one_grace_period_whatever_batch_holds(
    batch: list[Job], later: list[Job], percent: int, closed: int
) -> None:
    pools = (
        PoolQuota(pool=Pool.ONLINE, percent=percent),
        PoolQuota(pool=Pool.BATCH, percent=100 - percent),
    )
    nodes = a_cluster(nodes=NODES, gpus=GPUS)
    lab = Lab(nodes=nodes, pools=pools, policy=preset("fair"), obedient=False)
    lab.do(*(Cordon(f"n{ordinal}") for ordinal in range(closed)))
    submit(lab, batch)
    sure = min(TOTAL * percent // 100, TOTAL - closed * GPUS * 1000)
    online = [
        a_job(number=100 + n, gpus=1, pool=Pool.ONLINE, priority=0, tenant="c")
        for n in range(sure // 1000)
    ]
    lab.now_ms += 30 * SECOND
    lab.submit(*online)
    lab.now_ms += GRACE_MS
    for _ in range(NODES * GPUS):
        stopping = sorted(lab.core.state.cluster.stopping)
        if not stopping:
            break
        lab.ends(*(name.partition(".")[0] for name in stopping), exit_code=None, signal=15)
    assert {lab.state(job.id) for job in online} <= {JobState.RUNNING}
    before = len(lab.stops)
    own = {job.id for job in online}
    submit(lab, [_renumbered(job) for job in later])
    lab.now_ms += 10 * MINUTE
    lab.cycle()
    taken = {stop.allocation_id.partition(".")[0] for stop in lab.stops[before:]}
    assert not taken & own
    held = lab.core.state.cluster.holdings.pools
    assert held.get(Pool.ONLINE, 0) == len(online) * 1000


def submit(lab: Lab, jobs: list[Job]) -> None:
    """A job that is larger than its pool's quota and borrows nothing is rejected."""
    for job in jobs:
        with suppress(QuotaTooSmall):
            lab.submit(job)


def _renumbered(job: Job) -> Job:
    return a_job(
        number=200 + job.number,
        gpus=job.gpu_milli / 1000,
        priority=job.priority,
        preemptible=job.preemptible,
        tenant=job.tenant,
        user=job.user,
    )
