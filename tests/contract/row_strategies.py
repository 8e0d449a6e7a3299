"""Hypothesis strategies for store rows of every kind with every value that the types allow."""

from dataclasses import fields, replace
from typing import Any

from hypothesis import strategies as st

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.identity import Authority, JoinToken, NodeKey, Role, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Job, JobState, Pool
from gpu_scheduler.model.launch import CodeSnapshot, Launch, Mount, Probe, ProbeKind, Runner
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import (
    Adapter,
    Device,
    DeviceMode,
    ForeignUse,
    Health,
    Node,
    NodeClosure,
    NodeState,
)
from gpu_scheduler.model.notification import Notice, NotifyRule
from gpu_scheduler.model.plan import (
    LONGEST_MS,
    AdvanceReservation,
    Allocation,
    DeviceShare,
    Placement,
    Rendezvous,
    Reservation,
)
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.model.service import Replica, Restart, RestartRule, Service
from gpu_scheduler.model.tenant import BudgetPeriod, Quota, Tenant, Tier
from gpu_scheduler.store.rows import (
    AttemptRow,
    AuditRow,
    CursorRow,
    EnvironmentRow,
    EstimateRow,
    EventRow,
    JobRow,
    LaunchRow,
    NoticeRow,
    ReservationRow,
    ResponseRow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
COUNT = st.integers(0, 5)
AMOUNT = st.integers(0, 2**62)
TIME = st.integers(0, 2**45)
MAYBE_TIME = st.none() | TIME
STATE = st.sampled_from(JobState)


def listed(items: st.SearchStrategy[Any], *, least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(items, min_size=least, max_size=3).map(tuple)


def pairs(values: st.SearchStrategy[Any] = TEXT) -> st.SearchStrategy[Any]:
    return listed(st.tuples(TEXT, values))


INTERVALS = st.lists(st.integers(0, 100), max_size=6).map(IntervalSet.of)
REQUESTS = st.builds(
    Request,
    gpu_count=COUNT,
    gpu_extra_milli=st.integers(0, 99).map(lambda step: step * 10),
    gpu_memory_mb=AMOUNT,
    gpu_extra_memory_mb=AMOUNT,
    gpu_models=listed(TEXT),
    cpu_milli=AMOUNT,
    memory_mb=AMOUNT,
    device_ids=st.just(()) | st.just(tuple(range(8))),
    node_labels=pairs(),
    topology=st.sampled_from(Topology),
    contiguous=st.booleans(),
    min_bandwidth_gbps=COUNT,
)
ARRAYS = st.builds(Array, tasks=INTERVALS.filter(bool), max_running=COUNT)
DEPENDENCIES = listed(
    st.builds(Dependency, st.sampled_from(DependencyKind), NAME.map(lambda name: f"on {name}"))
)


@st.composite
def jobs(draw: st.DrawFn, number: int) -> Job:
    job_id = draw(st.just(f"job-{number}") | NAME.map(lambda name: f"{name} {number}"))
    return draw(
        st.builds(
            Job,
            id=st.just(job_id),
            number=st.just(number),
            submit_ms=TIME,
            tenant=TEXT,
            user=TEXT,
            name=TEXT,
            command=listed(TEXT),
            members=listed(REQUESTS, least=1),
            priority=st.integers(0, 10_000),
            pool=st.sampled_from(Pool),
            interactive=st.booleans(),
            preemptible=st.booleans(),
            max_runtime_ms=TIME,
            estimate_ms=TIME,
            deadline_ms=TIME,
            begin_ms=TIME,
            dependencies=DEPENDENCIES,
            array=st.none() | ARRAYS,
            hold=st.booleans(),
            retries=COUNT,
            retry_exit_codes=listed(COUNT),
            requeue_on_node_loss=st.booleans(),
            same_rack=st.booleans(),
            allow_idle=st.booleans(),
            notify=listed(st.builds(NotifyRule, listed(st.sampled_from(Notice)), TEXT)),
            service=TEXT,
            port=COUNT,
        )
    )


_LIFE: dict[str, st.SearchStrategy[Any]] = {
    "state": STATE,
    "attempt": COUNT,
    "preemptions": COUNT,
    "failures": COUNT,
    "exit_code": st.none() | COUNT,
    "signal": st.none() | COUNT,
    "first_start_ms": MAYBE_TIME,
    "start_ms": MAYBE_TIME,
    "end_ms": MAYBE_TIME,
    "waited_ms": TIME,
    "attained_ms": TIME,
    "served_ms": TIME,
    "resume_ms": TIME,
    "protected": st.booleans(),
    "stop_why": TEXT,
    "prolog_failures": COUNT,
    "misstarts": COUNT,
    "saved_ms": TIME,
}


@st.composite
def job_rows(draw: st.DrawFn, number: int = 1) -> JobRow:
    job = draw(jobs(number))
    if draw(st.booleans()):
        return JobRow(job=job, state=JobState.PENDING, reason=draw(TEXT), expected_ms=draw(TIME))
    return draw(
        st.builds(
            JobRow,
            job=st.just(job),
            reason=TEXT,
            expected_ms=TIME,
            since_ms=TIME,
            met=listed(TEXT),
            tasks=listed(st.tuples(STATE, INTERVALS)),
            most_members=COUNT,
            **_LIFE,
        )
    )


PATH = st.from_regex(r"/[a-z0-9_./ é-]{0,20}", fullmatch=True)
IMAGE = st.from_regex(r"[a-z0-9][a-z0-9_./:-]{0,20}", fullmatch=True).filter(
    lambda name: not name.startswith("rootfs:")
)
PROBES = st.builds(
    Probe,
    kind=st.just(ProbeKind.HTTP),
    path=st.from_regex(r"/[a-z0-9]{0,9}", fullmatch=True),
    interval_ms=st.integers(100, 2**31),
    timeout_ms=st.integers(10, 2**31),
    failures=st.integers(1, 99),
    grace_ms=TIME,
) | st.builds(Probe, kind=st.just(ProbeKind.COMMAND), argv=listed(WORD, least=1))
LAUNCHES = st.builds(
    Launch,
    argv=listed(WORD, least=1),
    script=TEXT,
    workdir=WORD,
    environment=pairs(),
    captured=TEXT,
    uid=COUNT,
    gid=COUNT,
    user=TEXT,
    umask=COUNT,
    runner=st.sampled_from([Runner.PROCESS, Runner.TMUX, Runner.SCREEN]),
    mounts=listed(st.builds(Mount, PATH, PATH, st.booleans())),
    conda=TEXT,
    output=WORD,
    warn_signal=TEXT,
    warn_before_ms=TIME,
    grace_ms=MAYBE_TIME,
    max_processes=COUNT,
    sweep=TEXT,
    params=pairs(),
    probe=st.none() | PROBES,
    snapshot=st.none()
    | st.builds(CodeSnapshot, path=TEXT, source=TEXT, tree=TEXT, dirty=st.booleans()),
) | st.builds(Launch, runner=st.just(Runner.CONTAINER), image=IMAGE)
PLACEMENTS = listed(
    st.builds(
        Placement,
        COUNT,
        TEXT,
        listed(st.builds(DeviceShare, COUNT, AMOUNT, AMOUNT, TEXT)),
        AMOUNT,
        AMOUNT,
    )
)
_DEVICE: dict[str, st.SearchStrategy[Any]] = {
    "uuid": TEXT,
    "model": TEXT,
    "memory_mb": AMOUNT,
    "island": COUNT,
    "temperature_c": st.integers(-40, 120),
    "hot": st.booleans(),
    "health": st.sampled_from(Health),
    "paused": st.booleans(),
    "foreign": st.none()
    | st.builds(
        ForeignUse,
        pid=COUNT,
        user=TEXT,
        memory_mb=AMOUNT,
        command=TEXT,
        leaked=st.booleans(),
        job=TEXT,
    ),
    "why": TEXT,
    "forgiven": listed(COUNT),
}
DEVICES = st.builds(
    Device, index=COUNT, mode=st.sampled_from([DeviceMode.WHOLE, DeviceMode.SHARED]), **_DEVICE
) | st.builds(
    Device,
    index=COUNT,
    mode=st.just(DeviceMode.MIG),
    mig_slices=listed(st.tuples(TEXT, COUNT), least=1),
    **_DEVICE,
)

_MEASURED = [field.name for field in fields(Measure)]
_OF_HOUR = [
    *("read_ms", "gpu_ms", "busy_percent_ms", "peak_percent", "memory_mb_ms", "peak_memory_mb"),
    *("power_ms", "energy_uj", "peak_power_mw", "held_milli_ms"),
]


def _as_template(job: Job) -> Job:
    """A job of a service."""
    return replace(
        job,
        members=job.members[:1],
        min_members=1,
        array=None,
        max_runtime_ms=0,
        deadline_ms=0,
        dependencies=(),
        retries=0,
        retry_exit_codes=(),
        interactive=False,
        hold=False,
    )


ROWS: dict[str, st.SearchStrategy[Any]] = {
    "notice": st.builds(
        NoticeRow,
        id=TEXT,
        target=TEXT,
        at_ms=TIME,
        document=TEXT,
        next_ms=TIME,
        tries=COUNT,
        error=TEXT,
    ),
    "cursor": st.builds(CursorRow, TEXT, AMOUNT, TEXT),
    "job": job_rows(),
    "task": st.builds(TaskRow, job_id=TEXT, task=COUNT, **_LIFE),
    "launch": st.builds(LaunchRow, st.just("job-1"), LAUNCHES),
    "environment": st.builds(
        EnvironmentRow, TEXT, st.dictionaries(TEXT, TEXT).map(lambda found: tuple(found.items()))
    ),
    "attempt": st.builds(
        AttemptRow,
        allocation_id=TEXT,
        job_id=TEXT,
        task=st.none() | COUNT,
        attempt=COUNT,
        placements=PLACEMENTS,
        start_ms=TIME,
        end_ms=TIME,
        state=STATE,
        exit_code=st.none() | COUNT,
        signal=st.none() | COUNT,
        detail=TEXT,
        gpu_models=listed(st.tuples(TEXT, AMOUNT)),
    ),
    "measure": st.builds(
        AttemptMeasure,
        allocation_id=TEXT,
        job_id=TEXT,
        task=st.none() | COUNT,
        attempt=COUNT,
        measure=st.builds(Measure, **dict.fromkeys(_MEASURED, AMOUNT)),
        warning=TEXT,
    ),
    "hour": st.builds(
        DeviceHour,
        hour_ms=TIME,
        node_id=TEXT,
        index=COUNT,
        peak_temperature_c=st.integers(-40, 120),
        **dict.fromkeys(_OF_HOUR, AMOUNT),
    ),
    "promise": st.builds(
        Reservation,
        job_id=NAME,
        job_number=st.integers(0, 2**40),
        at_ms=TIME,
        until_ms=TIME,
        placements=PLACEMENTS,
        made_ms=TIME,
        claim=st.booleans(),
        slips=COUNT,
        promised_ms=MAYBE_TIME,
    ).map(lambda reservation: ReservationRow(reservation.job_id, reservation)),
    "usage": st.builds(
        UsageRow, MAYBE_TIME, TEXT, st.none() | TEXT, listed(st.integers(0, 2**100))
    ),
    "share": st.builds(
        ShareRow,
        TEXT,
        st.none() | TEXT,
        st.floats(allow_nan=False),
        st.floats(allow_nan=False),
        AMOUNT,
        TIME,
    ),
    "answer": st.builds(
        ResponseRow, user=TEXT, key=TEXT, request_hash=TEXT, status=COUNT, body=TEXT, at_ms=TIME
    ),
    "event": st.builds(
        EventRow,
        at_ms=TIME,
        kind=TEXT,
        job_id=TEXT,
        task=st.none() | COUNT,
        user=TEXT,
        data=pairs(TEXT | st.integers(-(2**62), 2**62)),
    ),
    "allocation": st.builds(
        Allocation,
        id=TEXT,
        job_id=TEXT,
        task=st.none() | COUNT,
        attempt=COUNT,
        placements=PLACEMENTS,
        start_ms=TIME,
        rendezvous=st.none()
        | st.builds(
            Rendezvous, at_ms=TIME, port=COUNT, hosts=st.lists(TEXT, max_size=3).map(tuple)
        ),
    ),
    "node": st.builds(
        Node,
        id=TEXT,
        ordinal=COUNT,
        cpu_milli=AMOUNT,
        memory_mb=AMOUNT,
        devices=st.lists(DEVICES, max_size=3, unique_by=lambda device: device.index).map(tuple),
        labels=pairs(),
        rack=TEXT,
        state=st.sampled_from(NodeState),
        closed=st.none()
        | st.builds(
            NodeClosure,
            since_ms=TIME,
            by=TEXT,
            reason=TEXT,
            drains=st.booleans(),
            requeue_ms=st.none() | TIME,
            is_fault=st.booleans(),
        ),
        found_labels=pairs(),
        given_labels=st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=3).map(tuple),
        address=TEXT,
        version=TEXT,
        numa_nodes=COUNT,
        direct_storage=st.booleans(),
        adapters=st.lists(
            st.builds(
                Adapter,
                name=TEXT,
                port=COUNT,
                link=TEXT,
                rate_gbps=COUNT,
                numa_node=st.integers(-1, 7),
                active=st.booleans(),
            ),
            max_size=2,
        ).map(tuple),
    ),
    "tenant": st.builds(
        Tenant,
        id=TEXT,
        name=TEXT,
        quota=st.builds(Quota, gpu_milli=st.none() | AMOUNT, gpu_milli_ms=st.none() | AMOUNT),
        user_quota=st.builds(Quota, gpu_milli=st.none() | AMOUNT, pending_jobs=st.none() | COUNT),
        budget_period=st.none() | st.sampled_from(BudgetPeriod),
        tier=st.sampled_from(Tier),
        weight_milli=st.integers(1, 10**6),
        elastic=st.booleans(),
        allow_preemption=st.booleans(),
        can_preempt_others=st.booleans(),
        max_preemptions=COUNT,
        linux_groups=listed(TEXT),
        users=listed(TEXT),
        admins=listed(TEXT),
    ),
    "authority": st.builds(Authority, id=TEXT, certificate=TEXT, key=TEXT, created_ms=TIME),
    "join_token": st.builds(
        JoinToken,
        id=TEXT,
        secret_hash=TEXT,
        name=TEXT,
        nodes=listed(TEXT),
        uses=COUNT,
        used=COUNT,
        created_by=TEXT,
        created_ms=TIME,
        expires_ms=TIME,
        revoked_ms=TIME,
    ),
    "node_key": st.builds(
        NodeKey,
        node=TEXT,
        fingerprint=TEXT,
        former=TEXT,
        token_id=TEXT,
        issued_ms=TIME,
        expires_ms=TIME,
        revoked_ms=TIME,
    ),
    "token": st.builds(
        Token,
        id=TEXT,
        secret_hash=TEXT,
        name=TEXT,
        user=TEXT,
        uid=COUNT,
        tenant=TEXT,
        role=st.sampled_from(Role),
        created_by=TEXT,
        created_ms=TIME,
        expires_ms=TIME,
        last_used_ms=TIME,
        revoked_ms=TIME,
    ),
    "audit": st.builds(
        AuditRow,
        at_ms=TIME,
        user=TEXT,
        origin=TEXT,
        via=TEXT,
        action=TEXT,
        target=TEXT,
        outcome=TEXT,
        code=TEXT,
        detail=TEXT,
        times=COUNT,
    ),
    "week": st.builds(WeekUsageRow, TEXT, st.none() | TEXT, TIME, AMOUNT),
    "estimate": st.builds(
        EstimateRow,
        job_id=TEXT,
        tenant=TEXT,
        user=TEXT,
        made_ms=TIME,
        promised_ms=TIME,
        basis=TEXT,
        start_ms=MAYBE_TIME,
        forecast_ms=MAYBE_TIME,
        earliest_ms=MAYBE_TIME,
        latest_ms=MAYBE_TIME,
    ),
    "window": st.builds(
        AdvanceReservation,
        id=TEXT,
        number=COUNT,
        tenant=TEXT,
        user=TEXT,
        name=TEXT,
        start_ms=st.integers(2**44, 2**44 + LONGEST_MS // 2),
        end_ms=st.integers(2**44 + LONGEST_MS // 2 + 1, 2**44 + LONGEST_MS),
        devices=listed(st.tuples(TEXT, listed(COUNT, least=1)), least=1),
        preempts=st.booleans(),
        made_by=TEXT,
        made_ms=TIME,
        over_ms=MAYBE_TIME,
        cancelled=st.booleans(),
        asked_node=TEXT,
        asked_model=TEXT,
        asked_indices=listed(COUNT),
    ),
    "service": st.builds(
        Service,
        id=TEXT,
        number=COUNT,
        name=st.from_regex(r"[a-z]{1,9}", fullmatch=True),
        tenant=TEXT,
        user=TEXT,
        job=jobs(1).map(_as_template),
        launch=LAUNCHES,
        replicas=st.integers(0, 1000),
        port=st.integers(0, 65_535),
        probe=st.none() | PROBES,
        restart=st.builds(RestartRule, policy=st.sampled_from(Restart)),
        surge=st.booleans(),
        generation=COUNT,
        made_ms=TIME,
        changed_ms=TIME,
        deleted=st.booleans(),
        problem=TEXT,
        members=listed(
            st.builds(
                Replica,
                index=COUNT,
                job_id=TEXT,
                generation=COUNT,
                ready=st.booleans(),
                port=COUNT,
                detail=TEXT,
                since_ms=TIME,
                restarts=COUNT,
                leaving=st.booleans(),
                is_over=st.booleans(),
            )
        ),
    ),
    "pool": st.builds(
        PoolQuota, pool=st.sampled_from(Pool), percent=st.integers(0, 100), elastic=st.booleans()
    ),
}
