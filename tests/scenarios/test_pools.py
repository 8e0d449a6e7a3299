"""Online and batch pools on the same GPUs: guarantees, borrowing and reclaiming."""

from typing import Any

import pytest

from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    Cordon,
    Drain,
    Fact,
    NodeLost,
    NodeSilent,
    PauseDevice,
    Uncordon,
)
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Job, JobState, Pool
from tests.builders import HOUR, MINUTE, SECOND, a_cluster, a_job, a_node, a_tenant
from tests.scenarios.lab import Lab


def shares(online: int = 50, batch: int = 50, *, elastic: bool = True) -> tuple[PoolQuota, ...]:
    return (
        PoolQuota(pool=Pool.ONLINE, percent=online, elastic=elastic),
        PoolQuota(pool=Pool.BATCH, percent=batch, elastic=elastic),
    )


def a_lab(**changes: Any) -> Lab:
    """Eight GPUs, half of them guaranteed to online work."""
    values: dict[str, Any] = {"nodes": (a_node(),), "pools": shares(), "policy": preset("fair")}
    return Lab(**(values | changes))


def online(number: int, gpus: float = 1, **changes: Any) -> Job:
    return a_job(number=number, gpus=gpus, pool=Pool.ONLINE, **changes)


def held(lab: Lab, pool: Pool) -> float:
    return lab.core.state.cluster.holdings.pools.get(pool, 0) / 1000


def test_batch_borrows_idle_online_capacity() -> None:
    lab = a_lab()
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 9)))
    assert held(lab, Pool.BATCH) == 8


def test_online_reclaims_its_guarantee_at_once_and_no_more() -> None:
    lab = a_lab()
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 9)))
    lab.submit(online(11, gpus=4))
    assert lab.state("j11") is JobState.RUNNING
    assert held(lab, Pool.BATCH) == 4
    lab.submit(online(12, preemptible=False))
    assert lab.state("j12") is JobState.PENDING
    assert held(lab, Pool.BATCH) == 4
    assert {why for _, why in lab.stopped()} == {"preempted"}


def test_online_starts_when_victims_have_ended() -> None:
    lab = a_lab(obedient=False)
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 9)))
    lab.submit(online(11, gpus=2))
    leaving = [name.partition(".")[0] for name, _ in lab.stopped()]
    assert len(leaving) == 2
    lab.at(10 * SECOND)
    lab.ends(*leaving, exit_code=None, signal=15)
    assert lab.state("j11") is JobState.RUNNING
    assert [lab.state(name) for name in leaving] == [JobState.PENDING] * 2


def test_batch_job_larger_than_its_borrowed_part_is_reclaimed() -> None:
    lab = a_lab()
    lab.submit(a_job(number=1, gpus=8))
    lab.submit(online(11, gpus=1))
    assert lab.state("j11") is JobState.RUNNING
    assert lab.state("j1") is JobState.PENDING


def test_online_gets_guarantee_despite_queued_batch_jobs() -> None:
    lab = a_lab()
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 9)))
    lab.submit(*(a_job(number=20 + n, gpus=1 + n % 8, priority=5000) for n in range(60)))
    lab.now_ms = HOUR
    lab.submit(online(11, gpus=4, priority=0))
    assert lab.state("j11") is JobState.RUNNING


def test_online_does_not_wait_for_batch_reservation() -> None:
    zone = (("zone", "a"),)
    nodes = (a_node(labels=zone), a_node(ordinal=1))
    lab = a_lab(nodes=nodes, pools=shares(90, 10))
    lab.submit(a_job(number=1, gpus=1, preemptible=False, node_labels=zone))
    lab.submit(a_job(number=2, gpus=8, priority=5000, node_labels=zone))
    assert lab.core.state.cluster.reservations[2].placements[0].node_id == "n0"
    long = {"max_runtime_ms": 100 * HOUR, "estimate_ms": 100 * HOUR, "node_labels": zone}
    lab.submit(a_job(number=3, gpus=4, **long))
    assert lab.state("j3") is JobState.PENDING
    lab.submit(online(11, gpus=4, **long))
    assert lab.state("j11") is JobState.RUNNING


