"""The protocol between agent and launcher: `Work` goes to the launcher, reports come back, as JSON.

Plain values, because the launcher is a small process that must not load large libraries. One `Work`
is one member of one attempt; (allocation_id, member) identifies it, and starting it twice is
harmless. Field names and the names of the report classes are the wire format and the journal format
of launchers that still run: they never change.

The second part of this file turns values to JSON objects and back. A JSON object that is not a
valid message raises ValueError, so that a bad line never harms the launcher. The journal uses the
same encoding.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from gpu_scheduler import __version__

# ruff: noqa: TRY004
# Every fault of a line is one kind of error to its reader: a bad line.

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would be a tenth of the launcher's memory
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

Key = tuple[str, int]
"""Allocation id and member."""
NOT_BEGUN = "not_begun"
"""Stop reason of work of which nothing has run, so that it can be tried again; the server uses the
same word."""
PROTOCOL = 2
"""Version 1 has no introduction; version 2 names the fields of work that it knows."""
PROTOCOL_1_FIELDS = frozenset(
    {
        *("allocation_id", "member", "job_id", "task", "attempt", "name", "argv", "script"),
        *("workdir", "environment", "uid", "gid", "user", "umask", "runner", "image", "mounts"),
        *("devices", "closed_devices", "cpu_milli", "memory_mb", "cpus", "max_processes"),
        *("limit_ms", "warn_signal", "warn_before_ms", "grace_ms", "log_path", "log_max_bytes"),
        *("log_files", "log_of_user", "scratch_dir", "prolog", "epilog", "hook_timeout_ms"),
        *("terminal", "members_here"),
    }
)
"""The fields of work that a launcher of protocol 1 knows; it refuses all others."""
NODE_LIMITS = (
    *("default_memory_mb", "max_user_processes", "max_all_processes", "max_all_memory_mb"),
)
OPTIONAL_FIELDS = ("start_timeout_ms", "engine_timeout_ms", *NODE_LIMITS)
"""A launcher that does not know these works without them: its own timeouts are longer, and it has
no limits beside those of each job."""
MAX_LINE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDevice:
    """One GPU of the work: a whole one, a share, or a MIG slice. `path` is its device node."""

    index: int
    uuid: str = ""
    path: str = ""
    share_milli: int = 1000
    memory_mb: int = 0
    mig_uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTerminal:
    """The terminal of work with the runner `terminal`: its first size, and when to end it."""

    rows: int = 24
    columns: int = 80
    idle_ms: int = 0
    attach_within_ms: int = 0
    keep: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One member of one attempt, ready to run on this node.

    `environment` is complete: the launcher adds only what it alone knows. `scratch_dir` belongs to
    the job's user and holds the checkpoint and stop-reason files. `closed_devices` are device nodes
    of GPUs that the job must not open. A `limit_ms` of 0 means no limit. Prolog and epilog run as
    the launcher's own user. `log_of_user`: the user named the log path, so it is opened with the
    user's rights and not rotated. Work with a `lease_ms` may run for so long after `leased_ms` (by
    CLOCK_BOOTTIME), or after the last renewal. `files` are written into the scratch directory. With
    `prepare_ms` the command runs only after a commit, and ends if none comes for so long after all
    is prepared. A child that has not executed the command after `start_timeout_ms` is killed; the
    launcher waits for a container engine no longer than `engine_timeout_ms`. `engine_user` is who
    runs that engine: "job" (rootless podman) or "root"; "" in works of older versions, which root's
    engine ran. `image_stores` are read-only image stores of the site; `allowed_images` are patterns
    of the images that root's engine may run for others. `image_digest` is the digest of the image
    that root's engine ran in an earlier attempt, and runs again. `default_memory_mb` is the memory
    limit of work without a `memory_mb` of its own, where a control group can hold it. The limits
    with `user` and `all` are for all works of its user and of the node together.
    """

    allocation_id: str
    member: int = 0
    job_id: str = ""
    task: int | None = None
    attempt: int = 1
    name: str = ""
    argv: tuple[str, ...] = ()
    script: str = ""
    workdir: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    uid: int = 0
    gid: int = 0
    user: str = ""
    umask: int = 0o022
    runner: str = "process"
    image: str = ""
    mounts: tuple[tuple[str, str, bool], ...] = ()
    devices: tuple[WorkDevice, ...] = ()
    closed_devices: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_mb: int = 0
    cpus: tuple[int, ...] = ()
    max_processes: int = 0
    limit_ms: int = 0
    warn_signal: str = ""
    warn_before_ms: int = 0
    grace_ms: int = 10_000
    log_path: str = ""
    log_max_bytes: int = 0
    log_files: int = 1
    log_of_user: bool = False
    scratch_dir: str = ""
    prolog: tuple[str, ...] = ()
    epilog: tuple[str, ...] = ()
    hook_timeout_ms: int = 60_000
    terminal: WorkTerminal | None = None
    members_here: int = 1
    lease_ms: int = 0
    leased_ms: int = 0
    prepare_ms: int = 0
    start_timeout_ms: int = 60_000
    engine_timeout_ms: int = 120_000
    engine_user: str = ""
    image_stores: tuple[str, ...] = ()
    allowed_images: tuple[str, ...] = ()
    image_digest: str = ""
    default_memory_mb: int = 0
    max_user_processes: int = 0
    max_all_processes: int = 0
    max_all_memory_mb: int = 0
    files: dict[str, str] = field(default_factory=dict)


