"""What the API answers about jobs, tenants, devices and the cluster, as JSON says it.

Plain forms without behaviour: the API fills them, the client reads them. Fields are in the order in
which people want to read them. Times are ISO 8601 in UTC, or null.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gpu_scheduler.model.identity import LeaderLease, ServerMember

# --- Which of several servers leads, as it is told to people.


class StandbyForm(Struct):
    """A server that does not lead. `seen_seconds_ago` is when it last said that it is there."""

    name: str
    address: str
    version: str
    seen_seconds_ago: float


class LeadershipForm(Struct):
    """What this server is (leader, standby, or `unsure` whether it still leads) and who leads.

    Without a leader, `leader` is empty.
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
    """The form; `term` is the one in which this server leads, 0 if it does not."""
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


# --- What the API answers about jobs, tenants, devices and the cluster, as JSON says it.


class ErrorForm(Struct):
    """Every answer that is not a success. `code` is stable, `error` is for people."""

    error: str
    code: str
    details: dict[str, Any] = {}


# --- jobs


class Submitted(Struct):
    """One job was accepted and will not be lost."""

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
    """Jobs would be accepted; nothing was stored. Times are of the first of them, if it came now.

    `warnings` say what would let it wait though it is accepted.
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
    """What was done to a job."""

    job_id: str
    status: str
    message: str


class Retried(Struct):
    """What waits again. `tasks` are those of an array, as in 0-3,7; `left` is how many cancelled
    tasks of it do not.
    """

    job_id: str
    status: str
    message: str
    tasks: str | None = None
    left: int = 0


class TaskChanged(Struct):
    """What was done to a task; `job_id` is the same, as a task is a job."""

    task_id: str
    job_id: str
    status: str
    message: str


class HeldGpu(Struct):
    """A device, or a part of one: `share` 1 is all of it."""

    index: int
    share: float
    memory_mb: int
    mig_profile: str = ""


class Place(Struct):
    """What one member holds on one node."""

    node: str
    gpus: list[HeldGpu]
    member: int = 0
    task: int | None = None
    cpu_cores: float = 0
    memory_mb: int = 0


class DependencyForm(Struct):
    """Another job, and how it must have ended."""

    type: str
    job_id: str


class ArrayForm(Struct):
    """The tasks of an array; `states` has the task numbers in each state."""

    tasks: str
    count: int
    max_running: int
    states: dict[str, str]


class SnapshotForm(Struct):
    """The code as it was at submit."""

    path: str
    source: str
    tree: str
    commit: str = ""
    dirty: bool = False


class MeasureForm(Struct):
    """What was measured on the GPUs of a job or attempt; null where they did not tell.

    Power is divided between the jobs on a GPU by their shares; utilisation is that of the GPUs.
    """

    energy_wh: float | None
    utilisation_percent: float | None
    peak_utilisation_percent: int | None
    peak_memory_mb: int
    warning: str = ""


class JobForm(Struct):
    """A job as its owner sees it. `gpu_count` and the other amounts are over all members.

    `placed_members` is how many members of a gang run, or ran last; an elastic one has perhaps
    fewer than `members` (None: it is no gang, or nothing of it was placed).
    With `redacted` it is somebody else's: only who has it, its size, where it runs and its expected
    end are told; all else is empty and means nothing.
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
    """A part of all jobs that were asked for; `total` counts all of them."""

    jobs: list[JobForm]
    total: int
    next_cursor: str | None = None


class AttemptForm(Struct):
    """One attempt of a job or task, over or not."""

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
    """Tasks that have started, by number; `states` has all of them."""

    job_id: str
    states: dict[str, str]
    tasks: list[ArrayTask]
    next_task: int | None = None


class Explanation(Struct):
    """Why a job waits, and until when by what is known now.

    `basis` is how the start was found: reserved (it has a place), forecast, rough (by the work
    ahead of it), dependency (when others should have ended) or known (a begin time, a pause, a new
    budget). A time is told only if something vouches for it; `start_unknown` and `end_unknown` say
    why one is not told.
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
    """A part of all tasks."""

    tasks: list[TaskForm]
    total: int


class Removed(Struct):
    """Something is gone."""

    id: str
    message: str
    status: str = "deleted"


# --- the cluster


class PoolUse(Struct):
    """What a kind of work holds, in GPUs, and what it is sure of now (None: it has no part).

    `borrowed_gpus` is what it holds of the other's part, and gives back when that wants it.
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
    """The cluster in numbers. `available_gpus` are free as a whole and take work.

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
    """A process on a device: of a job, or of somebody else; `leaked` if its job is over."""

    pid: int
    user: str
    memory_mb: int
    job_id: str = ""
    command: str = ""
    leaked: bool = False


class GpuForm(Struct):
    """A device: what is given out of it, and what was measured on it last.

    Mean and peak are since the start of the server.
    `why` says what keeps it from new work.
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

    Of an elastic gang that runs, over those that do.
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
    """What a live screen shows. `counts` is over all jobs, `total` over those that were chosen.

    `jobs` are those from `offset` on. `found` is the place of the job that was looked for.
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
    """What an account has used. Without a user: all users of the tenant together."""

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
    """How the GPUs are divided between online and batch work."""

    online_percent: int
    batch_percent: int
    elastic: bool


class HealthReason(Struct):
    """Something that is wrong: which check, how bad, what was found, and what to do."""

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
    """One line of history. `sequence` rises; resume behind the last one that was seen."""

    sequence: int
    at: str
    kind: str
    job_id: str | None
    task: int | None
    data: dict[str, str | int]
    user: str = ""


class EventPage(Struct):
    """A part of the history; go on with `after` = `last`."""

    events: list[EventForm]
    last: int


# --- The JSON forms of whom can be told, and of what waits to be told.


class TargetForm(Struct):
    """Somebody who can be told. What waits and went wrong is for admins."""

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
    """All targets that the caller may know of."""

    targets: list[TargetForm]
    job_webhooks: bool


class TargetTested(Struct):
    """Whether a test got through, and if not, why."""

    target: str
    delivered: bool
    error: str = ""
