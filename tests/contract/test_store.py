"""The contract of every store."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import InternalError, InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, JobState, Pool
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import HOUR_MS, AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Allocation, Reservation
from gpu_scheduler.model.service import Replica, Service
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.interface import SORTS, AuditQuery, Cutoffs, JobQuery, JobVisibility, Store
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import (
    AttemptRow,
    AuditRow,
    EnvironmentRow,
    EstimateRow,
    EventRow,
    JobRow,
    LaunchRow,
    NewJobs,
    NoticeRow,
    Removed,
    ReservationRow,
    ResponseRow,
    ShareRow,
    TaskRow,
    UsageRow,
)
from gpu_scheduler.store.sql_reader import SqlReader
from tests.builders import a_job, a_node, a_tenant, on, running
from tests.contract.row_strategies import INTERVALS, ROWS, STATE, job_rows
from tests.contract.stores import STORES
from tests.effort import examples

PENDING, RUNNING = JobState.PENDING, JobState.RUNNING
COMPLETED, FAILED, CANCELLED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()


def a_row(number: int = 1, state: JobState = PENDING, **changes: Any) -> JobRow:
    of_row = {name: changes.pop(name) for name in list(changes) if name in JobRow.__slots__}
    if state in ENDED:
        of_row = {"end_ms": 1000 + number} | of_row
    job = a_job(number=number, **({"id": f"job-{number}"} | changes))
    return JobRow(job=job, state=state, **of_row)


def an_event(n: int = 0) -> EventRow:
    return EventRow(at_ms=n, kind=f"k{n}")


def numbers(rows: list[JobRow]) -> list[int]:
    return [row.job.number for row in rows]


# --- batches


def new_jobs(first: int, count: int, **fields: Any) -> NewJobs:
    jobs = tuple(
        a_job(number=n, id=f"job-{n}", name=f"n{n}", command=("run", str(n)), **fields)
        for n in range(first, first + count)
    )
    launch = Launch(argv=("x",), workdir="/w", uid=7)
    expected = tuple(1000 + n % 3 for n in range(count))
    return NewJobs(at_ms=5, jobs=jobs, expected_ms=expected, launch=launch)


@pytest.mark.parametrize("count", [1, 3, 700])
def test_bulk_job_rows_equal_single_rows(store: Store, count: int) -> None:
    new = new_jobs(1, count)
    later = replace(a_row(1, RUNNING), job=new.jobs[0], attempt=1)
    last = store.commit([an_event(1), new, an_event(2), later])
    others = [later if row.job.number == 1 else row for row in new.rows() if type(row) is JobRow]
    assert last == count + 2
    assert store.jobs() == others
    assert [event for _, event in store.events()] == [an_event(1), *new.events(), an_event(2)]
    assert store.launch(f"job-{count}") == Launch(argv=("run", str(count)), workdir="/w", uid=7)
    names = [job.id for job in new.jobs]
    assert store.launches([*names, "job-9999", "no number"]) == {
        name: store.launch(name) for name in names
    }
    assert store.launches([]) == {}
    assert store.next_number() == count + 1
    states = {state: n for state, n in store.count_states().items() if n}
    assert states == {RUNNING: 1} | ({PENDING: count - 1} if count > 1 else {})


def test_store_returns_rows_as_written_in_order(store: Store) -> None:
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
    assert numbers(store.jobs()) == [1, 2]
    assert [node.id for node in store.nodes()] == ["n0", "n1"]
    assert [tenant.id for tenant in store.tenants()] == ["a", "b"]
    assert [allocation.id for allocation in store.allocations()] == ["j1.1", "j2.1"]


def test_empty_store_returns_nothing(store: Store) -> None:
    assert store.jobs() == store.live_jobs() == store.recently_ended(5) == []
    assert store.find_jobs(JobQuery(archived=True)) == []
    assert store.count_states() == {}
    assert store.job("job-1") is store.launch("job-1") is store.environment("e") is None
    assert store.response("ada", "k") is None
    assert (store.last_event(), store.next_number(), store.commit([])) == (0, 1, 0)


def test_last_write_of_row_wins(store: Store) -> None:
    task = TaskRow(job_id="job-1", task=0, state=RUNNING)
    share = ShareRow("vision", None, 1.0, 2.0, 3, 4)
    usage = UsageRow(None, "vision", None, (1,))
    store.commit(
        [
            *(a_row(), a_row(state=RUNNING)),
            *(task, replace(task, state=FAILED)),
            *(share, replace(share, usage=5.0)),
            *(usage, replace(usage, totals=(2,))),
        ]
    )
    assert store.job("job-1") == a_row(state=RUNNING)
    assert store.count_states() == {RUNNING: 1}
    store.commit([replace(a_row(state=COMPLETED), exit_code=0)])
    assert store.job("job-1").state is COMPLETED
    assert store.count_states() == {COMPLETED: 1}
    assert [row.state for row in store.tasks("job-1")] == [FAILED]
    assert [row.usage for row in store.shares()] == [5.0]
    assert [row.totals for row in store.usage()] == [(2,)]


def test_batch_with_unknown_row_type_is_rejected_whole(store: Store) -> None:
    with pytest.raises(InternalError, match="has no table for rows of type str"):
        store.commit([a_row(), an_event(), "nonsense"])
    assert store.jobs() == store.events() == []


def test_removal_and_write_of_same_row_apply_in_order(store: Store) -> None:
    allocation = running(a_job(), on("n0", [0])).allocation
    store.commit([a_node(), Removed(Node, "n0"), a_tenant(), Removed(Tenant, "vision")])
    store.commit([allocation, Removed(Allocation, allocation.id), allocation])
    assert (store.nodes(), store.tenants(), store.allocations()) == ([], [], [allocation])
    store.commit([Removed(Allocation, allocation.id), Removed(Node, "n0"), Removed(Tenant, "x")])
    assert store.allocations() == []


def test_services_are_listed_by_number_until_removed(store: Store) -> None:
    services = [
        Service(
            id=f"svc-{number}",
            number=number,
            name=f"s{number}",
            tenant="vision",
            user="ada",
            job=a_job(max_runtime_ms=0),
            launch=Launch(argv=("serve",)),
            members=(Replica(index=0, job_id=f"job-{number}", generation=1),),
        )
        for number in (12, 3)
    ]
    store.commit([*services])
    assert store.services() == services[::-1]
    changed = replace(services[0], replicas=4)
    store.commit([changed, Removed(Service, "svc-3"), Removed(Service, "svc-99")])
    assert store.services() == [changed]


def test_notifications_are_listed_oldest_first_until_removed(store: Store) -> None:
    late, early = (
        NoticeRow(id=name, target="mail", at_ms=at_ms, document="{}")
        for name, at_ms in (("late", 9), ("early", 3))
    )
    store.commit([late, early])
    assert store.notices() == [early, late]
    store.commit([replace(early, tries=1), Removed(NoticeRow, "late")])
    assert store.notices() == [replace(early, tries=1)]
    assert store.cursor("mail") is None


def test_reservation_is_stored_until_removed(store: Store) -> None:
    first, second = (
        Reservation(
            job_id=f"job-{number}",
            job_number=number,
            at_ms=5,
            until_ms=9,
            placements=(on("n0", [0]),),
        )
        for number in (9, 10)
    )
    store.commit([ReservationRow(second.job_id, second), ReservationRow(first.job_id, first)])
    later = replace(first, at_ms=7)
    store.commit([ReservationRow(first.job_id, later), Removed(ReservationRow, "job-11")])
    assert store.reservations() == [later, second]
    store.commit([Removed(ReservationRow, "job-9")])
    assert store.reservations() == [second]


def test_pools_are_stored_by_name(store: Store) -> None:
    batch, online = (PoolQuota(pool=pool, percent=50) for pool in (Pool.BATCH, Pool.ONLINE))
    store.commit([online, batch, replace(online, percent=40)])
    assert store.pools() == [batch, replace(online, percent=40)]


def test_forecasts_are_found_by_start_and_expire_with_old_events(store: Store) -> None:
    base = EstimateRow(job_id="a", tenant="t", user="u", made_ms=0, promised_ms=9, basis="forecast")
    late = replace(base, job_id="c", start_ms=30)
    store.commit([base, replace(base, job_id="b", start_ms=20), late, replace(base, job_id="d")])
    assert [row.job_id for row in store.estimates()] == ["a", "d"]
    assert [row.job_id for row in store.estimates(started_since_ms=0)] == ["b", "c"]
    assert store.estimates(started_since_ms=21) == [late]
    assert [row.job_id for row in store.last_estimates(1)] == ["c"]
    assert [row.job_id for row in store.last_estimates(9)] == ["c", "b"]
    store.commit([Removed(EstimateRow, "d"), replace(base, start_ms=25)])
    assert store.estimates() == []
    assert store.delete_expired(Cutoffs(events_ms=25)) == 1
    assert [row.job_id for row in store.estimates(started_since_ms=0)] == ["a", "c"]


READERS: dict[str, Callable[[Store, Any], list[Any]]] = {
    "job": lambda store, row: [store.job(row.job.id)],
    "task": lambda store, row: store.tasks(row.job_id),
    "launch": lambda store, row: [LaunchRow(row.job_id, store.launch(row.job_id))],
    "environment": lambda store, row: [
        EnvironmentRow(row.name, tuple(store.environment(row.name).items()))
    ],
    "attempt": lambda store, row: store.attempts(row.job_id),
    "measure": lambda store, row: store.attempt_measures(row.job_id),
    "hour": lambda store, row: store.device_hours(row.hour_ms, row.hour_ms + 1),
    "promise": lambda store, row: [
        ReservationRow(held.job_id, held) for held in store.reservations()
    ],
    "usage": lambda store, row: store.usage(),
    "share": lambda store, row: store.shares(),
    "answer": lambda store, row: [store.response(row.user, row.key)],
    "event": lambda store, row: [event for _, event in store.events(store.last_event() - 1)],
    "allocation": lambda store, row: store.allocations(),
    "node": lambda store, row: store.nodes(),
    "tenant": lambda store, row: store.tenants(),
    "pool": lambda store, row: store.pools(),
    "token": lambda store, row: store.tokens(),
    "authority": lambda store, row: store.identities(),
    "join_token": lambda store, row: store.identities(),
    "node_key": lambda store, row: store.identities(),
    "audit": lambda store, row: [record for _, record in store.audit(AuditQuery(limit=1))],
    "notice": lambda store, row: store.notices(),
    "cursor": lambda store, row: [store.cursor(row.name)],
    "window": lambda store, row: store.advance_reservations(),
    "service": lambda store, row: store.services(),
    "week": lambda store, row: store.week_usage(),
    "estimate": lambda store, row: store.estimates(
        started_since_ms=None if row.start_ms is None else 0
    ),
}


@pytest.mark.parametrize("kind", sorted(ROWS))
def test_every_row_round_trips(kind: str, store: Store) -> None:
    store.commit([a_row()])

    @settings(max_examples=examples(30), deadline=None)
    @given(row=ROWS[kind])
    def check(row: Any) -> None:
        store.commit([row])
        assert row in READERS[kind](store, row)

    check()


# --- jobs


def test_jobs_are_found_by_ids_of_any_form(store: Store) -> None:
    odd = [a_row(2, id="job-1"), a_row(3, id="job-03"), a_row(4, id="night run"), a_row(5)]
    store.commit([*odd])
    for row in odd:
        assert store.job(row.job.id) == row
    for wrong in ("job-2", "job-3", "job-4", "5", "", "job-", "job-x"):
        assert store.job(wrong) is None


def test_live_jobs_and_recently_ended_jobs_are_listed(store: Store) -> None:
    states = [PENDING, COMPLETED, RUNNING, FAILED, JobState.PREEMPTED, CANCELLED]
    store.commit([a_row(n, state) for n, state in enumerate(states, start=1)])
    store.commit([a_row(7, COMPLETED, end_ms=1)])
    assert numbers(store.live_jobs()) == [1, 3, 5]
    assert numbers(store.recently_ended(3)) == [6, 4, 2]
    assert numbers(store.recently_ended(10)) == [6, 4, 2, 7]


def test_no_job_number_is_given_twice(store: Store) -> None:
    store.commit([a_row(4), a_row(9, COMPLETED), a_row(2)])
    assert store.next_number() == 10
    store.archive(ended_before_ms=10**9)
    store.commit([a_row(4, CANCELLED)])
    assert store.next_number() == 10


def test_launch_is_kept_when_job_is_written_again(store: Store) -> None:
    launch = Launch(argv=("python", "train.py"), workdir="/home/ada", captured="e1", uid=7)
    other = replace(launch, argv=("sh",), grace_ms=5)
    store.commit([a_row(1), LaunchRow("job-1", launch), a_row(2, command=("sh",))])
    store.commit([LaunchRow("job-2", other), a_row(1, RUNNING)])
    store.commit([a_row(2, COMPLETED), a_row(1, COMPLETED)])
    store.archive(ended_before_ms=1002)
    assert (store.launch("job-1"), store.launch("job-2")) == (launch, other)
    store.commit([LaunchRow("job-1", other)])
    assert store.launch("job-1") == other


def test_launch_without_job_is_rejected(store: Store) -> None:
    with pytest.raises(InternalError, match="job-3 came before the job"):
        store.commit([an_event(), LaunchRow("job-3", Launch(argv=("sh",)))])
    assert store.last_event() == 0


def test_jobs_that_differ_in_one_field_stay_distinct(store: Store) -> None:
    rows = [
        a_row(1, gpus=1),
        a_row(2, gpus=2),
        a_row(3, gpus=1),
        a_row(4, gpus=1, hold=True),
        a_row(5, gpus=1, command=("a",)),
        a_row(6, gpus=1, expected_ms=7),
        a_row(7, gpus=0.5, members=2),
    ]
    store.commit([*rows])
    store.commit([a_row(8, gpus=2), a_row(9, gpus=2, retries=1)])
    assert store.jobs() == [*rows, a_row(8, gpus=2), a_row(9, gpus=2, retries=1)]


def test_large_batch_is_stored_completely(store: Store) -> None:
    rows = [a_row(n, name=f"run {n}", command=("run", str(n))) for n in range(1, 1400)]
    store.commit([*rows, *(LaunchRow(row.job.id, Launch(argv=row.job.command)) for row in rows)])
    assert store.jobs() == rows
    assert store.launch("job-1399").argv == ("run", "1399")


# --- lists


def test_list_is_paged_by_offset_and_cursor(store: Store) -> None:
    store.commit([a_row(n, priority=100 * (n % 3)) for n in range(1, 11)])
    query = JobQuery(sort="priority", descending=True, limit=4)
    whole = [2, 5, 8, 1, 4, 7, 10, 3, 6, 9]
    assert numbers(store.find_jobs(query)) == whole[:4]
    assert numbers(store.find_jobs(replace(query, offset=4))) == whole[4:8]
    assert numbers(store.find_jobs(replace(query, after_number=1))) == whole[4:8]
    assert numbers(store.find_jobs(replace(query, after_number=99))) == []
    assert numbers(store.find_jobs(JobQuery(limit=3, after_number=8))) == [9, 10]
    assert numbers(store.find_jobs(JobQuery(limit=3, after_number=3, descending=True))) == [2, 1]
    assert store.find_jobs(JobQuery(limit=0)) == []


def test_jobs_of_sweep_are_found_by_name_and_counted(store: Store) -> None:
    rows = [
        a_row(1, user="ada", submit_ms=5),
        a_row(2, COMPLETED, user="ada", submit_ms=6),
        a_row(3, FAILED, user="ada"),
        a_row(4, user="bob"),
        a_row(5, user="ada"),
    ]
    sweeps = ("grid", "grid", "grid", "grid", "")
    store.commit(
        [
            *rows,
            *(
                LaunchRow(row.job.id, Launch(argv=("x",), sweep=name, params=(("lr", "1"),)))
                for row, name in zip(rows, sweeps, strict=True)
            ),
        ]
    )
    query = JobQuery(sweep="grid", user="ada")
    assert numbers(store.find_jobs(query)) == [1, 2, 3]
    assert store.count_jobs(query) == 3
    assert numbers(store.find_jobs(replace(query, states=(FAILED,)))) == [3]
    assert store.find_jobs(JobQuery(sweep="no such")) == []
    assert [(c.name, c.state, c.jobs, c.first, c.last) for c in store.sweeps("ada")] == [
        ("grid", COMPLETED, 1, 2, 2),
        ("grid", FAILED, 1, 3, 3),
        ("grid", PENDING, 1, 1, 1),
    ]
    assert store.sweeps("cleo") == []


def test_list_can_be_filtered(store: Store) -> None:
    store.commit(
        [
            a_row(1, user="ada", name="x", submit_ms=5),
            a_row(2, RUNNING, user="bob", tenant="nlp"),
            a_row(3, COMPLETED, user="ada", end_ms=50),
            a_row(4, FAILED, user="bob", end_ms=60),
        ]
    )
    for query, found in [
        (JobQuery(user="ada"), [1, 3]),
        (JobQuery(ended_since_ms=50), [3, 4]),
        (JobQuery(ended_since_ms=51), [4]),
        (JobQuery(ended_before_ms=60), [3]),
        (JobQuery(ended_since_ms=50, ended_before_ms=60, user="ada"), [3]),
        (JobQuery(ended_since_ms=61), []),
        (JobQuery(tenant="nlp"), [2]),
        (JobQuery(states=(RUNNING, FAILED)), [2, 4]),
        (JobQuery(states=(PENDING, COMPLETED), user="ada"), [1, 3]),
        (JobQuery(name="x"), [1]),
        (JobQuery(since_ms=1), [1]),
        (JobQuery(numbers=IntervalSet.parse("2-3,7")), [2, 3]),
        (JobQuery(numbers=IntervalSet()), []),
    ]:
        assert (numbers(store.find_jobs(query)), store.count_jobs(query)) == (found, len(found))


def test_unknown_sort_order_or_page_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="cannot be sorted by 'colour'; sort by one of end_ms"):
        JobQuery(sort="colour")
    with pytest.raises(InvalidRequest, match="limit is -1"):
        JobQuery(limit=-1)


QUERIES = st.builds(
    JobQuery,
    states=st.lists(STATE, max_size=3, unique=True).map(tuple),
    tenant=st.sampled_from(["", "a", "b"]),
    user=st.sampled_from(["", "", "u", "v"]),
    name=st.sampled_from(["", "", "n"]),
    numbers=st.none() | INTERVALS | st.just(IntervalSet.of(range(0, 200, 2))),
    since_ms=st.none() | st.integers(0, 3),
    sort=st.sampled_from(sorted(SORTS)),
    descending=st.booleans(),
    limit=st.integers(0, 8),
    offset=st.sampled_from([0, 0, 2]),
    after_number=st.none() | st.integers(1, 12),
    archived=st.booleans(),
    visibility=st.none()
    | st.builds(
        JobVisibility,
        user=st.sampled_from("uv"),
        within=st.none() | st.sampled_from([frozenset(), frozenset("a")]),
        tenants=st.sampled_from([frozenset(), frozenset("b")]),
        others=st.booleans(),
    ),
)


@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_all_stores_find_and_count_the_same(data: st.DataObject) -> None:
    rows = [
        replace(
            row,
            job=replace(
                row.job,
                tenant=data.draw(st.sampled_from("ab")),
                user=data.draw(st.sampled_from("uv")),
                name=data.draw(st.sampled_from("no")),
                priority=data.draw(st.integers(0, 2)),
                submit_ms=data.draw(st.integers(0, 4)),
            ),
            start_ms=data.draw(st.none() | st.integers(0, 2)),
            end_ms=data.draw(st.none() | st.integers(0, 4)),
        )
        for row in data.draw(st.tuples(*(job_rows(number) for number in range(1, 10))))
    ]
    again = data.draw(st.lists(st.sampled_from(rows)))
    changed = [replace(row, state=data.draw(STATE)) for row in again]
    queries = data.draw(st.lists(QUERIES, min_size=3, max_size=8))
    with TemporaryDirectory() as folder:
        answers = []
        for name in sorted(STORES):
            store = STORES[name](Path(folder))
            store.commit([*rows])
            moved = [store.archive(ended_before_ms=2, limit=2)]
            store.commit([*changed])
            moved.append(store.archive(ended_before_ms=3))
            found = [(store.find_jobs(query), store.count_jobs(query)) for query in queries]
            counts = [store.count_states(), store.count_states(user="u", tenant="a")]
            answers.append((moved, found, counts, store.jobs(), store.live_jobs()))
            answers[-1] += (store.recently_ended(3), [store.job(row.job.id) for row in rows])
            store.close()
    for other in answers[1:]:
        assert other == answers[0]


def test_queries_respect_visibility_of_ended_jobs(store: Store) -> None:
    store.commit(
        [
            a_row(1, COMPLETED, user="ann", tenant="vision"),
            a_row(2, COMPLETED, user="ben", tenant="vision"),
            a_row(3, COMPLETED, user="ann", tenant="audio"),
            a_row(4, RUNNING, user="ben", tenant="audio"),
        ]
    )
    for visibility, seen in (
        (None, [1, 2, 3, 4]),
        (JobVisibility(user="ann"), [1, 3, 4]),
        (JobVisibility(user="ann", others=False), [1, 3]),
        (JobVisibility(user="ann", within=frozenset({"audio"})), [3, 4]),
        (JobVisibility(user="eve", tenants=frozenset({"vision"})), [1, 2, 4]),
        (JobVisibility(user="eve", others=False), []),
    ):
        query = JobQuery(visibility=visibility)
        assert [row.job.number for row in store.find_jobs(query)] == seen
        assert store.count_jobs(query) == len(seen)


def test_audit_records_are_listed_newest_first_and_expire_oldest_first(store: Store) -> None:
    records = [
        AuditRow(
            at_ms=at_ms,
            user="ann" if at_ms % 2 else "ben",
            origin="unix",
            via="",
            action="submit" if at_ms < 4 else "cancel",
            target=f"job-{at_ms}",
            outcome="done" if at_ms < 5 else "refused",
        )
        for at_ms in range(1, 7)
    ]
    store.commit([*records])

    def listed(**query: Any) -> list[int]:
        return [record.at_ms for _, record in store.audit(AuditQuery(**query))]

    assert listed() == [6, 5, 4, 3, 2, 1]
    assert listed(user="ann") == [5, 3, 1]
    assert listed(action="cancel", outcome="done") == [4]
    assert listed(since_ms=5) == [6, 5]
    page = store.audit(AuditQuery(limit=2))
    assert listed(before=page[-1][0], limit=2) == [4, 3]
    forgotten = store.delete_expired(Cutoffs(audit_ms=3), limit=1)
    assert forgotten == 1
    assert store.delete_expired(Cutoffs(audit_ms=3)) == 1
    assert listed() == [6, 5, 4, 3]


# --- launches, tasks and attempts


def test_tasks_and_attempts_are_read_in_order(store: Store) -> None:
    def an_attempt(task: int | None, attempt: int) -> AttemptRow:
        return AttemptRow(
            allocation_id=f"job-1_{task}.{attempt}",
            job_id="job-1",
            task=task,
            attempt=attempt,
            placements=(on("n0", [0]),),
            start_ms=1,
            end_ms=2,
            state=FAILED,
        )

    tasks = [TaskRow(job_id="job-1", task=n, state=RUNNING) for n in (11, 2, 5)]
    attempts = [an_attempt(2, 10), an_attempt(11, 1), an_attempt(2, 2)]
    other = replace(attempts[0], job_id="job-2", allocation_id="job-2_2.10")
    store.commit([a_row(), *tasks, *attempts, other])
    assert [row.task for row in store.tasks("job-1")] == [2, 5, 11]
    assert [row.task for row in store.tasks("job-1", only=IntervalSet.parse("3-11"))] == [5, 11]
    assert store.tasks("job-1", only=IntervalSet()) == store.tasks("job-9") == []
    assert store.attempts("job-1") == [attempts[2], attempts[0], attempts[1]]
    assert store.attempts("job-1", 11) == [attempts[1]]
    assert store.attempts("job-2") == [other]
    assert store.attempts("job-1", within=(3, 11)) == [attempts[1]]
    assert store.attempts("job-1", limit=2) == [attempts[2], attempts[0]]


def test_few_tasks_of_large_array_are_read_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit([a_row(), *(TaskRow(job_id="job-1", task=n, state=RUNNING) for n in range(500))])
    rows_read = 0
    if isinstance(store, SqlReader):
        run = store._rows

        def counted(*arguments: Any) -> list[Any]:
            nonlocal rows_read
            rows_read += len(found := run(*arguments))
            return found

        monkeypatch.setattr(store, "_rows", counted)
    for text in ("0,499", ",".join(str(n) for n in range(0, 500, 4))):
        only = IntervalSet.parse(text)
        assert [row.task for row in store.tasks("job-1", only=only)] == list(only)
        assert [row.task for row in store.tasks("job-1", only=only, limit=2)] == list(only)[:2]
    assert rows_read in {0, 2 + 2 + 125 + 2}


def test_attempts_are_found_by_run_time_page_by_page(store: Store) -> None:
    rows = [
        AttemptRow(
            allocation_id=f"j{number}.1",
            job_id=f"j{number}",
            task=None,
            attempt=1,
            placements=(),
            start_ms=start_ms,
            end_ms=end_ms,
            state=FAILED,
        )
        for number, (start_ms, end_ms) in enumerate([(0, 10), (5, 20), (9, 20), (20, 30), (30, 40)])
    ]
    store.commit(rows[::-1])
    assert store.attempts_between(10, 30) == rows[1:4]
    assert store.attempts_between(10, 31) == rows[1:]
    assert store.attempts_between(0, 1) == rows[:1]
    assert store.attempts_between(40, 90) == store.attempts_between(0, 9, limit=0) == []
    first = store.attempts_between(10, 30, limit=1)
    assert first == rows[1:2]
    rest = store.attempts_between(10, 30, after=(first[0].end_ms, first[0].allocation_id))
    assert rest == rows[2:4]


def test_tenant_account_and_unnamed_user_account_are_distinct(store: Store) -> None:
    usage = [
        UsageRow(None, "a", None, (1,)),
        UsageRow(None, "a", "", (2,)),
        UsageRow(0, "a", None, (3,)),
        UsageRow(0, "b", "x", (2**80, 5)),
    ]
    shares = [
        ShareRow("a", None, 0.1 + 0.2, 1e-300, 2, 3),
        ShareRow("a", "", 1.0, 2.0, 4, 5),
        ShareRow("a", "x", 3.0, 0.0, 0, 6),
    ]
    store.commit([*reversed(usage), *reversed(shares)])
    store.commit([*usage, *shares])
    assert (store.usage(), store.shares()) == (usage, shares)


# --- history


def test_commit_returns_number_of_last_event(store: Store) -> None:
    assert store.commit([an_event(n) for n in range(3)]) == 3
    assert store.commit([a_row()]) == 3
    assert store.commit([an_event(3), a_row(2), an_event(4)]) == 5
    assert store.last_event() == 5
    assert store.events() == [(n + 1, an_event(n)) for n in range(5)]


def test_event_history_can_be_read_from_any_point(store: Store) -> None:
    store.commit([an_event(n) for n in range(1500)])
    store.commit([an_event(n) for n in range(1500, 1510)])
    for after in (0, 1, 999, 1000, 1001, 1499, 1500, 1509, 1510, 9999):
        expected = [(n + 1, an_event(n)) for n in range(after, min(after + 600, 1510))]
        assert store.events(after, limit=600) == expected
    assert len(store.events()) == 1000


# --- expiry and archive


def test_archived_jobs_are_unlisted_but_readable(store: Store) -> None:
    rows = [a_row(n, COMPLETED, end_ms=100 - n) for n in range(1, 6)]
    store.commit([*rows, a_row(6), a_row(7, FAILED, end_ms=None)])
    assert store.archive(ended_before_ms=99, limit=3) == 3
    assert numbers(store.jobs()) == [1, 2, 6, 7]
    assert store.archive(ended_before_ms=99, limit=3) == 1
    assert store.archive(ended_before_ms=99) == 0
    assert store.job("job-5") == rows[4]
    assert numbers(store.recently_ended(5)) == [1]
    assert numbers(store.find_jobs(JobQuery(archived=True))) == [1, 2, 3, 4, 5, 6, 7]
    assert store.count_jobs(JobQuery(archived=True)) == 7
    assert store.count_jobs(JobQuery()) == 3
    assert store.count_states() == {COMPLETED: 1, PENDING: 1, FAILED: 1}


def test_rewritten_archived_job_is_live_again(store: Store) -> None:
    store.commit([a_row(1, FAILED), LaunchRow("job-1", Launch(argv=("sh",))), a_row(2, FAILED)])
    store.archive(ended_before_ms=10**9)
    store.commit([a_row(1, PENDING, attempt=1)])
    assert store.jobs() == [a_row(1, PENDING, attempt=1)]
    assert numbers(store.find_jobs(JobQuery(archived=True))) == [1, 2]
    assert store.launch("job-1") == Launch(argv=("sh",))
    assert (store.count_states(), store.count_jobs(JobQuery(archived=True))) == ({PENDING: 1}, 2)


def test_environments_of_long_ended_jobs_are_deleted(store: Store) -> None:
    environments = [EnvironmentRow(name, (("A", "1"),)) for name in ("e1", "e2", "e3")]
    launches = [LaunchRow(f"job-{n}", Launch(argv=("sh",), captured=f"e{n}")) for n in (1, 2, 3)]
    ends = [a_row(1, COMPLETED, end_ms=100), a_row(2, COMPLETED, end_ms=200), a_row(3)]
    store.commit([*ends, *launches, *environments])
    store.delete_expired(Cutoffs(environments_ms=150))
    assert [store.environment(name) for name in ("e1", "e2", "e3")] == [
        None,
        {"A": "1"},
        {"A": "1"},
    ]


def test_old_responses_events_and_environments_are_deleted(store: Store) -> None:
    answer = ResponseRow(user="ada", key="k1", request_hash="h", status=201, body="{}", at_ms=5)
    environments = [EnvironmentRow(name, (("A", "1"),)) for name in ("e1", "e2", "e3")]
    launches = [LaunchRow(f"job-{n}", Launch(argv=("sh",), captured=f"e{n}")) for n in (1, 2)]
    store.commit([a_row(1, COMPLETED), a_row(2), *launches, *environments])
    store.commit([answer, replace(answer, key="k2", at_ms=50)])
    for n in range(4):
        store.commit([an_event(n)])
    assert store.delete_expired(Cutoffs(responses_ms=50, events_ms=2)) == 1 + 2 + 1
    assert (store.response("ada", "k1"), store.response("ada", "k2").at_ms) == (None, 50)
    assert store.events() == [(3, an_event(2)), (4, an_event(3))]
    assert store.environment("e3") is None
    assert store.environment("e1") == {"A": "1"}
    store.archive(ended_before_ms=10**9)
    assert store.delete_expired(Cutoffs(events_ms=100)) == 2 + 1
    assert (store.environment("e1"), store.environment("e2")) == (None, {"A": "1"})
    assert (store.events(), store.commit([an_event(9)])) == ([], 5)
    assert store.events() == [(5, an_event(9))]


def test_job_measures_are_summed_over_attempts(store: Store) -> None:
    def measure(job: str, attempt: int, energy_uj: int, peak_percent: int) -> AttemptMeasure:
        return AttemptMeasure(
            allocation_id=f"{job}.{attempt}",
            job_id=job,
            attempt=attempt,
            measure=Measure(power_ms=1, energy_uj=energy_uj, peak_percent=peak_percent),
        )

    first, second, other = measure("a", 1, 10, 90), measure("a", 2, 5, 40), measure("b", 1, 7, 1)
    store.commit([second, other, measure("a", 1, 1, 1), first])
    assert store.attempt_measures("a") == [first, second]
    assert store.attempt_measures("c") == []
    assert store.job_measures(["a", "c"]) == {
        "a": Measure(power_ms=2, energy_uj=15, peak_percent=90)
    }


def test_device_hours_are_read_by_time_and_deleted_when_old(store: Store) -> None:
    hours = [
        DeviceHour(hour_ms=hour * HOUR_MS, node_id="n", index=index, energy_uj=hour)
        for hour in (2, 1, 3)
        for index in (1, 0)
    ]
    store.commit(hours)
    assert [
        (hour.hour_ms // HOUR_MS, hour.index) for hour in store.device_hours(0, 3 * HOUR_MS)
    ] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    old = 2 * HOUR_MS
    assert store.delete_expired(Cutoffs(hours_ms=old)) == 2
    assert len(store.device_hours(0, 9 * HOUR_MS)) == 4


def test_simulation_store_forgets_ended_jobs() -> None:
    store = MemoryStore(keep_ended=False)
    store.commit([a_row(), LaunchRow("job-1", Launch(argv=("sh",))), an_event()])
    assert len(store.jobs()) == 1
    store.commit([a_row(state=COMPLETED)])
    assert (store.jobs(), store.events(), store.launch("job-1")) == ([], [], None)
    store.close()
