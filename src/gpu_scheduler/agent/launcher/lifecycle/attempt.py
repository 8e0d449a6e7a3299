"""One member of one attempt, as the launcher sees it."""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable

from gpu_scheduler.agent.cgroups.groups import Group
from gpu_scheduler.agent.launcher.loop import Timer
from gpu_scheduler.agent.launcher.messages import Form, Key, report_form, work_form
from gpu_scheduler.agent.runners.interface import Ending, Runner
from gpu_scheduler.agent.work import Over, Work

_OURS = ("TGPU_LAUNCHER", "TGPU_HELPER")
_TOLD_TO_HOOKS = ("TGPU_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


class Phase(enum.Enum):
    """Where an attempt stands. It only moves forward."""

    WAITING = "waiting"
    PROLOG = "prolog"
    GATE = "gate"
    RUNNING = "running"
    CLEARING = "clearing"
    OVER = "over"


class Attempt:
    """State that the launcher's parts share. `pid` is the process whose end is the job's end.

    For a session that is the shim, `opener` the child of ours that opened it, and `job_pid` the
    command itself by the shim's word, with `job_ticks`, when it began. `adopted` attempts were
    begun by a launcher that has died; we are not the parent of their processes. What came with the
    commit is the `late_environment`. `heard` is the last signal that a container's engine has
    passed on; one that is `engine_silent` has not told of its container to the end.
    """

    __slots__ = (
        "adopted",
        "began_ms",
        "began_wall_ms",
        "checkpoint_ns",
        "closing",
        "committed",
        "details",
        "empty_looks",
        "ended_ms",
        "ending",
        "engine_silent",
        "epilog_failed",
        "gate",
        "given_up",
        "group",
        "heard",
        "job_pid",
        "job_ticks",
        "key",
        "kill_at_ms",
        "killed",
        "late_environment",
        "listener",
        "opener",
        "over",
        "phase",
        "pid",
        "pidfd",
        "prepared",
        "prolog_failed",
        "recorded",
        "records",
        "runner",
        "said_go",
        "stopped_by",
        "termed",
        "ticks",
        "timers",
        "warned",
        "work",
    )

    def __init__(self, work: Work, runner: Runner | None) -> None:
        self.key: Key = (work.allocation_id, work.member)
        self.work = work
        self.runner = runner
        self.phase = Phase.WAITING
        self.group = Group()
        self.pid = 0
        self.job_pid = 0
        self.job_ticks = 0
        self.opener = 0
        self.recorded: Callable[[str], None] = lambda _: None
        self.ticks = 0
        self.pidfd = -1
        self.adopted = False
        self.gate: socket.socket | None = None
        self.listener: socket.socket | None = None
        self.said_go = False
        self.given_up = False
        self.prepared = False
        self.committed = False
        self.late_environment: dict[str, str] = {}
        self.began_ms = 0
        self.began_wall_ms = 0
        self.ended_ms = 0
        self.ending: Ending | None = None
        self.engine_silent = False
        self.heard = 0
        self.details: list[str] = []
        self.prolog_failed = ""
        self.epilog_failed = ""
        self.stopped_by = ""
        self.warned = False
        self.termed = False
        self.killed = False
        self.closing = False
        self.kill_at_ms = 0
        self.empty_looks = 0
        self.checkpoint_ns = 0
        self.timers: list[Timer] = []
        self.records: list[Form] = []
        self.over: Over | None = None

    @property
    def name(self) -> str:
        """Names files and control groups."""
        return f"{self.key[0]}.{self.key[1]}"

    @property
    def waits_at_gate(self) -> bool:
        """Tell whether it waits for others when it is ready."""
        return self.work.members_here > 1 or self.work.prepare_ms > 0

    @property
    def is_session(self) -> bool:
        return self.work.runner in {"tmux", "screen", "terminal"}

    def record(self, kind: str, **more: object) -> Form:
        """A journal record of this attempt, remembered for when the journal is rewritten."""
        form: Form = {"kind": kind, "allocation_id": self.key[0], "member": self.key[1], **more}
        self.records.append(form)
        return form

    def keep(self, timer: Timer) -> None:
        """Take a timer along, to be cancelled with the others; those that have rung are let go.

        A process that cannot be killed is tried again for as long as it is there.
        """
        self.timers = [one for one in self.timers if one.callback is not None]
        self.timers.append(timer)

    def cancel_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


def concerned(error: Exception) -> Attempt | None:
    """The attempt over which something failed, found in what was being done."""
    found: Attempt | None = None
    step = error.__traceback__
    while step is not None:
        attempt = step.tb_frame.f_locals.get("attempt")
        found = attempt if isinstance(attempt, Attempt) else found
        step = step.tb_next
    return found


def kept_work(work: Work) -> Form:
    """What recovery needs of a work. Its environment may hold secrets and stays off the disk."""
    form = work_form(work)
    form["environment"] = hook_environment(work)
    form.pop("script", None)
    form.pop("files", None)
    form["argv"] = work.argv[:1] or ("script",)
    return form


def hook_environment(work: Work) -> dict[str, str]:
    """What prolog and epilog are told of the job."""
    own = {
        name: value
        for name, value in work.environment.items()
        if name.startswith(_TOLD_TO_HOOKS) and name not in _OURS
    }
    own.update(
        TGPU_ALLOCATION_ID=work.allocation_id,
        TGPU_MEMBER=str(work.member),
        TGPU_JOB_ID=work.job_id,
        TGPU_USER=work.user,
        TGPU_UID=str(work.uid),
    )
    return own


def end_record(attempt: Attempt, over: Over) -> Form:
    """Replaces every record before it."""
    attempt.records.clear()
    return attempt.record(
        "end", over=report_form(over), scratch_dir=attempt.work.scratch_dir, uid=attempt.work.uid
    )
