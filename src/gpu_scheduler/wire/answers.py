"""The JSON schemas of responses about jobs, GPUs, the cluster, leadership and notifications.

Values without behaviour: the server fills them in, the client reads them. Fields are in the order
in which a user wants to read them. Times are ISO 8601 in UTC, or null.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gpu_scheduler.model.identity import LeaderLease, ServerMember


class StandbyForm(Struct):
    """A standby server. `seen_seconds_ago` is the age of its last heartbeat."""

    name: str
    address: str
    version: str
    seen_seconds_ago: float


class LeadershipForm(Struct):
    """The role of this server (leader, standby, or `unsure` whether it still leads) and the leader.

    `leader` is empty if there is none.
    """

    role: str
    name: str
    term: int
    leader: str
    leader_address: str
    standbys: list[StandbyForm]
    trouble: str = ""


def leadership_form(
    me: ServerMember, lead: LeaderLease, *, term: int, is_held: bool, trouble: str
) -> LeadershipForm:
    """Return the form; `term` is that in which this server leads, or 0."""
    role = "standby" if not term else "leader" if is_held else "unsure"
    return LeadershipForm(
        role=role,
        name=me.name,
        term=lead.term,
        leader=lead.holder if lead.is_held else "",
        leader_address=lead.address if lead.is_held else "",
        standbys=[
            StandbyForm(one.name, one.address, one.version, round(max(0.0, one.seen_s), 1))
            for one in lead.standbys
            if one.name != lead.holder or not lead.is_held
        ],
        trouble=trouble,
    )


class ErrorForm(Struct):
    """Every response to a failed request. `code` is stable, `error` is for users."""

    error: str
    code: str
    details: dict[str, Any] = {}


# Jobs.


class Submitted(Struct):
    """One job was accepted and stored."""

    job_id: str
    status: str = "submitted"
    message: str = "Job submitted successfully"
    tasks: int = 1


class SubmittedMany(Struct):
    """All jobs of the request were accepted; ids in the order of the request."""

    job_ids: list[str]
    count: int
    status: str = "submitted"


class Validated(Struct):
    """Jobs would be accepted; nothing was stored. Times are those of the first job.

    `warnings` are reasons for which an accepted job would not start.
    """

    count: int
    tasks: int
    position: int | None = None
    expected_start: str | None = None
    basis: str = ""
    start_unknown: str = ""
    expected_end: str | None = None
    end_unknown: str = ""
    warnings: list[str] = []
    status: str = "valid"


class Changed(Struct):
    """The result of a change to a job."""

    job_id: str
    status: str
    message: str


class Retried(Struct):
    """The result of a retry. `tasks` are the requeued tasks of an array, such as 0-3,7.

    `left` is the number of cancelled tasks that were not requeued.
    """

    job_id: str
    status: str
    message: str
    tasks: str | None = None
    left: int = 0


class TaskChanged(Struct):
    """The result of a change to a task; `job_id` equals `task_id`, because a task is a job."""

    task_id: str
    job_id: str
    status: str
    message: str


class HeldGpu(Struct):
    """A GPU, or a share of one; a whole GPU has `share` 1."""

    index: int
    share: float
    memory_mb: int
    mig_profile: str = ""


class Place(Struct):
    """The resources of one member on one node."""

    node: str
    gpus: list[HeldGpu]
    member: int = 0
    task: int | None = None
    cpu_cores: float = 0
    memory_mb: int = 0


class DependencyForm(Struct):
    """A dependency on another job."""

    type: str
    job_id: str


class ArrayForm(Struct):
    """The tasks of an array; `states` has the task numbers in each state."""

    tasks: str
    count: int
    max_running: int
    states: dict[str, str]


class SnapshotForm(Struct):
    """The copy of the code at submission."""

    path: str
    source: str
    tree: str
    commit: str = ""
    dirty: bool = False


class MeasureForm(Struct):
    """The measurements of a job's or attempt's GPUs; null where a GPU does not report a value.

    Power is divided between the jobs on a GPU by their shares; utilisation is that of the GPUs.
    """

    energy_wh: float | None
    utilisation_percent: float | None
    peak_utilisation_percent: int | None
    peak_memory_mb: int
    warning: str = ""


class JobForm(Struct):
    """A job as its owner sees it. `gpu_count` and the other amounts are over all members.

    `placed_members` is the number of members of a gang that run, or ran last; an elastic gang may
    have fewer than `members` (null: not a gang, or never placed). With `redacted` it is the job of
    another user: only its owner, size, placement and expected end are shown, and all other fields
    are empty.
    """

    id: str
    job_id: str
    number: int
    name: str
    tenant_id: str
    user: str
    state: str
    reason: str
    priority: int
    gpu_count: float
    gpu_memory_mb: int
    cpu_cores: float
    memory_mb: int
    command: list[str]
    image: str
    working_directory: str
    environment: dict[str, str]
    pool: str
    interactive: bool
    preemptible: bool
    gang_scheduling: bool
    members: int
    min_members: int
    max_runtime_minutes: float | None
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None
    attempt: int
    preemptions: int
    exit_code: int | None
    signal: int | None
    array: ArrayForm | None
    allocation: list[Place]
    dependencies: list[DependencyForm]
    hold: bool
    retries: int
    deadline: str | None
    begin_at: str | None
    runner: str
    gpu_models: list[str] = []
    output: str = ""
    notify: list[str] = []
    task: int | None = None
    attach: list[str] = []
    sweep: str = ""
    params: dict[str, str] = {}
    snapshot: SnapshotForm | None = None
    expected_end: str | None = None
    redacted: bool = False
    allow_idle: bool = False
    measured: MeasureForm | None = None
    time_limit_minutes: float | None = None
    placed_members: int | None = None


class SweepForm(Struct):
    """Jobs that were submitted as one sweep; `states` counts them."""

    name: str
    user: str
    jobs: int
    states: dict[str, int]
    first_job_id: str
    last_job_id: str
    submitted_at: str | None


class SweepList(Struct):
    """The caller's own sweeps, the newest first."""

    sweeps: list[SweepForm]


