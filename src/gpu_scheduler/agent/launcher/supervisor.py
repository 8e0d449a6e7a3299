"""The launcher's heart: orders in, reports out, everything safe to repeat.

It holds the table of attempts and moves each through its phases with the help of `starting`,
`stopping` and `closing`. `settle` is called after every turn of the loop and makes durable what the
turn has gathered, with one write for all.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable

from gpu_scheduler.agent.launcher import logs, processes, scratch
from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.leases import LEASE, TOO_LATE
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase, concerned
from gpu_scheduler.agent.launcher.lifecycle.cleanup import BROKEN, Closer
from gpu_scheduler.agent.launcher.lifecycle.gang import prepared_report
from gpu_scheduler.agent.launcher.lifecycle.start import Starter
from gpu_scheduler.agent.launcher.lifecycle.stop import Stopper
from gpu_scheduler.agent.launcher.loop import now_ms, wall_ms, write_down
from gpu_scheduler.agent.launcher.messages import Form, Key, report_form
from gpu_scheduler.agent.launcher.scratch import newly_saved, saved_report
from gpu_scheduler.agent.spawn.spawner import Launch
from gpu_scheduler.agent.work import Began, Over, Report, Work

BATCH = 16
"""Forks between two commits: enough to share a sync, few enough to answer soon."""
LOOK_MS = 1_000
CLOSE_MS = 500
REWRITE_BYTES = 1 << 20
WARN_MS = 10_000
SYNC_MS = 100
"""So long the disk may take its time with ends that were written and reported."""
Done = Callable[[str], None]


class Supervisor:
    """Starts, stops and forgets attempts. Every `done` hears "" or what went wrong."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.closer = Closer(kit)
        self.starter = Starter(kit, self.closer.refuse, self.closer.ended, self._runs)
        self.closer.gone = self._gone
        self.stopper = Stopper(kit)
        kit.leases.stop = lambda key, grace_ms: self.stop(key, LEASE, grace_ms, lambda _: None)
        self._waiting: deque[tuple[Attempt, Done]] = deque()
        self._wanted_stops: dict[Key, tuple[str, int | None]] = {}
        self._looking = False
        self._syncing = False
        self._forgotten = 0
        kit.loop.failed = self._failed

    # --- orders -----------------------------------------------------------------------------------

    def start(self, work: Work, done: Done) -> None:
        """Begin this work unless it was ever begun or stopped before."""
        key = (work.allocation_id, work.member)
        if key in self._kit.attempts:
            done("")
            return
        attempt = Attempt(work, self._kit.runners.get(work.runner))
        self._kit.attempts[key] = attempt
        if work.lease_ms and work.leased_ms + work.lease_ms <= now_ms():
            attempt.stopped_by = LEASE
            self.closer.settle(attempt, _never_began(attempt, LEASE, TOO_LATE))
            done("")
            return
        self._kit.leases.expect(attempt)
        self._waiting.append((attempt, done))

    def reject(self, key: Key, why: str, done: Done) -> None:
        """An order that cannot be followed ends what it names, unless that is known already."""
        if key not in self._kit.attempts:
            attempt = Attempt(Work(allocation_id=key[0], member=key[1]), None)
            self._kit.attempts[key] = attempt
            self.closer.settle(attempt, _never_began(attempt, "", why))
        done("")

    def stop(self, key: Key, why: str, grace_ms: int | None, done: Done) -> None:
        """Stop it; what has not begun never will."""
        attempt = self._kit.attempts.get(key)
        if attempt is None:
            attempt = Attempt(Work(allocation_id=key[0], member=key[1]), None)
            self._kit.attempts[key] = attempt
        if attempt.phase is Phase.WAITING:
            attempt.stopped_by = why
            self.closer.settle(attempt, _never_began(attempt, why, "stopped before it began"))
        elif attempt.phase is Phase.PROLOG:
            attempt.stopped_by = attempt.stopped_by or why
            processes.send_to_group(attempt.pid, signal.SIGKILL)
            processes.send([attempt.pid], signal.SIGKILL)
        elif attempt.phase is Phase.GATE and not attempt.said_go:
            attempt.stopped_by = attempt.stopped_by or why
            self.starter.gangs.leave(attempt)
            self.starter.commits.leave(attempt)
            self.stopper.end_at_gate(attempt, grace_ms)
        elif attempt.phase is Phase.GATE:
            self._wanted_stops[key] = (why, grace_ms)
            self.stopper.end_at_gate(attempt, grace_ms)
        else:
            self.stopper.stop(attempt, why, grace_ms)
        done("")

    def commit(
        self, key: Key, environment: dict[str, str], files: dict[str, str], done: Done
    ) -> None:
        """Let a prepared member run, with what was not known when it was prepared."""

        def prepare(attempt: Attempt) -> None:
            attempt.late_environment = environment
            if attempt.work.scratch_dir and files:
                scratch.add(attempt.work, files)

        done(self.starter.commits.commit(key, prepare))

    def warn(self, key: Key, text: str, done: Done) -> None:
        """Write a line into the log of what runs; into a file that the user named, as the user."""
        attempt = self._kit.attempts.get(key)
        work = None if attempt is None else attempt.work
        line = f"tgpu: {' '.join(text.split())}\n"
        if work is not None and work.log_of_user:
            launch = Launch(
                argv=("printf", "%s", line),
                environment={"PATH": "/usr/bin:/bin"},
                uid=work.uid,
                gid=work.gid,
                user=work.user,
                log_of_user=work.log_path,
                log_umask=work.umask,
            )
            self._kit.errands.run(launch, WARN_MS, lambda *_: None)
        elif work is not None:
            logs.note(work, line)
        done("")

    def errand(self, form: Form, done: Callable[[bool, str], None]) -> None:
        """Run a short command as some user; what it leaves running is not taken for a job's."""
        launch = self._kit.helper_launch(
            tuple(map(str, form["argv"])), {str(k): str(v) for k, v in form["environment"].items()}
        )
        launch.uid, launch.gid, launch.user = int(form["uid"]), int(form["gid"]), str(form["user"])
        mark = self._kit.mark
        if launch.uid != os.geteuid():
            mark = f"{mark}.{os.urandom(8).hex()}"
            launch.environment["TGPU_HELPER"] = mark

        def ended(well: bool, text: str) -> None:
            self._kit.census.leave_alone(mark)
            done(well, text)

        self._kit.errands.run(launch, int(form["timeout_ms"]), ended)

    def forget(self, key: Key, done: Done) -> None:
        """Drop the record of what is over."""
        attempt = self._kit.attempts.get(key)
        if attempt is None:
            done("")
            return
        if attempt.over is None:
            done(f"{key[0]} member {key[1]} is not over; it can be forgotten when it is")
            return
        del self._kit.attempts[key]
        self._forgotten += 1
        self._kit.journal.append_lazily(
            {"kind": "forget", "allocation_id": key[0], "member": key[1]}
        )
        if attempt.work.scratch_dir:
            scratch.clear(attempt.work.scratch_dir, self._kit.spares)
        done("")

    @property
    def is_idle(self) -> bool:
        """Tell whether all that was ever begun is over."""
        return all(attempt.phase is Phase.OVER for attempt in self._kit.attempts.values())

    def held(self) -> list[Form]:
        """Everything that was not forgotten, with its end if it has one."""
        return [
            {
                "allocation_id": attempt.key[0],
                "member": attempt.key[1],
                "over": None if attempt.over is None else report_form(attempt.over),
            }
            for attempt in self._kit.attempts.values()
        ]

    def current_reports(self) -> list[Report]:
        """What an agent that has just come must hear: what runs, and every end it may not know."""
        found: list[Report] = []
        for attempt in self._kit.attempts.values():
            if attempt.over is not None:
                if attempt.checkpoint_ns:
                    found.append(saved_report(attempt))
                found.append(attempt.over)
            elif attempt.prepared:
                found.append(prepared_report(attempt))
            elif attempt.phase is Phase.RUNNING:
                found.append(_began(attempt))
                if attempt.checkpoint_ns:
                    found.append(saved_report(attempt))
        return found

    def describe(self) -> Form:
        """What is enforced on this node, and which runners it has."""
        capabilities: Form = dict(self._kit.limits.capabilities())
        trial = Work(allocation_id="x", scratch_dir="/tmp", image="x", uid=0)  # noqa: S108
        capabilities["runners"] = sorted(
            name
            for name, runner in self._kit.runners.items()
            if name == "process" or not runner.missing(trial)
        )
        return capabilities

    def renew(self, asked_ms: int, done: Done) -> None:
        """Whoever may decide that has said yes to what the agent asked at this time."""
        self._kit.leases.renew(asked_ms)
        done("")

    # --- every turn -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Fork what waits, make everything durable, let it out."""
        self._kit.census.turn_over()
        for _ in range(min(BATCH, len(self._waiting))):
            attempt, done = self._waiting.popleft()
            if attempt.phase is Phase.WAITING:
                attempt.recorded = done
                self._kit.loop.call(self.starter.begin, attempt, done)
            else:
                done("")
        self._kit.spawner.collect()
        while self._kit.journal.commit():
            self._kit.spawner.collect()
        if self._waiting:
            self._kit.loop.after(0, lambda: None)
        if self._kit.journal.unsynced and not self._syncing:
            self._syncing = True
            self._kit.loop.after(SYNC_MS, self._sync)
        if self._forgotten > 500 and self._kit.journal.size > REWRITE_BYTES:
            self._rewrite()

    def _failed(self, error: Exception) -> None:
        """Something failed that never should. What it was about is closed, all else goes on."""
        write_down(error)
        attempt = concerned(error)
        if attempt is not None and attempt.over is None:
            again = BROKEN in attempt.details
            self._kit.loop.after(CLOSE_MS if again else 0, lambda: self.closer.broken(attempt))

    def _sync(self) -> None:
        self._syncing = False
        if self._kit.journal.unsynced:
            self._kit.journal.sync()

    def _rewrite(self) -> None:
        self._forgotten = 0
        try:
            self._kit.journal.rewrite(self.records())
        except OSError:
            return

    def records(self) -> list[Form]:
        """All that the next launcher has to know."""
        forms = [form for attempt in self._kit.attempts.values() for form in attempt.records]
        return forms + self.closer.removals.records()

    def _gone(self, attempt: Attempt) -> None:
        """It is at its end; heard at least once of each."""
        wanted = self._wanted_stops.pop(attempt.key, None)
        if wanted is not None:
            # It never heard that it may run, and so was ended before it did.
            attempt.stopped_by = attempt.stopped_by or wanted[0]
        self._kit.leases.gone(attempt)
        self.starter.times.leave(attempt)
        self.starter.gangs.gone(attempt)
        self.starter.commits.gone(attempt)

    def _runs(self, attempt: Attempt) -> None:
        """The command has begun."""
        self.stopper.arm(attempt)
        self.look_after()
        wanted = self._wanted_stops.pop(attempt.key, None)
        if wanted is not None:
            self.stopper.stop(attempt, *wanted)

    def look_after(self) -> None:
        """Look at logs and checkpoints about once a second, while anything runs."""
        if not self._looking:
            self._looking = True
            self._kit.loop.after(LOOK_MS, self._look)

    def _look(self) -> None:
        self._looking = False
        running = [a for a in self._kit.attempts.values() if a.phase is Phase.RUNNING]
        for attempt in running:
            logs.cap(attempt.work)
            if saved := newly_saved(attempt):
                self._kit.report(saved)
        if running:
            self.look_after()


def _never_began(attempt: Attempt, why: str, detail: str) -> Over:
    return Over(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        exit_code=None,
        signal=None,
        ran=False,
        at_ms=wall_ms(),
        run_ms=0,
        stopped_by=why,
        detail=detail,
    )


def _began(attempt: Attempt) -> Began:
    return Began(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        pid=attempt.job_pid or attempt.pid,
        at_ms=attempt.began_wall_ms,
    )
