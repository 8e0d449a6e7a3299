"""The merged queue of all accounts in order of key and usage."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.engine.queue import GroupKey, Merge
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Pool
from tests.builders import a_job, a_state


def numbers(merge: Merge) -> list[int]:
    """All jobs in merge order."""
    found = []
    while (entry := merge.next()) is not None:
        found.append(entry.number)
        merge.leave()
    return found


def merged(state: ClusterState, penalty_ms: Callable[[GroupKey], int] = lambda _: 0) -> Merge:
    return Merge(state.queue, penalty_ms)


def test_jobs_of_all_accounts_are_merged_by_submission_then_number() -> None:
    jobs = [
        a_job(number=1, tenant="a", submit_ms=30),
        a_job(number=2, tenant="b", submit_ms=10),
        a_job(number=3, tenant="a", user="eve", submit_ms=20, gpus=2),
        a_job(number=4, tenant="b", submit_ms=10, pool=Pool.ONLINE),
    ]
    assert numbers(merged(a_state(queue=jobs))) == [2, 4, 3, 1]


def test_account_usage_delays_all_its_jobs() -> None:
    jobs = [a_job(number=n, tenant="ab"[n % 2], submit_ms=n) for n in range(1, 5)]
    merge = merged(a_state(queue=jobs), lambda key: 100 if key[0] == "b" else 0)
    assert numbers(merge) == [2, 4, 1, 3]


def test_usage_growth_during_cycle_applies_at_once() -> None:
    jobs = [a_job(number=n, tenant="a" if n < 4 else "b", submit_ms=n) for n in range(1, 6)]
    used = {"a": 0, "b": 0}
    merge = merged(a_state(queue=jobs), lambda key: used[key[0]])
    found = []
    while (entry := merge.next()) is not None:
        found.append(entry.number)
        used[entry.group.key[0]] += 10
        merge.leave()
    assert found == [1, 4, 2, 5, 3]


def test_job_is_offered_again_until_dropped() -> None:
    merge = merged(a_state(queue=[a_job(number=1), a_job(number=2)]))
    assert [merge.next().number for _ in range(2)] == [1, 1]
    merge.leave()
    assert merge.next().number == 2


def test_unfitting_shape_is_skipped_for_rest_of_cycle() -> None:
    jobs = [a_job(number=n, gpus=1 + n % 2, submit_ms=n) for n in range(1, 7)]
    state = a_state(queue=jobs)
    merge = merged(state)
    merge.drop_shape(state.queue.entries[1].shape.id)
    assert numbers(merge) == [2, 4, 6]


def test_shape_can_be_skipped_in_one_tenant_only() -> None:
    jobs = [a_job(number=n, tenant="ab"[n % 2], submit_ms=n) for n in range(1, 5)]
    state = a_state(queue=jobs)
    merge = merged(state)
    merge.drop_shape_for(("a", "", Pool.BATCH), state.queue.entries[1].shape.id)
    assert numbers(merge) == [1, 3]


def test_shape_that_is_given_up_is_left_to_exempt_groups() -> None:
    jobs = [a_job(number=n, tenant="ab"[n % 2], submit_ms=n) for n in range(1, 5)]
    state = a_state(queue=jobs)
    merge = merged(state)
    shape = state.queue.entries[1].shape
    merge.give_up({shape.base}, lambda group: group.key[0] == "a")
    assert numbers(merge) == [2, 4]


def test_closed_account_keeps_jobs_that_need_fewer_gpus() -> None:
    jobs = [a_job(number=n, tenant="ab"[n % 2], gpus=n, submit_ms=n) for n in range(1, 5)]
    merge = merged(a_state(queue=jobs))
    merge.close(("b", "", Pool.BATCH), 2000)
    assert numbers(merge) == [1, 2, 4]


def test_group_counts_what_its_jobs_wait_for() -> None:
    jobs = [a_job(number=n, gpus=n % 3, submit_ms=n) for n in range(1, 7)]
    state = a_state(queue=jobs)
    (group,) = state.queue.groups.values()
    assert group.sizes == {0: 2, 1000: 2, 2000: 2}
    assert group.waiting_milli == 6000
    state.dequeue(1)
    state.dequeue(3)
    state.dequeue(6)
    assert group.sizes == {1000: 1, 2000: 2}


def test_job_can_leave_middle_of_queue() -> None:
    state = a_state(queue=[a_job(number=n, submit_ms=n) for n in range(1, 5)])
    state.dequeue(2)
    state.dequeue(1)
    assert numbers(merged(state)) == [3, 4]
    assert state.queue.peek().number == 3
    state.dequeue(3)
    state.dequeue(4)
    assert state.queue.peek() is None
    assert state.queue.groups == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 4), st.integers(0, 20)
        ),
        max_size=25,
    ),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 15)),
    st.sets(st.integers(1, 25)),
)
def test_merge_equals_sorted_order(drawn, used, removed) -> None:
    jobs = [
        a_job(number=number, tenant=tenant, user=user, gpus=gpus, submit_ms=submit_ms)
        for number, (tenant, user, gpus, submit_ms) in enumerate(drawn, start=1)
    ]
    state = a_state(queue=jobs)
    for number in removed & {job.number for job in jobs}:
        state.dequeue(number)
    left = [job for job in jobs if job.number not in removed]
    expected = sorted(left, key=lambda job: (job.submit_ms + used.get(job.tenant, 0), job.number))
    merge = merged(state, lambda key: used.get(key[0], 0))
    assert numbers(merge) == [job.number for job in expected]
    assert [e.number for e in state.queue.in_order()] == [
        job.number for job in sorted(left, key=lambda job: (job.submit_ms, job.number))
    ]