class JobPage(Struct):
    """One page of the requested jobs; `total` counts all of them."""

    jobs: list[JobForm]
    total: int
    next_cursor: str | None = None


class AttemptForm(Struct):
    """One attempt of a job or task, running or ended."""

    id: str
    job_id: str
    task: int | None
    attempt: int
    state: str
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    signal: int | None
    detail: str
    allocation: list[Place]
    measured: MeasureForm | None = None


class AttemptList(Struct):
    """All attempts, the first one first."""

    attempts: list[AttemptForm]


class ArrayTask(Struct):
    """One task of an array that has started at least once."""

    id: str
    task: int
    state: str
    attempt: int
    preemptions: int
    exit_code: int | None
    signal: int | None
    started_at: str | None
    ended_at: str | None


class ArrayTaskPage(Struct):
    """Tasks that have started, by number; `states` has all tasks."""

    job_id: str
    states: dict[str, str]
    tasks: list[ArrayTask]
    next_task: int | None = None


class Explanation(Struct):
    """Why a job waits, and its expected start.

    `basis` is the source of the start: reserved (it has a reservation), forecast, rough (by the
    work ahead of it), dependency (the expected end of other jobs) or known (a begin time, a retry
    pause, a new budget). A time is given only if it can be justified; otherwise `start_unknown` and
    `end_unknown` say why not.
    """

    job_id: str
    state: str
    reason: str
    code: str
    position: int | None
    expected_start: str | None
    expected_end: str | None
    details: dict[str, Any] = {}
    basis: str = ""
    start_unknown: str = ""
    end_unknown: str = ""


class TaskForm(Struct):
    """A job in the short form: pending, running, success or failed."""

    task_id: str
    status: str
    command: str
    priority: int
    gpu_count: float
    name: str = ""
    exit_code: int | None = None
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    reason: str = ""


class TaskAccepted(Struct):
    """A task was accepted."""

    task_id: str
    status: str = "pending"


class TaskPage(Struct):
    """One page of the tasks."""

    tasks: list[TaskForm]
    total: int


class Removed(Struct):
    """Something was removed."""

    id: str
    message: str
    status: str = "deleted"


# The cluster.


class PoolUse(Struct):
    """The usage of a pool in GPUs, and its guaranteed quota (null: it has none).

    `borrowed_gpus` are above its quota, and are reclaimed when the other pool needs them.
    """

    pool: str
    percent: int | None
    elastic: bool
    held_gpus: float
    sure_of_gpus: float | None
    borrowed_gpus: float
    running_jobs: int
    waiting_jobs: int


class ClusterStatus(Struct):
    """The cluster in numbers. `available_gpus` are completely free and accept work.

    `pending_by_priority` (high, normal, low) only comes with `?detailed=true`.
    """

    total_nodes: int
    online_nodes: int
    total_gpus: int
    available_gpus: int
    total_jobs: int
    running_jobs: int
    pending_jobs: int
    scheduled_jobs: int = 0
    completed_jobs: int = 0
    failed_jobs: int = 0
    cancelled_jobs: int = 0
    queued_tasks: int = 0
    allocated_gpus: float = 0
    usable_gpus: int = 0
    users: dict[str, float] = {}
    pending_by_priority: dict[str, int] | None = None
    pools: list[PoolUse] = []