def memory_limit_mb(work: Work) -> int:
    """The memory that a control group allows the work; 0 if it has no limit."""
    return work.memory_mb or work.default_memory_mb


def in_rootless_container(work: Work) -> bool:
    """Whether the container engine runs as the job's user, inside the job's control group.

    Root's own jobs use root's engine: there is no user to protect others from.
    """
    return work.runner == "container" and work.engine_user == "job" and work.uid != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The command is ready and waits for the commit. `port` is where the gang's members meet."""

    allocation_id: str
    member: int
    at_ms: int
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The command runs. `at_ms` is wall time, `pid` its process on this node."""

    allocation_id: str
    member: int
    pid: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """No process of the work is left.

    `exit_code` and `signal` are both None if the end was not seen, as the launcher had died; they
    are never guessed. `ran` is False if the command never ran, with the reason in `detail`.
    `stopped_by` is why the launcher stopped it: timeout, or the reason given with the order to
    stop. `prolog_failed` and `epilog_failed` say how the site's own commands around it failed, and
    are empty if they did not. `image_digest` is that of the image that root's engine ran. It ended
    at `at_ms` by the wall clock, and at `boot_ms` of the boot `boot_id` by the boot-time clock; a
    launcher of an older version does not report the latter.
    """

    allocation_id: str
    member: int
    exit_code: int | None = None
    signal: int | None = None
    ran: bool
    at_ms: int
    boot_id: str = ""
    boot_ms: int = 0
    run_ms: int = 0
    stopped_by: str = ""
    detail: str = ""
    prolog_failed: str = ""
    epilog_failed: str = ""
    image_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The job has touched its checkpoint file."""

    allocation_id: str
    member: int
    at_ms: int


PULLING, CREATING, BEGUN = "pulling", "creating", "begun"
"""How far a container engine is; the server uses the same words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """How far the engine of a job's container is, if it takes longer than a moment."""

    allocation_id: str
    member: int
    at_ms: int
    phase: str


Report = Prepared | Began | Over | Saved | Container

# Values to JSON objects, and back

_DEFAULT_WORK = Work(allocation_id="")
_WORK_DEFAULTS = {name: getattr(_DEFAULT_WORK, name) for name in Work.__slots__}
_TUPLES = (
    *("argv", "closed_devices", "cpus", "prolog", "epilog", "image_stores", "allowed_images"),
)
_DEVICE_FIELDS = tuple(WorkDevice.__slots__)
_TERMINAL_FIELDS = tuple(WorkTerminal.__slots__)
_REPORTS: dict[str, type[Report]] = {
    "prepared": Prepared,
    "began": Began,
    "over": Over,
    "saved": Saved,
    "container": Container,
}


def encode_line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode_line(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"expected an object, found {type(message).__name__}")
    return message


def encode_work(work: Work) -> Message:
    """Only what differs from the defaults, as every start sends and writes it."""
    message: Message = {"allocation_id": work.allocation_id, "member": work.member}
    for name, default in _WORK_DEFAULTS.items():
        value = getattr(work, name)
        if value != default:
            message[name] = value
    if work.terminal is not None:
        message["terminal"] = encode_terminal(work.terminal)
    if work.devices:
        message["devices"] = [
            {name: getattr(device, name) for name in _DEVICE_FIELDS} for device in work.devices
        ]
    return message


