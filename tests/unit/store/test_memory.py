"""The store in memory keeps the contract of every store."""

from dataclasses import replace

import pytest

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.states import JobState
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import EventRow, JobRow, RemovedAllocation, RemovedNode
from tests.builders import a_job, a_node, a_tenant, on, running


def a_row(number: int = 1, state: JobState = JobState.PENDING) -> JobRow:
    return JobRow(job=a_job(number=number), state=state)


def test_what_was_written_is_read_back_in_order() -> None:
    store = MemoryStore()
    allocations = [running(a_job(number=n), on("n0", [n])).allocation for n in (2, 1)]
    store.commit(
        [
            a_row(2),
            a_row(1),
            a_node(ordinal=1),
            a_node(ordinal=0),
            a_tenant(id="b"),
            a_tenant(id="a"),
            *allocations,
        ]
    )
    assert [row.job.id for row in store.jobs()] == ["j1", "j2"]
    assert [node.id for node in store.nodes()] == ["n0", "n1"]
    assert [tenant.id for tenant in store.tenants()] == ["a", "b"]
    assert [allocation.id for allocation in store.allocations()] == ["j1.1", "j2.1"]


def test_the_last_write_of_a_row_counts() -> None:
    store = MemoryStore()
    store.commit([a_row(), a_row(state=JobState.RUNNING)])
    store.commit([replace(a_row(state=JobState.COMPLETED), exit_code=0)])
    assert store.job("j1").state is JobState.COMPLETED
    assert store.job("j9") is None


def test_pools_are_kept_by_name() -> None:
    store = MemoryStore()
    batch, online = (PoolQuota(pool=pool, percent=50) for pool in (Pool.BATCH, Pool.ONLINE))
    store.commit([online, batch, replace(online, percent=40)])
    assert store.pools() == [batch, replace(online, percent=40)]


def test_removed_rows_are_gone_and_removing_again_does_no_harm() -> None:
    store = MemoryStore()
    store.commit([a_node(), running(a_job(), on("n0", [0])).allocation])
    for _ in range(2):
        store.commit([RemovedAllocation("j1.1"), RemovedNode("n0")])
    assert (store.allocations(), store.nodes()) == ([], [])


def test_history_is_numbered_and_can_be_read_from_any_point() -> None:
    store = MemoryStore()
    store.commit([EventRow(at_ms=n, kind=f"k{n}") for n in range(3)])
    assert [(number, row.kind) for number, row in store.events()] == [
        (1, "k0"),
        (2, "k1"),
        (3, "k2"),
    ]
    assert [number for number, _ in store.events(after=2)] == [3]
    assert store.events(after=3) == []


def test_a_batch_with_a_row_that_is_not_known_is_refused_as_a_whole() -> None:
    store = MemoryStore()
    with pytest.raises(InternalError, match="does not know rows of type str"):
        store.commit([a_row(), "nonsense"])
    assert store.jobs() == []


def test_a_store_for_simulations_forgets_what_has_ended() -> None:
    store = MemoryStore(keep_ended=False)
    store.commit([a_row(), EventRow(at_ms=0, kind="submitted")])
    assert len(store.jobs()) == 1
    store.commit([a_row(state=JobState.COMPLETED)])
    assert (store.jobs(), store.events()) == ([], [])
