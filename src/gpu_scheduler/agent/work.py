"""The values between agent and launcher: `Work` goes to the launcher, reports come back.

Plain values that can be sent as JSON, because the launcher is a small process that must not load
large libraries. One `Work` is one member of one attempt; (allocation_id, member) identifies it, and
starting it twice is harmless. Field names and the names of the report classes are the wire format
and the journal format of launchers that still run: they never change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NOT_BEGUN = "not_begun"
"""Stop reason of work of which nothing has run, so that it can be tried again; the server uses the
same word."""


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
    launcher waits for a container engine no longer than `engine_timeout_ms`.
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
    files: dict[str, str] = field(default_factory=dict)


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
    """Nothing of the work runs any more.

    `exit_code` and `signal` are both None if the end was not seen, as the launcher had died; they
    are never guessed. `ran` is False if the command never ran, with the reason in `detail`.
    `stopped_by` is why the launcher stopped it: timeout, or the reason given with the order to
    stop. `prolog_failed` and `epilog_failed` say how the site's own commands around it failed, and
    are empty if they did not.
    """

    allocation_id: str
    member: int
    exit_code: int | None = None
    signal: int | None = None
    ran: bool
    at_ms: int
    run_ms: int = 0
    stopped_by: str = ""
    detail: str = ""
    prolog_failed: str = ""
    epilog_failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The job has touched its checkpoint file."""

    allocation_id: str
    member: int
    at_ms: int


Report = Prepared | Began | Over | Saved