class GpuProcess(Struct):
    """A process on a GPU, of a job or not; `leaked` if its job has ended."""

    pid: int
    user: str
    memory_mb: int
    job_id: str = ""
    command: str = ""
    leaked: bool = False


class GpuForm(Struct):
    """A GPU: its allocations and its latest measurements.

    Mean and peak are since the start of the server. `why` is the reason for which it takes no new
    work.
    """

    node: str
    index: int
    uuid: str
    model: str
    memory_mb: int
    state: str
    allocated_share: float
    allocated_memory_mb: int
    jobs: list[str]
    users: list[str]
    paused: bool
    utilisation_percent: int | None = None
    utilisation_mean_percent: float | None = None
    utilisation_peak_percent: int | None = None
    memory_used_mb: int | None = None
    temperature_c: int | None = None
    power_watts: float | None = None
    processes: list[GpuProcess] = []
    why: str = ""
    mig: list[str] = []


class GpuList(Struct):
    """All devices, by node and index."""

    gpus: list[GpuForm]


class JobLine(Struct):
    """A job in one line of a screen. `gpus` is over all members, `places` as in `box[0,1]`.

    For a running elastic gang, `gpus` is over its running members.
    """

    id: str
    name: str
    user: str
    tenant_id: str
    state: str
    reason: str
    gpus: float
    members: int
    priority: int
    interactive: bool
    hold: bool
    tasks: str
    submitted_at: str | None
    started_at: str | None
    max_runtime_minutes: float | None
    places: list[str]
    may_change: bool = False
    expected_start: str | None = None
    expected_end: str | None = None
    position: int | None = None


class Overview(Struct):
    """The data of a live screen. `counts` is over all jobs, `total` over the selected ones.

    `jobs` begin at `offset`. `found` is the position of the requested job.
    """

    version: str
    now: str | None
    uptime_seconds: float
    nodes: int
    online_nodes: int
    problem: str
    counts: dict[str, int]
    gpus: list[GpuForm]
    jobs: list[JobLine]
    offset: int
    total: int
    found: int | None = None


class GpuChanged(Struct):
    """A device was paused or resumed."""

    node: str
    index: int
    paused: bool
    message: str


class UsageForm(Struct):
    """The usage of an account. Without a user: all users of the tenant together."""

    tenant_id: str
    user: str | None
    period: str
    gpu_hours: float
    gpu_memory_gb_hours: float
    cpu_hours: float
    memory_gb_hours: float
    completed: int
    failed: int
    cancelled: int
    preemptions: int
    lost_gpu_hours: float
    energy_kwh: float = 0


class UsageList(Struct):
    """Accounts by tenant, user and period."""

    usage: list[UsageForm]


class QuotaForm(Struct):
    """The quotas of online and batch work."""

    online_percent: int
    batch_percent: int
    elastic: bool


class HealthReason(Struct):
    """A failed check: its name, severity, finding and remedy."""

    check: str
    status: str
    detail: str
    remedy: str


class Health(Struct):
    """healthy, degraded (works, but not all of it) or unhealthy; `reasons` has the worst first."""

    status: str
    version: str
    uptime_seconds: float
    checks: dict[str, str]
    reasons: list[HealthReason] = []
    leadership: LeadershipForm | None = None


class EventForm(Struct):
    """One event. `sequence` increases; resume after the last one seen."""

    sequence: int
    at: str
    kind: str
    job_id: str | None
    task: int | None
    data: dict[str, str | int]
    user: str = ""


class EventPage(Struct):
    """One page of events; the next page is `after` = `last`."""

    events: list[EventForm]
    last: int


# Notifications.


class TargetForm(Struct):
    """A notification target. Its queue and errors are for admins."""

    name: str
    kind: str
    events: list[str]
    tenants: list[str]
    for_jobs: bool
    is_default: bool
    waiting: int | None = None
    oldest_at: str | None = None
    next_try_at: str | None = None
    last_error: str | None = None
    delivered: int | None = None
    failed_tries: int | None = None
    given_up: int | None = None


class TargetList(Struct):
    """All targets that the caller may use."""

    targets: list[TargetForm]
    job_webhooks: bool


class TargetTested(Struct):
    """Whether a test notification was delivered, and if not, why."""

    target: str
    delivered: bool
    error: str = ""
