"""The state of one attempt: one member of one allocation, from its order until it is forgotten."""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_scheduler.agent.cgroups import Group
from gpu_scheduler.agent.launcher.loop import Timer
from gpu_scheduler.agent.launcher_protocol import (
    Key,
    Message,
    Over,
    Work,
    encode_report,
    encode_work,
    in_rootless_container,
)
from gpu_scheduler.agent.runners.interface import Ending, Runner

_HOOK_VARIABLES = frozenset(
    {
        *("TGPU_JOB_NUMBER", "TGPU_ATTEMPT", "TGPU_ARRAY_INDEX", "TGPU_SERVICE_PORT"),
        *("TGPU_CHECKPOINT_FILE", "TGPU_STOP_FILE", "TGPU_GPU_SHARE", "TGPU_GPU_SHARING"),
        *("TGPU_NODELIST", "TGPU_HOSTFILE", "TGPU_MACHINEFILE"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    }
)
"""The variables that the agent sets and takes from no submitter: hooks run as root, and fail with
a variable that is too long."""


class Phase(enum.Enum):
    """How far an attempt is. It only moves forward."""

    QUEUED = "queued"
    PROLOG = "prolog"
    GATE = "gate"
    RUNNING = "running"
    CLEANUP = "cleanup"
    OVER = "over"


@dataclass(slots=True, eq=False)
class StartState:
    """How far a start is. `released`: the command was told to run.

    `gate` is our end of the child's gate, `listener` the gate for the shim of a session.
    `timed_out`: it was killed because it was not released in time. `prepared`: it waits for the
    commit of its gang, with which `commit_environment` comes.
    """

    gate: socket.socket | None = None
    listener: socket.socket | None = None
    released: bool = False
    timed_out: bool = False
    prepared: bool = False
    committed: bool = False
    commit_environment: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class StopState:
    """How far a stop is. SIGKILL is due at `kill_at_ms`; 0 while there is no stop.

    `pending` (reason, grace) arrived between the release and the start of the command.
    `delivered_signal` is the last signal that a container engine has passed on.
    """

    pending: tuple[str, int | None] | None = None
    warned: bool = False
    sigterm_sent: bool = False
    sigkill_sent: bool = False
    kill_at_ms: int = 0
    delivered_signal: int = 0


@dataclass(slots=True, eq=False)
class Attempt:
    """What the launcher knows about an attempt. The parts of the launcher read and change it.

    `pid` is the process whose end is the job's end. In a session that is the shim; `opener_pid` is
    then the child of ours that opened the session, and `job_pid` the command itself as the shim
    reported it, with its start time `job_ticks`. An `adopted` attempt was started by a launcher
    that has died, so we are not the parent of its processes; `pidfd` watches such a process, and
    the shim. An `engine_unresponsive` attempt has a container whose end the engine did not report.
    `container_phase` is how far its engine was at the last report, if there was one.
    """

    work: Work
    runner: Runner | None = None
    key: Key = field(init=False)
    phase: Phase = Phase.QUEUED
    start: StartState = field(default_factory=StartState)
    stop: StopState = field(default_factory=StopState)
    answer_start: Callable[[str], None] | None = None
    group: Group = field(default_factory=Group)
    pid: int = 0
    ticks: int = 0
    job_pid: int = 0
    job_ticks: int = 0
    opener_pid: int = 0
    pidfd: int = -1
    adopted: bool = False
    began_ms: int = 0
    began_wall_ms: int = 0
    ended_ms: int = 0
    ending: Ending | None = None
    engine_unresponsive: bool = False
    container_phase: str = ""
    details: list[str] = field(default_factory=list)
    prolog_failed: str = ""
    epilog_failed: str = ""
    stopped_by: str = ""
    cleaning_up: bool = False
    empty_scans: int = 0
    checkpoint_ns: int = 0
    timers: list[Timer] = field(default_factory=list)
    journal_records: list[Message] = field(default_factory=list)
    over: Over | None = None

    def __post_init__(self) -> None:
        self.key = (self.work.allocation_id, self.work.member)

    @property
    def name(self) -> str:
        """Names files and control groups."""
        return f"{self.key[0]}.{self.key[1]}"

    @property
    def waits_for_others(self) -> bool:
        """Tell whether it waits at the gate for other members of its gang."""
        return self.work.members_here > 1 or self.work.prepare_ms > 0

    @property
    def is_session(self) -> bool:
        return self.work.runner in {"tmux", "screen", "terminal"}

    @property
    def in_rootless_container(self) -> bool:
        return in_rootless_container(self.work)

    @property
    def has_engine(self) -> bool:
        """Whether signals and the end go through a container engine of root."""
        return self.work.runner == "container" and not self.in_rootless_container

    @property
    def has_reporter(self) -> bool:
        """Whether processes beside the job report its end: a shim, or podman of the job's user."""
        return self.is_session or self.in_rootless_container

    def acknowledge_start(self) -> None:
        """Answer the order to start, once: the attempt is on disk, or has failed."""
        if self.answer_start is not None:
            answer, self.answer_start = self.answer_start, None
            answer("")

    def add_record(self, kind: str, **fields: object) -> Message:
        """Make a journal record of this attempt, and keep it for when the journal is rewritten."""
        record: Message = {
            "kind": kind,
            "allocation_id": self.key[0],
            "member": self.key[1],
            **fields,
        }
        self.journal_records.append(record)
        return record

    def add_end_record(self, over: Over) -> Message:
        """The record of the end replaces every record before it."""
        self.journal_records.clear()
        return self.add_record(
            "end", over=encode_report(over), scratch_dir=self.work.scratch_dir, uid=self.work.uid
        )

    def add_timer(self, timer: Timer) -> None:
        """Keep a timer for `cancel_timers`, and drop those that have fired.

        A process that cannot be killed gets another timer for as long as it is there.
        """
        self.timers = [one for one in self.timers if one.callback is not None]
        self.timers.append(timer)

    def cancel_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


def journal_work(work: Work) -> Message:
    """What recovery needs of a work. Its environment may hold secrets and stays off the disk."""
    message = encode_work(work)
    message["environment"] = hook_environment(work)
    message.pop("script", None)
    message.pop("files", None)
    message["argv"] = work.argv[:1] or ("script",)
    return message


def hook_environment(work: Work) -> dict[str, str]:
    """The job's variables for prolog and epilog; none that its user chose."""
    variables = {name: value for name, value in work.environment.items() if name in _HOOK_VARIABLES}
    variables.update(
        TGPU_ALLOCATION_ID=work.allocation_id,
        TGPU_MEMBER=str(work.member),
        TGPU_JOB_ID=work.job_id,
        TGPU_USER=work.user,
        TGPU_UID=str(work.uid),
    )
    return variables