def test_elastic_online_gang_gets_guarantee_despite_queued_batch_jobs() -> None:
    lab = a_lab()
    lab.submit(*(a_job(number=n, gpus=1, cpus=8, priority=9000) for n in range(1, 9)))
    lab.submit(*(a_job(number=20 + n, gpus=0, cpus=1 + n, priority=5000) for n in range(60)))
    lab.submit(online(11, members=8, min_members=2, priority=0))
    assert lab.state("j11") is JobState.RUNNING


def test_elastic_online_gang_passes_batch_reservation_within_guarantee_only() -> None:
    zone = (("zone", "a"),)
    lab = a_lab(nodes=(a_node(labels=zone), a_node(ordinal=1)), pools=shares(25, 75))
    lab.submit(a_job(number=1, gpus=1, preemptible=False, node_labels=zone))
    lab.submit(a_job(number=2, gpus=8, priority=5000, node_labels=zone))
    long = {"max_runtime_ms": 100 * HOUR, "estimate_ms": 100 * HOUR, "node_labels": zone}
    lab.submit(online(11, members=7, min_members=2, **long))
    assert len(lab.allocation("j11").placements) == 4, "batch leaves more idle, but wants it back"


def test_elastic_online_gang_gets_full_guarantee_despite_reservation() -> None:
    both, zone = ("rack", "x"), ("zone", "a")
    nodes = (a_node(labels=(both, zone)), a_node(ordinal=1, gpus=2, labels=(both,)))
    lab = a_lab(nodes=(*nodes, a_node(ordinal=2)), pools=shares(25, 75))
    lab.submit(a_job(number=1, gpus=1, preemptible=False, node_labels=(zone,)))
    lab.submit(a_job(number=2, gpus=8, priority=5000, node_labels=(zone,)))
    long = {"max_runtime_ms": 100 * HOUR, "estimate_ms": 100 * HOUR, "node_labels": (both,)}
    lab.submit(online(11, members=7, min_members=2, **long))
    assert len(lab.allocation("j11").placements) == 4, "two fit beside what batch has reserved"


def test_number_of_guarantee_checks_does_not_grow_with_reservations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    answer = QuotaUsage.within_pool_guarantee

    def counted(quota: QuotaUsage, entry: Entry, **options: bool) -> bool:
        asked.append(entry.waiting.job.id)
        return answer(quota, entry, **options)

    monkeypatch.setattr(QuotaUsage, "within_pool_guarantee", counted)
    counts = []
    for size in (5, 20):
        lab = a_lab(nodes=a_cluster(nodes=size), pools=shares(10, 90))
        lab.submit(*(a_job(number=1 + n, gpus=5, preemptible=False) for n in range(size)))
        lab.submit(a_job(number=100, gpus=8, members=size // 5, priority=5000, preemptible=False))
        assert len(lab.core.state.cluster.reservations[size + 1].placements) == size // 5
        lab.submit(online(200, gpus=4, members=8, min_members=1))
        counts.append(asked.count("j200"))
        asked.clear()
    assert counts[0] == counts[1]


def test_elastic_online_gang_borrows_unclaimed_capacity() -> None:
    lab = a_lab(pools=shares(25, 75))
    lab.submit(online(11, members=7, min_members=2))
    assert len(lab.allocation("j11").placements) == 7


@pytest.mark.parametrize("priority", [750, 10_000])
def test_batch_never_takes_online_guarantee(priority: int) -> None:
    lab = a_lab()
    lab.submit(*(online(n, priority=0) for n in (1, 2, 3, 4)))
    lab.submit(*(a_job(number=10 + n, gpus=2, priority=priority) for n in range(6)))
    assert held(lab, Pool.ONLINE) == 4
    assert lab.stopped() == []


def test_batch_reclaims_what_online_borrowed_and_no_more() -> None:
    lab = a_lab()
    lab.submit(*(online(n) for n in range(1, 9)))
    assert held(lab, Pool.ONLINE) == 8
    lab.submit(*(a_job(number=10 + n, gpus=1) for n in range(6)))
    assert (held(lab, Pool.ONLINE), held(lab, Pool.BATCH)) == (4, 4)


def test_batch_does_not_reclaim_online_job_larger_than_borrowed_part() -> None:
    lab = a_lab()
    lab.submit(online(1, gpus=6))
    lab.submit(a_job(number=2, gpus=4))
    assert lab.state("j1") is JobState.RUNNING
    assert lab.state("j2") is JobState.PENDING


def test_online_leaves_batch_guarantee_while_victims_are_stopping() -> None:
    zone = (("zone", "a"),)
    lab = a_lab(nodes=(a_node(), a_node(ordinal=1, labels=zone)), obedient=False)
    lab.submit(a_job(number=1, gpus=8), a_job(number=2, gpus=8))
    by_node = {lab.nodes_of(name)[0]: name for name in ("j1", "j2")}
    lab.at(HOUR)
    lab.do(Cancel(by_node["n0"]))
    lab.submit(online(11, gpus=4, node_labels=zone))
    assert [why for _, why in lab.stopped()] == ["cancelled"]
    lab.ends(by_node["n0"], exit_code=None, signal=15)
    assert lab.running() == [by_node["n1"]]


def test_non_preemptible_job_borrows_nothing() -> None:
    lab = a_lab(tenants=(a_tenant(id="vision", allow_preemption=False),))
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 9)))
    assert held(lab, Pool.BATCH) == 4
    other = a_lab()
    other.submit(*(a_job(number=n, gpus=1, preemptible=False) for n in range(1, 9)))
    assert held(other, Pool.BATCH) == 4


