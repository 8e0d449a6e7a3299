"""The supervisor: orders come in, reports go out, and every order may be repeated.

It holds the table of attempts and moves each through its phases: `Starter` and `StartGate` start
it, `Stopper` signals it, `Cleanup` removes what it leaves. These parts do not know each other; they
report to the supervisor through `AttemptEvents`, and it calls the next part. `commit_turn` runs
after every turn of the event loop and makes durable what the turn has gathered, with one write.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable

from gpu_scheduler.agent.launcher import log_rotation, processes, scratch
from gpu_scheduler.agent.launcher.context import LauncherContext, ignore_result
from gpu_scheduler.agent.launcher.leases import LEASE, TOO_LATE, Leases
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.lifecycle.cleanup import Cleanup
from gpu_scheduler.agent.launcher.lifecycle.containers import container_report
from gpu_scheduler.agent.launcher.lifecycle.start import Starter
from gpu_scheduler.agent.launcher.lifecycle.start_gate import (
    StartGate,
    began_report,
    prepared_report,
)
from gpu_scheduler.agent.launcher.lifecycle.stop import Stopper
from gpu_scheduler.agent.launcher.loop import Arguments, log_error, now_ms, wall_ms
from gpu_scheduler.agent.launcher_protocol import Key, Message, Over, Report, Work, encode_report
from gpu_scheduler.agent.runners.interface import Ending
from gpu_scheduler.agent.spawn.spawner import NEVER_RELEASED

BATCH = 16
"""Forks between two commits: enough to share a sync, few enough to answer soon."""
CHECK_FILES_MS = 1_000
ABORT_AGAIN_MS = 500
REWRITE_BYTES = 1 << 20
REWRITE_FORGOTTEN = 500
WARN_TIMEOUT_MS = 10_000
SYNC_MS = 100
"""Ends that were written and reported are synced to disk within this time."""
WRITE_RETRY_MS = 1_000
FAILED = "the launcher failed over this job and ended it; its log tells more"
Done = Callable[[str], None]
"""Answers an order, with "" or with what went wrong."""


class Supervisor:
    """Carries out orders, and implements `AttemptEvents`."""

    def __init__(self, context: LauncherContext) -> None:
        self._context = context
        self.leases = Leases(
            context.loop, context.directory, context.attempts, context.mark, self._lease_ends
        )
        self.gate = StartGate(context, self.leases, self)
        self.starter = Starter(context, self.gate, self)
        self.stopper = Stopper(context)
        self.cleanup = Cleanup(context, self)
        self._queue: deque[tuple[Attempt, Done]] = deque()
        self._checks_files = False
        self._sync_scheduled = False
        self._forgotten = 0
        context.loop.on_error = self.on_error

    # Orders

    def start(self, work: Work, done: Done) -> None:
        """Start this work, unless it was ever started or stopped before; `done` when that is so."""
        key = (work.allocation_id, work.member)
        if key in self._context.attempts:
            done("")
            return
        attempt = Attempt(work, self._context.runners.get(work.runner))
        self._context.attempts[key] = attempt
        if work.lease_ms and work.leased_ms + work.lease_ms <= now_ms():
            attempt.stopped_by = LEASE
            self.cleanup_finished(attempt, _never_ran(attempt, LEASE, TOO_LATE))
            done("")
            return
        self.leases.expect(attempt)
        self._queue.append((attempt, done))

    def reject(self, key: Key, reason: str) -> None:
        """An order that cannot be read ends the work that it names, unless that is known."""
        if key not in self._context.attempts:
            attempt = self._add_unknown(key)
            self.cleanup_finished(attempt, _never_ran(attempt, "", reason))

    def stop(self, key: Key, reason: str, grace_ms: int | None) -> None:
        """Stop it; what has not begun never will."""
        attempt = self._context.attempts.get(key) or self._add_unknown(key)
        self._stop(attempt, reason, grace_ms)

    def _add_unknown(self, key: Key) -> Attempt:
        attempt = Attempt(Work(allocation_id=key[0], member=key[1]))
        self._context.attempts[key] = attempt
        return attempt

    def _stop(self, attempt: Attempt, reason: str, grace_ms: int | None) -> None:
        if attempt.phase is Phase.QUEUED:
            attempt.stopped_by = reason
            over = _never_ran(attempt, reason, "stopped before it began")
            self.cleanup_finished(attempt, over)
        elif attempt.phase is Phase.PROLOG:
            attempt.stopped_by = attempt.stopped_by or reason
            processes.send_to_group(attempt.pid, signal.SIGKILL)
            processes.send([attempt.pid], signal.SIGKILL)
        elif attempt.phase is Phase.GATE and not attempt.start.released:
            attempt.stopped_by = attempt.stopped_by or reason
            self.gate.leave(attempt)
            self.stopper.end_at_gate(attempt, grace_ms)
        elif attempt.phase is Phase.GATE:
            attempt.stop.pending = (reason, grace_ms)
            self.stopper.end_at_gate(attempt, grace_ms)
        else:
            self.stopper.stop(attempt, reason, grace_ms)

    def commit(self, key: Key, environment: dict[str, str], files: dict[str, str]) -> str:
        """Let a prepared member run, with what was not known when it was prepared.

        Returns the reason if it cannot run any more.
        """

        def prepare(attempt: Attempt) -> None:
            attempt.start.commit_environment = environment
            if attempt.work.scratch_dir and files:
                scratch.add(attempt.work, files)

        return self.gate.commits.commit(key, prepare)

    def warn(self, key: Key, text: str) -> None:
        """Write a line into the job's log; into a file that the user named, as the user.

        By a child: a write waits while the log is truncated, and a user's file may hang.
        """
        attempt = self._context.attempts.get(key)
        if attempt is None:
            return
        work = attempt.work
        line = f"tgpu: {' '.join(text.split())}\n"
        launch = self._context.helpers.launch(("printf", "%s", line), {"PATH": "/usr/bin:/bin"})
        if work.log_of_user:
            launch.uid, launch.gid, launch.user = work.uid, work.gid, work.user
            launch.log_of_user, launch.log_umask = work.log_path, work.umask
        else:
            try:
                launch.log = log_rotation.open_log(work)
            except OSError:
                return
        self._context.helpers.run(launch, WARN_TIMEOUT_MS, ignore_result)

    def run_helper(self, order: Message, done: Callable[[bool, str], None]) -> None:
        """Run a short command as some user; what it leaves running is not taken for a job's."""
        launch = self._context.helpers.launch(
            tuple(map(str, order["argv"])),
            {str(k): str(v) for k, v in order["environment"].items()},
        )
        launch.uid, launch.gid = int(order["uid"]), int(order["gid"])
        launch.user = str(order["user"])
        mark = self._context.mark
        if launch.uid != os.geteuid():
            mark = f"{mark}.{os.urandom(8).hex()}"
            launch.environment["TGPU_HELPER"] = mark

        def ended(ok: bool, output: str) -> None:
            self._context.tracker.ignore_marked(mark)
            done(ok, output)

        self._context.helpers.run(launch, int(order["timeout_ms"]), ended)

    def forget(self, key: Key) -> str:
        """Drop the record of an attempt that is over; returns the reason if it is not over."""
        attempt = self._context.attempts.get(key)
        if attempt is None:
            return ""
        if attempt.over is None:
            return f"{key[0]} member {key[1]} is not over; it can be forgotten when it is"
        del self._context.attempts[key]
        self._forgotten += 1
        self._context.journal.append_lazily(
            {"kind": "forget", "allocation_id": key[0], "member": key[1]}
        )
        if attempt.work.scratch_dir:
            scratch.clear(attempt.work.scratch_dir, self._context.directories)
        return ""

    @property
    def is_idle(self) -> bool:
        """Tell whether every attempt is over."""
        return all(attempt.phase is Phase.OVER for attempt in self._context.attempts.values())

    def held(self) -> list[Message]:
        """Every attempt that was not forgotten, with its end if it has one."""
        return [
            {
                "allocation_id": attempt.key[0],
                "member": attempt.key[1],
                "over": None if attempt.over is None else encode_report(attempt.over),
            }
            for attempt in self._context.attempts.values()
        ]

    def current_reports(self) -> list[Report]:
        """Reports for an agent that has just connected: what runs, and every end."""
        found: list[Report] = []
        for attempt in self._context.attempts.values():
            if attempt.over is not None:
                if attempt.checkpoint_ns:
                    found.append(scratch.saved_report(attempt))
                found.append(attempt.over)
            elif attempt.start.prepared:
                found.append(prepared_report(attempt))
            elif attempt.phase is Phase.RUNNING:
                found.append(began_report(attempt))
                if attempt.container_phase:
                    found.append(container_report(attempt))
                if attempt.checkpoint_ns:
                    found.append(scratch.saved_report(attempt))
        return found

    def capabilities(self) -> Message:
        """What is enforced on this node, and which runners it has."""
        capabilities: Message = dict(self._context.cgroups.capabilities())
        trial = Work(allocation_id="x", scratch_dir="/tmp", image="x", uid=0)  # noqa: S108
        capabilities["runners"] = sorted(
            name
            for name, runner in self._context.runners.items()
            if name == "process" or not runner.missing(trial)
        )
        return capabilities

    # Events of attempts

    def start_failed(self, attempt: Attempt, reason: str) -> None:
        if not reason and not attempt.stopped_by and not any(attempt.details):
            reason = NEVER_RELEASED
        self.main_process_ended(attempt, Ending(ran=False, detail=reason))

    def command_started(self, attempt: Attempt) -> None:
        self.stopper.watch_limits(attempt)
        self.check_files_later()
        if attempt.stop.pending is not None:
            pending, attempt.stop.pending = attempt.stop.pending, None
            self.stopper.stop(attempt, *pending)

    def main_process_ended(self, attempt: Attempt, ending: Ending) -> None:
        """Start the cleanup. A second report about the same attempt is ignored."""
        if attempt.ending is not None:
            return
        attempt.ending = ending
        attempt.ended_ms = now_ms()
        attempt.phase = Phase.CLEANUP
        attempt.cancel_timers()
        self._release_waiters(attempt)
        self.cleanup.begin(attempt, ending)

    def cleanup_finished(self, attempt: Attempt, over: Over) -> None:
        """Write the end, then report it."""
        attempt.over = over
        attempt.phase = Phase.OVER
        self._release_waiters(attempt)
        processes.send(self._context.tracker.strays(), signal.SIGKILL)
        attempt.add_end_record(over)
        # Not synced: the server stores it anyway, and the disk takes longer than many a job.
        self._write_end(attempt, self._end_written)

    def _lease_ends(self, attempt: Attempt, grace_ms: int) -> None:
        self._stop(attempt, LEASE, grace_ms)

    def _release_waiters(self, attempt: Attempt) -> None:
        """Lease and gang learn that the main process is gone, or that the attempt is over."""
        if attempt.stop.pending is not None:
            # It was never released, and so ended because of this stop.
            attempt.stopped_by = attempt.stopped_by or attempt.stop.pending[0]
            attempt.stop.pending = None
        self.leases.attempt_ended(attempt)
        self.gate.member_failed(attempt)

    def _write_end(self, attempt: Attempt, written: Callable[[Attempt, str], None]) -> None:
        if self._context.attempts.get(attempt.key) is attempt:
            record = attempt.journal_records[0]
            self._context.journal.append_unsynced(record, written, attempt)

    def _end_written(self, attempt: Attempt, error: str) -> None:
        """On a full disk the end is reported all the same: the server needs the devices."""
        if attempt.over is not None:
            self._context.report(attempt.over)
        self._end_written_again(attempt, error)

    def _end_written_again(self, attempt: Attempt, error: str) -> None:
        if error:
            self._context.loop.after(
                WRITE_RETRY_MS, self._write_end, attempt, self._end_written_again
            )

    # Errors in the launcher

    def on_error(self, error: Exception, arguments: Arguments) -> None:
        """A callback failed that never should. Its attempt is ended; everything else goes on."""
        log_error(error, arguments)
        attempt = next((one for one in arguments if isinstance(one, Attempt)), None)
        if attempt is not None and attempt.over is None:
            again = FAILED in attempt.details
            self._context.loop.after(ABORT_AGAIN_MS if again else 0, self._abort, attempt)

    def order_failed(self, error: Exception, key: Key | None) -> None:
        """The same for an order about the attempt with this key."""
        attempt = None if key is None else self._context.attempts.get(key)
        self.on_error(error, () if attempt is None else (attempt,))

    def _abort(self, attempt: Attempt) -> None:
        """End an attempt after an error, in whatever phase it is. Safe to repeat."""
        if attempt.over is not None:
            return
        loop = self._context.loop
        attempt.details.append(FAILED)
        attempt.acknowledge_start()
        for side in (attempt.start.gate, attempt.start.listener):
            if side is not None:
                loop.drop(side.fileno())
                side.close()
        attempt.start.gate = attempt.start.listener = None
        if attempt.ending is not None:
            self.cleanup.remove_leftovers(attempt)
        elif attempt.pid in loop.known_children:
            # The loop sees its end, which goes the usual way.
            processes.send([attempt.pid], signal.SIGKILL)
        else:
            if attempt.pidfd >= 0:
                processes.kill_pidfd(attempt.pidfd)
                self._context.close_pidfd(attempt)
            self.main_process_ended(attempt, Ending(ran=attempt.start.released or attempt.adopted))

    # After every turn of the event loop

    def commit_turn(self) -> None:
        """Fork what is queued, make everything durable, release what waits for that."""
        context = self._context
        context.tracker.invalidate()
        for _ in range(min(BATCH, len(self._queue))):
            attempt, done = self._queue.popleft()
            if attempt.phase is Phase.QUEUED:
                attempt.answer_start = done
                context.loop.call(self.starter.begin, attempt)
            else:
                done("")
        context.spawner.collect()
        while context.journal.commit():
            context.spawner.collect()
        if self._queue:
            context.loop.after(0, lambda: None)  # ends the wait of the event loop
        if context.journal.unsynced and not self._sync_scheduled:
            self._sync_scheduled = True
            context.loop.after(SYNC_MS, self._sync)
        if self._forgotten > REWRITE_FORGOTTEN and context.journal.size > REWRITE_BYTES:
            self._forgotten = 0
            try:
                context.journal.rewrite(self.records())
            except OSError:
                return

    def _sync(self) -> None:
        self._sync_scheduled = False
        if self._context.journal.unsynced:
            self._context.journal.sync()

    def records(self) -> list[Message]:
        """Everything that the next launcher has to know."""
        attempts = self._context.attempts.values()
        records = [record for attempt in attempts for record in attempt.journal_records]
        return records + self.cleanup.removals.records()

    def check_files_later(self) -> None:
        """Check logs and checkpoints about once a second, while anything runs."""
        if not self._checks_files:
            self._checks_files = True
            self._context.loop.after(CHECK_FILES_MS, self._check_all_files)

    def _check_all_files(self) -> None:
        self._checks_files = False
        running = [a for a in self._context.attempts.values() if a.phase is Phase.RUNNING]
        for attempt in running:
            self._context.loop.call(self._check_files, attempt)
        if running:
            self.check_files_later()

    def _check_files(self, attempt: Attempt) -> None:
        self._context.log_rotation.check(attempt.work)
        if saved := scratch.new_checkpoint(attempt):
            self._context.report(saved)


def _never_ran(attempt: Attempt, stopped_by: str, detail: str) -> Over:
    return Over(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        ran=False,
        at_ms=wall_ms(),
        stopped_by=stopped_by,
        detail=detail,
    )
