"""The JSON schemas of requests about jobs, and the syntax of job names and task lists.

Types and sizes are checked here; `job_reader` checks the meaning. Unknown fields are rejected, so
that a typo is never silently ignored. No field names the caller.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import MOST_RANGES, IntervalSet
from gpu_scheduler.model.job import DependencyKind, Pool
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.model.request import Topology

MAX_MEMBERS = 4096
MAX_ARGUMENTS = 10_000
MAX_ARGUMENT = 1 << 17
MAX_NAME = 256
MAX_VARIABLES = 5_000
MAX_MB = 1 << 40
MAX_SECONDS = 100 * 365 * 86_400

Name = Annotated[str, Meta(max_length=MAX_NAME)]
Text = Annotated[str, Meta(max_length=4096)]
Script = Annotated[str, Meta(max_length=1 << 19)]
Argument = Annotated[str, Meta(max_length=MAX_ARGUMENT)]
Arguments = Annotated[list[Argument], Meta(max_length=MAX_ARGUMENTS)]
Variables = Annotated[dict[str, Argument], Meta(max_length=MAX_VARIABLES)]
Labels = Annotated[dict[Name, Name], Meta(max_length=64)]
Megabytes = Annotated[int, Meta(ge=0, le=MAX_MB)]
Gpus = Annotated[float, Meta(ge=0, le=100_000)]
Cores = Annotated[float, Meta(ge=0, le=1_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Minutes = Annotated[float, Meta(ge=0, le=MAX_SECONDS // 60)]
Moment = Annotated[str, Meta(max_length=64)] | Annotated[float, Meta(ge=0)]
Priority = Annotated[int, Meta(ge=0, le=10_000)] | Annotated[str, Meta(max_length=32)]
DeviceList = Annotated[list[Annotated[int, Meta(ge=0, le=4095)]], Meta(max_length=4096)]
NodeName = Annotated[str, Meta(min_length=1, max_length=63)]
NodeNames = Annotated[list[NodeName], Meta(max_length=1024)]
ExitCodes = Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(max_length=256)]


class MemberRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The resources of one member of a gang."""

    gpu_count: Gpus = 0
    gpu_memory_mb: Megabytes = 0
    gpu_memory_mb_per_gpu: Megabytes = 0
    gpu_model: Name = ""
    gpu_models: Annotated[list[Name], Meta(max_length=64)] = []
    mig_profile: Name = ""
    allowed_gpus: DeviceList | Text = []
    exclusive: bool = False
    cpu_cores: Cores | None = None
    memory_mb: Megabytes = 0
    node_labels: Labels = {}
    nodes: NodeNames = []
    exclude_nodes: NodeNames = []
    topology: Topology = Topology.PREFER_ISLAND
    contiguous: bool = False
    min_bandwidth_gbps: Count = 0


class DependencyRequest(Struct, forbid_unknown_fields=True):
    """A dependency on another job: afterok, afterany or afternotok."""

    job_id: Annotated[str, Meta(max_length=64)] | Annotated[int, Meta(ge=1)]
    type: DependencyKind = DependencyKind.AFTER_OK


class ArrayRequest(Struct, forbid_unknown_fields=True):
    """Task numbers such as `0-99`, and how many tasks may run at once (0: all)."""

    tasks: Annotated[str, Meta(max_length=100_000)]
    max_running: Count = 0


class TerminalRequest(Struct, forbid_unknown_fields=True):
    """The terminal of a job; see `runner: terminal`. `on_disconnect`: keep or end."""

    rows: Annotated[int, Meta(ge=1, le=10_000)] = 24
    columns: Annotated[int, Meta(ge=1, le=10_000)] = 80
    idle_seconds: Seconds = 0
    attach_within_seconds: Seconds = 0
    on_disconnect: Literal["keep", "end"] = "keep"


Dependencies = Annotated[
    list[Annotated[str, Meta(max_length=100)] | DependencyRequest], Meta(max_length=1000)
]


class SnapshotRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The copy of the code at submission, and its source."""

    path: Text
    source: Text
    tree: Annotated[str, Meta(max_length=128)]
    commit: Annotated[str, Meta(max_length=128)] = ""
    dirty: bool = False


Notify = Annotated[list[Annotated[str, Meta(max_length=2100)]], Meta(max_length=10)]
"""Notifications: `end,fail`, or `end:TARGET`."""


class JobRequest(MemberRequest, forbid_unknown_fields=True, omit_defaults=True):
    """A job to submit. One of command, script and image must be given.

    `tenant_id` defaults to the caller's own tenant.
    """

    name: Name = ""
    tenant_id: Name = ""
    priority: Priority = 750
    command: Arguments = []
    args: Arguments = []
    script: Script = ""
    image: Text = ""
    environment: Variables = {}
    captured_environment: Variables | None = None
    working_directory: Text = ""
    umask: Annotated[int, Meta(ge=0, le=0o777)] | None = None
    gang_scheduling: bool = False
    members: (
        Annotated[int, Meta(ge=1, le=MAX_MEMBERS)]
        | Annotated[list[MemberRequest], Meta(min_length=1, max_length=MAX_MEMBERS)]
    ) = 1
    min_members: Annotated[int, Meta(ge=0, le=MAX_MEMBERS)] = 0
    same_rack: bool = False
    pool: Pool = Pool.BATCH
    interactive: bool = False
    preemptible: bool = True
    max_runtime_minutes: Minutes | UnsetType = UNSET
    max_runtime_seconds: Seconds | UnsetType = UNSET
    estimate_seconds: Seconds = 0
    deadline: Moment | None = None
    begin_at: Moment | None = None
    dependencies: Dependencies = []
    array: Annotated[str, Meta(max_length=100_000)] | ArrayRequest | None = None
    hold: bool = False
    retries: Annotated[int, Meta(ge=0, le=1000)] = 0
    retry_exit_codes: ExitCodes = []
    requeue_on_node_loss: bool = False
    allow_idle: bool = False
    runner: Runner | None = None
    mounts: Annotated[list[Text], Meta(max_length=256)] = []
    conda: Text = ""
    output: Text = ""
    signal: Name = ""
    grace_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    max_processes: Count = 0
    sweep: Annotated[str, Meta(max_length=128)] = ""
    params: Annotated[dict[Name, Argument], Meta(max_length=64)] = {}
    snapshot: SnapshotRequest | None = None
    notify: Notify = []
    terminal: TerminalRequest | None = None


class JobPatch(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Changes to a pending job; omitted fields stay as they are."""

    name: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    gpu_count: Gpus | UnsetType = UNSET
    gpu_memory_mb: Megabytes | UnsetType = UNSET
    gpu_memory_mb_per_gpu: Megabytes | UnsetType = UNSET
    gpu_models: Annotated[list[Name], Meta(max_length=64)] | UnsetType = UNSET
    exclusive: bool | UnsetType = UNSET
    cpu_cores: Cores | UnsetType = UNSET
    memory_mb: Megabytes | UnsetType = UNSET
    max_runtime_minutes: Minutes | UnsetType = UNSET
    max_runtime_seconds: Seconds | UnsetType = UNSET
    estimate_seconds: Seconds | UnsetType = UNSET
    deadline: Moment | UnsetType | None = UNSET
    begin_at: Moment | UnsetType | None = UNSET
    dependencies: Dependencies | UnsetType = UNSET
    retries: Annotated[int, Meta(ge=0, le=1000)] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    hold: bool | UnsetType = UNSET
    notify: Notify | UnsetType = UNSET


class PriorityRequest(Struct, forbid_unknown_fields=True):
    """A new priority: a number, or low, normal, high, urgent."""

    priority: Priority


class TaskRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The short form of a job: one command line, run by a shell."""

    command: Annotated[str, Meta(min_length=1, max_length=1 << 17)]
    priority: Priority = 750
    gpu_count: Gpus = 0
    gpu_model: Name = ""
    env: Variables = {}
    name: Name = ""


# The syntax of job names (`12`, `job-12`, `12_4` for a task of an array) and of task lists.

MAX_DIGITS = 18
MAX_TASKS = 1_000_000
MAX_TEXT = 100_000


def read_job_name(text: str) -> tuple[str, int | None]:
    """Return the job's id and, if one was named, the task number."""
    name, underscore, task = text.strip().removeprefix("job-").partition("_")
    if not _is_number(name) or (underscore and not _is_number(task)):
        raise InvalidRequest(f"'{text[:80]}' is not a job id; write for example 12, job-12 or 12_4")
    return f"job-{int(name)}", int(task) if underscore else None


def read_tasks(text: str) -> IntervalSet:
    """Read `0-99`, `1,3,5-9` or `0-20:4`, within bounds."""
    _check_ranges(text)
    tasks = IntervalSet.parse(text)
    if len(tasks) > MAX_TASKS:
        raise InvalidRequest(f"the array has {len(tasks)} tasks; at most {MAX_TASKS} are allowed")
    return tasks


def _check_ranges(text: str) -> None:
    """Reject a list of tasks that would expand into too many ranges."""
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"the list of tasks has {len(text)} characters; at most {MAX_TEXT}")
    single = 0
    for part in text.split(","):
        span, colon, step = part.strip().partition(":")
        low, dash, high = span.partition("-")
        numbers = [low, *([high] if dash else []), *([step] if colon else [])]
        if any(number.isdecimal() and len(number) > MAX_DIGITS for number in numbers):
            raise InvalidRequest(f"array '{part[:40]}...': a task number is too large")
        if colon and dash and all(map(_is_number, numbers)):
            single += max(0, int(high) - int(low)) // max(1, int(step))
        single += 1
    if single > MOST_RANGES:
        raise InvalidRequest(
            f"the array has {single} separate ranges; at most {MOST_RANGES} are allowed. "
            "Number the tasks without gaps, or submit several arrays"
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