def test_often_preempted_job_is_still_reclaimed() -> None:
    lab = a_lab(nodes=(a_node(gpus=2),))
    lab.submit(*(a_job(number=n, gpus=1) for n in (1, 2)))
    for turn in range(6):
        lab.at(lab.now_ms + 10 * MINUTE)
        lab.submit(online(10 + turn))
        assert lab.state(f"j{10 + turn}") is JobState.RUNNING
        lab.ends(f"j{10 + turn}")
        assert held(lab, Pool.BATCH) == 2


def test_tenant_without_preemption_right_keeps_pool_guarantee() -> None:
    lab = a_lab(tenants=(a_tenant(id="vision", can_preempt_others=False),))
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 9)))
    lab.submit(online(11))
    assert lab.state("j11") is JobState.RUNNING


def test_job_about_to_end_is_still_reclaimed_for_guarantee() -> None:
    lab = a_lab()
    lab.submit(*(a_job(number=n, gpus=1, estimate_ms=30 * SECOND) for n in range(1, 9)))
    lab.submit(online(11))
    assert lab.state("j11") is JobState.RUNNING


def test_strict_pools_lend_nothing() -> None:
    lab = a_lab(pools=shares(elastic=False))
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 9)))
    assert held(lab, Pool.BATCH) == 4
    lab.submit(*(online(10 + n) for n in range(8)))
    assert held(lab, Pool.ONLINE) == 4
    assert lab.stopped() == []


def test_reclaim_prefers_victims_that_free_whole_device() -> None:
    lab = a_lab(nodes=(a_node(gpus=4),))
    lab.submit(a_job(number=1, gpus=0.5, preemptible=False), a_job(number=2, gpus=0.5))
    lab.submit(a_job(number=3, gpus=1, preemptible=False), a_job(number=4, gpus=0.5))
    assert held(lab, Pool.BATCH) == 2.5, "half a GPU of it is lent"
    lab.now_ms += MINUTE
    lab.submit(online(5), online(6))
    stopped = [stop.allocation_id for stop in lab.stops]
    assert stopped == ["j4.1"], "job 2 shares its GPU with one that stays"
    assert {lab.state("j5"), lab.state("j6")} == {JobState.RUNNING}


def test_borrower_preempts_nothing_within_guarantee_of_other_pool() -> None:
    """A job that holds memory of a GPU without a share blocks exclusive use of it."""
    lab = a_lab(nodes=(a_node(gpus=2),))
    lab.submit(online(1, priority=5000))
    lab.submit(a_job(number=2, gpus=0, gpu_memory_mb=9_000, priority=250))
    assert (len(lab.running()), held(lab, Pool.BATCH)) == (2, 0)
    lab.at(MINUTE)
    lab.submit(online(3, priority=5000))
    assert lab.state("j3") is JobState.PENDING
    assert lab.stopped() == [], "batch work would take it back at once"
    lab.ends("j2", exit_code=0)
    assert lab.state("j3") is JobState.RUNNING


def a_wide_lab(**changes: Any) -> Lab:
    """Four nodes of eight GPUs, of which eight are guaranteed to online work."""
    nodes = tuple(a_node(ordinal=ordinal) for ordinal in range(4))
    return a_lab(**({"nodes": nodes, "pools": shares(25, 75)} | changes))


def lose(lab: Lab, node_id: str) -> None:
    lab.do(NodeSilent(node_id), NodeLost(node_id))