def terminal_order(work: Work) -> Message | None:
    """The terminal part of the order for the shim; None if the work has no terminal."""
    if work.runner != "terminal":
        return None
    return encode_terminal(work.terminal or WorkTerminal()) | {"limit_ms": work.limit_ms}


def encode_terminal(terminal: WorkTerminal) -> Message:
    return {name: getattr(terminal, name) for name in _TERMINAL_FIELDS}


def introduction() -> Message:
    """How a launcher introduces itself, so that an agent of another version can talk to it."""
    return {"protocol": PROTOCOL, "version": __version__, "work_fields": list(_WORK_DEFAULTS)}


def split_known_fields(work: Message, known: frozenset[str]) -> tuple[Message, list[str]]:
    """The part of an encoded work that a launcher knows, and the names that it does not.

    The work cannot run without the latter: only what differs from the defaults is encoded.
    """
    unknown = [name for name in work if name not in known and name not in OPTIONAL_FIELDS]
    return {name: value for name, value in work.items() if name in known}, unknown


def decode_work(message: object, *, lenient: bool = False) -> Work:
    """Unknown fields are refused, because the job would run without them.

    `lenient` ignores them, as in the journal of a later launcher, whose jobs run already.
    """
    if not isinstance(message, dict):
        raise ValueError("work must be an object")
    fields = dict(_known(message, Work, lenient))
    try:
        for name in _TUPLES:
            if name in fields:
                fields[name] = tuple(fields[name])
        fields["mounts"] = tuple(
            (str(source), str(target), bool(read_only))
            for source, target, read_only in fields.get("mounts", ())
        )
        if fields.get("terminal") is not None:
            fields["terminal"] = WorkTerminal(**_known(fields["terminal"], WorkTerminal, lenient))
        fields["devices"] = tuple(
            WorkDevice(**_known(device, WorkDevice, lenient))
            for device in fields.get("devices", ())
        )
        work = Work(**fields)
    except TypeError as error:
        raise ValueError(f"not a valid work: {error}") from None
    _check(work)
    return work


def _known(message: Message, kind: type, lenient: bool) -> Message:
    if not lenient:
        return message
    if not isinstance(message, dict):
        raise ValueError(f"expected an object, found {type(message).__name__}")
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
    return {name: value for name, value in message.items() if name in names}


def _check(work: Work) -> None:
    for name in (
        "allocation_id",
        "workdir",
        "log_path",
        "scratch_dir",
        "runner",
        "script",
        "image_digest",
    ):
        if not isinstance(getattr(work, name), str):
            raise ValueError(f"{name} must be text")
    numbers = ("member", "uid", "gid", "umask", "limit_ms", "grace_ms", "warn_before_ms")
    for name in (*numbers, "lease_ms", "leased_ms", "prepare_ms", *OPTIONAL_FIELDS):
        if not isinstance(getattr(work, name), int):
            raise ValueError(f"{name} must be a whole number")
    if not work.allocation_id or "/" in work.allocation_id or work.allocation_id[0] == ".":
        raise ValueError(f"allocation_id {work.allocation_id!r} cannot name a file")
    for name in ("environment", "files"):
        if not isinstance(getattr(work, name), dict):
            raise ValueError(f"{name} must be an object")
    texts = (*work.argv, *work.environment, *work.environment.values(), *work.files.values())
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("argv, environment and files must hold texts")
    if any("\0" in text for text in texts):
        raise ValueError("argv and environment must not hold NUL characters")
    if not work.argv and not work.script and not work.image:
        raise ValueError("there is nothing to run: neither argv nor script nor image")


def encode_report(report: Report) -> Message:
    """The kind of the report is in the field `report`."""
    message: Message = {"report": type(report).__name__.lower()}
    message.update((name, getattr(report, name)) for name in type(report).__slots__)
    return message


def decode_report(message: Message) -> Report:
    """Fields of a later launcher that are unknown here are ignored."""
    kind = message.get("report")
    if not isinstance(kind, str) or kind not in _REPORTS:
        raise ValueError(f"no report is called {kind!r}")
    try:
        return _REPORTS[kind](**_known(message, _REPORTS[kind], lenient=True))
    except TypeError as error:
        raise ValueError(f"not a valid report: {error}") from None


def decode_over(message: Message | None) -> Over | None:
    """The end of an attempt that may not have one yet."""
    if message is None:
        return None
    report = decode_report(message)
    return report if isinstance(report, Over) else None
