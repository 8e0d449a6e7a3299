"""A job as it was submitted, and the states of jobs with their allowed transitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.notification import NotifyRule
from gpu_scheduler.model.request import Request

PRIORITY_NAMES = {"low": 250, "normal": 750, "high": 1500, "urgent": 2500}
"""Names for priorities; a larger number is more urgent."""
NORMAL_PRIORITY = PRIORITY_NAMES["normal"]
MAX_PRIORITY = 10_000
SHORT_SCALE_TOP = 10


class Pool(StrEnum):
    """The two kinds of work that share a cluster by percentages."""

    ONLINE = "online"
    BATCH = "batch"


class DependencyKind(StrEnum):
    """How another job must have ended first."""

    AFTER_OK = "afterok"
    AFTER_ANY = "afterany"
    AFTER_NOT_OK = "afternotok"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One other job, and how it must have ended."""

    kind: DependencyKind
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """The task numbers of an array job, and how many of them may run at once (0 = all)."""

    tasks: IntervalSet
    max_running: int = 0

    def __post_init__(self) -> None:
        """Reject an array without tasks."""
        if not self.tasks:
            raise InvalidRequest("the array has no tasks; write for example 0-99")
        if self.max_running < 0:
            raise InvalidRequest(f"the array's limit is {self.max_running}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a user asked for.

    `members` holds one request per member: one for a plain job, several for a gang. The first
    `min_members` of them must start together; the others start with them if there is room.
    `number` increases with every submission and breaks ties. With `retry_exit_codes`, only attempts
    with these exit codes are retried. With `allow_idle` its GPUs may be idle. Jobs of one `service`
    are spread over nodes; two jobs with the same `port` are never on one node.
    """

    id: str
    number: int
    submit_ms: int
    tenant: str = "default"
    user: str = ""
    name: str = ""
    command: tuple[str, ...] = ()
    members: tuple[Request, ...] = (Request(),)
    min_members: int = 0
    priority: int = NORMAL_PRIORITY
    pool: Pool = Pool.BATCH
    interactive: bool = False
    preemptible: bool = True
    max_runtime_ms: int = 0
    estimate_ms: int = 0
    deadline_ms: int = 0
    begin_ms: int = 0
    dependencies: tuple[Dependency, ...] = ()
    array: Array | None = None
    hold: bool = False
    retries: int = 0
    retry_exit_codes: tuple[int, ...] = ()
    requeue_on_node_loss: bool = False
    same_rack: bool = False
    allow_idle: bool = False
    notify: tuple[NotifyRule, ...] = ()
    service: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        """Reject contradictory fields; fill in the gang's minimum."""
        if not self.members:
            raise InvalidRequest(
                f"{display_name(self.id)} has no members; a gang needs at least one"
            )
        if self.min_members == 0:
            object.__setattr__(self, "min_members", len(self.members))
        if not 1 <= self.min_members <= len(self.members):
            raise InvalidRequest(
                f"{display_name(self.id)} wants at least {self.min_members} of {len(self.members)} "
                "members; the minimum must lie between 1 and the maximum"
            )
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest(
                f"{display_name(self.id)} has priority {self.priority}; "
                f"allowed is 0 to {MAX_PRIORITY}"
            )
        for name in ("max_runtime_ms", "estimate_ms", "deadline_ms", "begin_ms", "retries"):
            if getattr(self, name) < 0:
                raise InvalidRequest(
                    f"{display_name(self.id)} has {name} {getattr(self, name)}; "
                    "it must be 0 or more"
                )
        if any(dependency.job_id == self.id for dependency in self.dependencies):
            raise InvalidRequest(
                f"{display_name(self.id)} depends on itself; remove that dependency"
            )

    @property
    def gpu_milli(self) -> int:
        """Milli-GPUs of all members, including optional ones."""
        members = self.members
        if len(members) == 1:
            return members[0].gpu_milli
        return sum(member.gpu_milli for member in members)

    @property
    def is_gang(self) -> bool:
        """Tell whether several members must start together."""
        return len(self.members) > 1

    @property
    def task_count(self) -> int:
        """How many tasks the queue counts for this job."""
        return len(self.array.tasks) if self.array else 1


def display_name(job_id: str) -> str:
    """A job in messages: `job-12` is job 12."""
    if not job_id:
        return "the job"
    return f"job {job_id.removeprefix('job-')}"


def check_tasks_exist(job: Job, tasks: IntervalSet) -> None:
    """Reject tasks that the array does not have."""
    missing = None if job.array is None else tasks.first_not_in(job.array.tasks)
    if missing is not None:
        raise UnknownThing(f"{display_name(job.id)} has no task {missing}")


def split_over_nodes(request: Request, node_gpus: int) -> tuple[Request, ...]:
    """Split a request larger than a node into whole nodes and a remainder.

    CPU and memory are divided in proportion to the GPUs, rounded up.
    """
    if node_gpus < 1 or request.gpu_count <= node_gpus or not request.takes_whole_devices_only:
        return (request,)
    full, rest = divmod(request.gpu_count, node_gpus)

    def part(count: int) -> Request:
        return replace(
            request,
            gpu_count=count,
            cpu_milli=-(-request.cpu_milli * count // request.gpu_count),
            memory_mb=-(-request.memory_mb * count // request.gpu_count),
        )

    return (part(node_gpus),) * full + ((part(rest),) if rest else ())


def parse_priority(value: str | int, *, short_scale: bool = False) -> int:
    """Read `high`, `1000`, or on the short scale 0 to 10 with 5 as normal."""
    text = str(value).strip().lower()
    if text in PRIORITY_NAMES:
        return PRIORITY_NAMES[text]
    if not text.isdecimal():
        raise InvalidRequest(
            f"priority '{value}' is not known; write {', '.join(PRIORITY_NAMES)} or a number"
        )
    number = int(text)
    if short_scale and number <= SHORT_SCALE_TOP:
        return number * NORMAL_PRIORITY // (SHORT_SCALE_TOP // 2)
    if number > MAX_PRIORITY:
        raise InvalidRequest(f"priority {number} is too large; the largest is {MAX_PRIORITY}")
    return number


class JobState(StrEnum):
    """The state of a job, or of one task of an array."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.SCHEDULED, JobState.CANCELLED, JobState.FAILED}),
    JobState.SCHEDULED: frozenset(
        {
            JobState.RUNNING,
            JobState.PENDING,
            JobState.CANCELLED,
            JobState.FAILED,
            JobState.PREEMPTED,
            JobState.COMPLETED,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PREEMPTED}
    ),
    JobState.PREEMPTED: frozenset({JobState.PENDING, JobState.CANCELLED, JobState.FAILED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset({JobState.PENDING}),
    JobState.CANCELLED: frozenset({JobState.PENDING}),
}
"""Allowed transitions. Failed and cancelled jobs become pending only by a retry."""

ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
"""States in which a job holds nothing and waits for nothing."""
HOLDING = frozenset({JobState.SCHEDULED, JobState.RUNNING})
"""States in which a job holds devices."""


def move(current: JobState, wanted: JobState) -> JobState:
    """Return the wanted state if the transition is allowed, otherwise raise."""
    if wanted not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current])) or "nothing: it has ended"
        raise WrongState(f"a {current} job cannot become {wanted}; allowed: {allowed}")
    return wanted