OUT_OF_USE = (
    pytest.param((NodeSilent("n3"), NodeLost("n3")), id="lost"),
    pytest.param((Cordon("n3"),), id="cordoned"),
    pytest.param((Drain("n3"),), id="draining"),
)


@pytest.mark.parametrize("messages", OUT_OF_USE)
def test_online_keeps_guarantee_while_nodes_are_unavailable(
    messages: tuple[Command | Fact, ...],
) -> None:
    lab = a_wide_lab()
    lab.do(*messages)
    lab.submit(*(a_job(number=n, gpus=8) for n in (1, 2, 3)))
    assert held(lab, Pool.BATCH) == 24
    lab.submit(online(11, gpus=4))
    assert lab.state("j11") is JobState.RUNNING
    assert held(lab, Pool.BATCH) == 16
    lab.submit(online(12, gpus=4))
    assert lab.state("j12") is JobState.RUNNING
    assert held(lab, Pool.BATCH) == 16, "the rest of that place was enough"


def test_online_keeps_guarantee_while_gpus_are_unavailable() -> None:
    lab = a_wide_lab()
    lab.do(*(PauseDevice("n3", index) for index in range(8)))
    lab.submit(*(a_job(number=n, gpus=8) for n in (1, 2, 3)))
    lab.submit(online(11, gpus=4))
    assert lab.state("j11") is JobState.RUNNING


def test_whole_online_guarantee_fits_on_remaining_nodes() -> None:
    lab = a_wide_lab()
    lab.do(Cordon("n3"))
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 25)))
    lab.submit(online(31, gpus=8, preemptible=False))
    assert lab.state("j31") is JobState.RUNNING
    lab.submit(online(32, preemptible=False))
    assert lab.state("j32") is JobState.PENDING
    assert held(lab, Pool.BATCH) == 16


def test_capacity_on_lost_node_counts_for_its_holder() -> None:
    lab = a_wide_lab()
    lab.submit(*(a_job(number=n, gpus=8) for n in (1, 2, 3)))
    lose(lab, lab.nodes_of("j1")[0])
    lab.submit(online(11, gpus=8))
    assert lab.state("j11") is JobState.RUNNING
    assert lab.stopped() == [], "batch holds no more than its part, and a node was free"
    lose(lab, lab.nodes_of("j11")[0])
    lab.submit(online(12))
    assert lab.state("j12") is JobState.PENDING, "online holds its part, on a node that may be well"
    assert lab.stopped() == []


def test_briefly_silent_node_preempts_nobody() -> None:
    lab = a_wide_lab()
    lab.submit(*(a_job(number=n, gpus=8) for n in (1, 2, 3)))
    idle = ({"n0", "n1", "n2", "n3"} - {lab.nodes_of(f"j{n}")[0] for n in (1, 2, 3)}).pop()
    lab.do(NodeSilent(idle))
    lab.submit(online(11, gpus=4))
    assert lab.stopped() == []
    lab.do(NodeLost(idle))
    assert lab.state("j11") is JobState.RUNNING


def test_flapping_node_preempts_no_online_job() -> None:
    lab = a_wide_lab()
    lab.submit(*(online(n) for n in range(1, 9)), *(a_job(number=10 + n) for n in range(16)))
    for turn in range(5):
        lab.do(Cordon("n3"))
        lab.submit(a_job(number=100 + turn, gpus=8, priority=5000))
        lab.do(Uncordon("n3"))
    assert held(lab, Pool.ONLINE) == 8


def test_non_preemptible_batch_leaves_online_its_share_of_remaining_nodes() -> None:
    lab = a_wide_lab()
    lab.do(Cordon("n3"))
    lab.submit(*(a_job(number=n, gpus=8, preemptible=False) for n in (1, 2, 3)))
    assert held(lab, Pool.BATCH) == 16
    lab.submit(online(11, gpus=8))
    assert lab.state("j11") is JobState.RUNNING


def test_strict_batch_keeps_its_share_of_usable_capacity() -> None:
    lab = a_wide_lab(pools=shares(25, 75, elastic=False))
    lab.do(Cordon("n3"))
    lab.submit(*(a_job(number=n, gpus=1) for n in range(1, 25)))
    assert held(lab, Pool.BATCH) == 18
    lab.do(Uncordon("n3"))
    assert held(lab, Pool.BATCH) == 24
