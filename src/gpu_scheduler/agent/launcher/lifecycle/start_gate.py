"""The gate: a start waits here, ready up to the exec, until the command may run.

An attempt comes in with a step to take; the step is called once with "" to go on, or with the
reason why the attempt cannot. `StartGate` joins what starts as a process and what starts in a
session share: the barrier for members of a gang on this node, the commit for gangs over several
nodes, the journal record, and the timeouts. Invariant: the command runs only after its record is on
disk.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.context import AttemptEvents, LauncherContext
from gpu_scheduler.agent.launcher.leases import Leases
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase, journal_work
from gpu_scheduler.agent.launcher.loop import Loop, Timer, now_ms, wall_ms
from gpu_scheduler.agent.launcher_protocol import NOT_BEGUN, Began, Key, Prepared, Report

GANG = "gang"
"""Why a member that was ready itself is stopped; the server uses the same word."""
Step = Callable[[Attempt, str], None]


class StartTimeouts:
    """Calls back for attempts that have not reached the next step in time.

    One timer serves all attempts: most of them leave before it fires.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._due: dict[Key, tuple[int, Attempt, Callable[[Attempt], None]]] = {}
        self._timer: Timer | None = None

    def begin(self, attempt: Attempt, wait_ms: int, expired: Callable[[Attempt], None]) -> None:
        """Set the timeout of this attempt, in place of one that was set before."""
        due_ms = now_ms() + wait_ms
        self._due[attempt.key] = (due_ms, attempt, expired)
        if self._timer is None or due_ms < self._timer.due_ms:
            self._set_timer(due_ms)

    def cancel(self, attempt: Attempt) -> None:
        self._due.pop(attempt.key, None)

    def _set_timer(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(due_ms - now_ms(), self._check)

    def _check(self) -> None:
        self._timer = None
        now = now_ms()
        for due_ms, attempt, expired in list(self._due.values()):
            if due_ms <= now:
                self.cancel(attempt)
                self._loop.call(expired, attempt)
        if self._due:
            self._set_timer(min(due_ms for due_ms, _, _ in self._due.values()))


class GangBarrier:
    """Members of one gang on this node take a step together, or none of them does.

    `attempts` is the launcher's own table. Steps are called by `call`, so that an exception in one
    does not keep the others from being called.
    """

    def __init__(self, attempts: dict[Key, Attempt], call: Callable[..., object]) -> None:
        self._attempts = attempts
        self._call = call
        self._waiting: dict[str, dict[int, tuple[Attempt, Step]]] = {}

    def wait(self, attempt: Attempt, step: Step) -> None:
        """Call the step when all members wait, or when one of them has failed."""
        name, member = attempt.key
        if attempt.work.members_here <= 1 or attempt.stopped_by:
            step(attempt, "")
            return
        failed = [
            other
            for other in self._attempts.values()
            if other.key[0] == name
            and (other.start.timed_out or other.ending is not None or other.over is not None)
        ]
        if failed:
            # Name a member that failed by itself, not one that only waited for it.
            self._fail(attempt, step, min(failed, key=lambda other: other.stopped_by == GANG))
            return
        here = self._waiting.setdefault(name, {})
        here[member] = (attempt, step)
        if len(here) >= attempt.work.members_here:
            del self._waiting[name]
            for _, (ready, ready_step) in sorted(here.items()):
                self._call(ready_step, ready, "")

    def leave(self, attempt: Attempt) -> None:
        """A member is to stop: its step is called now, and checks for that."""
        found = self._waiting.get(attempt.key[0], {}).pop(attempt.key[1], None)
        if found is not None:
            self._call(found[1], attempt, "")

    def time_out(self, name: str, reason: str) -> None:
        """End the wait of all members: none of them is the one that is missing."""
        for _, (attempt, step) in sorted(self._waiting.pop(name, {}).items()):
            attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
            self._call(step, attempt, reason)

    def member_failed(self, attempt: Attempt) -> None:
        """A member has ended or timed out: the others wait no longer."""
        waiting = self._waiting.pop(attempt.key[0], {})
        waiting.pop(attempt.key[1], None)
        for _, (other, step) in sorted(waiting.items()):
            self._fail(other, step, attempt)

    def _fail(self, attempt: Attempt, step: Step, failed: Attempt) -> None:
        attempt.stopped_by = attempt.stopped_by or GANG
        self._call(step, attempt, f"member {failed.key[1]} of the gang did not get ready")


class CommitGate:
    """Members of gangs over several nodes wait here, prepared, for the commit of the server.

    The server sends it once, when the members on all nodes are prepared and that is stored. A
    member without a commit gives up after its own timeout, even without agent and server; a commit
    that comes later is refused.
    """

    def __init__(
        self, attempts: dict[Key, Attempt], loop: Loop, report: Callable[[Report], None]
    ) -> None:
        self._attempts = attempts
        self._loop = loop
        self._report = report
        self._waiting: dict[Key, tuple[Attempt, Step, Timer]] = {}

    def wait(self, attempt: Attempt, step: Step) -> None:
        """Report that all is prepared, and wait; work that needs no commit goes on at once."""
        if not attempt.work.prepare_ms or attempt.stopped_by:
            step(attempt, "")
            return
        attempt.start.prepared = True
        timer = self._loop.after(attempt.work.prepare_ms, self._time_out, attempt)
        self._waiting[attempt.key] = (attempt, step, timer)
        self._report(prepared_report(attempt))

    def commit(self, key: Key, prepare: Callable[[Attempt], None]) -> str:
        """Let a member run; returns the reason if it cannot.

        `prepare` adds to the attempt what came with the commit.
        """
        attempt = self._attempts.get(key)
        if attempt is None:
            return f"{key[0]} member {key[1]} is not known on this node"
        if attempt.start.committed or attempt.start.released or (attempt.over and attempt.over.ran):
            # A repeated commit, perhaps to the successor of the launcher that let it run.
            return ""
        if key not in self._waiting:
            return f"{key[0]} member {key[1]} does not wait for a commit any more"
        try:
            prepare(attempt)
        except OSError as error:
            self._end_wait(attempt, f"cannot prepare the job: {error}")
            return ""
        attempt.start.committed = True
        self._end_wait(attempt, "")
        return ""

    def leave(self, attempt: Attempt) -> None:
        """A member is to stop: its step is called now, and checks for that."""
        self._end_wait(attempt, "")

    def member_failed(self, attempt: Attempt) -> None:
        """A member has ended: the members of its gang that wait here cannot run."""
        self._forget(attempt)
        for other in self._members(attempt.key[0]):
            other.stopped_by = other.stopped_by or GANG
            self._end_wait(other, f"member {attempt.key[1]} of the gang did not get ready")

    def _time_out(self, attempt: Attempt) -> None:
        """No commit came: all members that wait for it give up, and none of them is to blame."""
        seconds = attempt.work.prepare_ms / 1000
        for member in self._members(attempt.key[0]):
            member.stopped_by = member.stopped_by or NOT_BEGUN
            self._end_wait(member, f"it was prepared, and no commit came within {seconds:g} s")

    def _members(self, name: str) -> list[Attempt]:
        return [self._waiting[key][0] for key in sorted(self._waiting) if key[0] == name]

    def _end_wait(self, attempt: Attempt, reason: str) -> None:
        step = self._forget(attempt)
        if step is not None:
            self._loop.call(step, attempt, reason)

    def _forget(self, attempt: Attempt) -> Step | None:
        found = self._waiting.pop(attempt.key, None)
        if found is None:
            return None
        found[2].cancel()
        attempt.start.prepared = False
        return found[1]


def prepared_report(attempt: Attempt) -> Prepared:
    """That it waits for its commit."""
    return Prepared(allocation_id=attempt.key[0], member=attempt.key[1], at_ms=wall_ms())


def began_report(attempt: Attempt) -> Began:
    """That its command runs, since when, and as which process."""
    return Began(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        pid=attempt.job_pid or attempt.pid,
        at_ms=attempt.began_wall_ms,
    )


class StartGate:
    """The steps from a ready child to its running command."""

    def __init__(self, context: LauncherContext, leases: Leases, events: AttemptEvents) -> None:
        self._context = context
        self._leases = leases
        self._events = events
        self._barrier = GangBarrier(context.attempts, context.loop.call)
        self.commits = CommitGate(context.attempts, context.loop, context.report)
        self.timeouts = StartTimeouts(context.loop)

    def wait_for_gang(self, attempt: Attempt, step: Step) -> None:
        """Wait for the members on this node, and for the commit if there are others elsewhere."""

        def all_here(ready: Attempt, reason: str) -> None:
            self.timeouts.cancel(ready)
            if reason:
                step(ready, reason)
            else:
                self.commits.wait(ready, step)

        self.timeouts.begin(attempt, _gang_timeout_ms(attempt), self._gang_timed_out)
        self._barrier.wait(attempt, all_here)

    def _gang_timed_out(self, attempt: Attempt) -> None:
        seconds = _gang_timeout_ms(attempt) / 1000
        reason = f"not all members of the gang were ready within {seconds:g} s"
        self._barrier.time_out(attempt.key[0], reason)

    def record_start(self, attempt: Attempt, step: Step) -> None:
        """Write who will run: pid, start time and boot are enough to find it again."""
        attempt.ticks = processes.start_ticks(attempt.pid)
        attempt.began_ms = now_ms()
        attempt.began_wall_ms = wall_ms()
        attempt.journal_records.clear()
        record = attempt.add_record(
            "began",
            work=journal_work(attempt.work),
            pid=attempt.pid,
            ticks=attempt.ticks,
            boot=self._context.boot,
            at_ms=attempt.began_wall_ms,
            boot_ms=attempt.began_ms,
            groups=attempt.group.paths,
            memory_group=attempt.group.memory_path,
        )
        self._leases.begin(attempt, self._context.boot)
        self._context.journal.append(record, step, attempt)

    def record_member(self, attempt: Attempt, step: Step) -> None:
        """Write the record of a member; without a commit, wait for those of all members."""

        def recorded(member: Attempt, error: str) -> None:
            if error or member.start.committed:
                step(member, error)
            else:
                self._barrier.wait(member, step)

        self.record_start(attempt, recorded)

    def set_running(self, attempt: Attempt, pid: int) -> None:
        """The command runs as this process: report it."""
        self.timeouts.cancel(attempt)
        attempt.phase = Phase.RUNNING
        attempt.job_pid = pid
        self._context.report(began_report(attempt))
        self._events.command_started(attempt)

    def close(self, attempt: Attempt) -> None:
        """Close the gate of the child; a child that was not released ends."""
        if attempt.start.gate is not None:
            self._context.loop.drop(attempt.start.gate.fileno())
            attempt.start.gate.close()
            attempt.start.gate = None

    def leave(self, attempt: Attempt) -> None:
        """It is to stop: what waits for others here takes its step now, which checks for that."""
        self._barrier.leave(attempt)
        self.commits.leave(attempt)

    def member_failed(self, attempt: Attempt) -> None:
        """It will not start, or has ended: other members of its gang wait no longer."""
        self.timeouts.cancel(attempt)
        self._barrier.member_failed(attempt)
        self.commits.member_failed(attempt)


def _gang_timeout_ms(attempt: Attempt) -> int:
    """By then the other members on this node are ready, or have timed out themselves."""
    work = attempt.work
    return 2 * work.start_timeout_ms + (work.hook_timeout_ms if work.prolog else 0)
