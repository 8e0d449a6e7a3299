"""Leases: a job with a lease may run only until the server's last renewal runs out.

Attempts and renewals come in; `lease_ends` is called when a lease is about to end or has ended,
whether or not agent and server are there. If the launcher itself is dead or frozen, the watchdog
process kills the job. A lease that has ended is never renewed: the job may run elsewhere by then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from gpu_scheduler.agent.launcher.lease_watchdog import (
    BootTimeAlarm,
    extend_lease,
    read_leases,
    remove_lease,
    write_lease,
)
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.log_rotation import launcher_log
from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher_protocol import Key

LEASE = "lease"
"""Why a job is stopped whose lease ends."""
TOO_LATE = "its lease was over before it could begin"
RESTART_MS = 1_000
_GRACE_PART = 4


class WatchdogProcess:
    """The launcher's side of the watchdog: start it, wake it, start it again when it dies.

    One watchdog runs while `is_needed` says that a job has a lease.
    """

    def __init__(
        self, loop: Loop, directory: str, mark: str, is_needed: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._mark = mark
        self._is_needed = is_needed
        self._pid = 0
        self._wake_pipe = -1

    def wake(self) -> None:
        """The leases have changed: let the watchdog read them again."""
        if not self._pid:
            if self._is_needed():
                self._start()
            return
        with suppress(OSError):
            os.write(self._wake_pipe, b".")

    def _start(self) -> None:
        """Start it in a session of its own, with the mark of a helper: it has to outlive us."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writer, False)
        command = (sys.executable, "-I", "-m", "gpu_scheduler.agent.launcher.lease_watchdog")
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [*command, "--dir", self._directory, "--mark", self._mark],
                {**os.environ, "TGPU_HELPER": self._mark},
                file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0)],
                setsid=True,
            )
        except OSError as error:
            launcher_log.warning(f"cannot start the watchdog of leases: {error}")
            os.close(writer)
            self._loop.after(RESTART_MS, self.wake)
            return
        finally:
            os.close(reader)
        self._wake_pipe = writer
        self._loop.at_exit(self._pid, self._on_exit)

    def _on_exit(self, status: int) -> None:
        del status
        os.close(self._wake_pipe)
        self._pid, self._wake_pipe = 0, -1
        if self._is_needed():
            launcher_log.warning("the watchdog of leases has died; restarting it")
            self._loop.after(RESTART_MS, self.wake)


class Leases:
    """The leases of all attempts. `attempts` is the launcher's own table.

    `lease_ends` is called with an attempt whose lease ends in so many ms, or has ended (0 ms).
    """

    def __init__(
        self,
        loop: Loop,
        directory: str,
        attempts: Mapping[Key, Attempt],
        mark: str,
        lease_ends: Callable[[Attempt, int], None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._attempts = attempts
        self._lease_ends = lease_ends
        self._until: dict[Key, int] = {}
        self._ending: set[Key] = set()
        self._alarm: BootTimeAlarm | None = None
        self._watchdog = WatchdogProcess(loop, directory, mark, lambda: bool(self._until))

    def begin(self, attempt: Attempt, boot: str) -> None:
        """A job with a lease is about to run: the watchdog must know how to kill it."""
        work = attempt.work
        if not work.lease_ms:
            return
        runner = attempt.runner
        until_ms = self._until.setdefault(attempt.key, work.leased_ms + work.lease_ms)
        fields = {
            "boot": boot,
            "pid": attempt.pid,
            "ticks": attempt.ticks,
            "uid": work.uid,
            "groups": attempt.group.paths,
            "kill": () if runner is None else runner.signal_command(work, "KILL"),
        }
        try:
            write_lease(self._directory, attempt.key, until_ms, fields)
        except OSError as error:
            launcher_log.warning(f"cannot write the lease file of {attempt.name}: {error}")
        self._watchdog.wake()
        self.check()

    def expect(self, attempt: Attempt) -> None:
        """Watch the lease of an attempt that was accepted and does not run yet."""
        work = attempt.work
        if work.lease_ms:
            self._until[attempt.key] = work.leased_ms + work.lease_ms
            self._set_alarm()

    def recover(self, boot: str) -> None:
        """Take over the leases of a launcher that has died, as their files have them.

        `check` is called when all attempts are taken over.
        """
        files = {lease.key: lease for lease in read_leases(self._directory)}
        for key, attempt in self._attempts.items():
            if attempt.over is None and attempt.work.lease_ms:
                lease = files.pop(key, None)
                if lease is not None and lease.boot == boot:
                    self._until[key] = lease.until_ms
                else:
                    self._until[key] = attempt.work.leased_ms + attempt.work.lease_ms
        for key, lease in files.items():
            if lease.boot != boot or key not in self._attempts:
                remove_lease(self._directory, key)
        if self._until:
            self._watchdog.wake()

    def renew(self, asked_ms: int) -> None:
        """Extend every lease that has not ended: it runs from the time the agent asked."""
        now = now_ms()
        if asked_ms > now:
            raise ValueError(f"a renewal from {asked_ms - now} ms ahead")
        self.check()
        for key, until_ms in self._until.items():
            later_ms = asked_ms + self._attempts[key].work.lease_ms
            if until_ms <= now or later_ms <= until_ms:
                continue
            self._until[key] = later_ms
            try:
                extend_lease(self._directory, key, later_ms)
            except FileNotFoundError:
                continue  # it does not run yet
            except OSError as error:
                launcher_log.warning(f"cannot renew the lease file of {key[0]}: {error}")
        self._set_alarm()

    def attempt_ended(self, attempt: Attempt) -> None:
        """The main process is gone, or the attempt is over; an ended lease was the reason."""
        until_ms = self._until.get(attempt.key)
        if until_ms is None:
            return
        if until_ms <= now_ms():
            attempt.stopped_by = attempt.stopped_by or LEASE
        if attempt.phase is Phase.OVER:
            del self._until[attempt.key]
            self._ending.discard(attempt.key)
            remove_lease(self._directory, attempt.key)
            self._watchdog.wake()
            self._set_alarm()

    def check(self) -> None:
        """Stop jobs whose lease has ended, and with a grace period those whose lease ends soon."""
        now = now_ms()
        for key, until_ms in list(self._until.items()):
            attempt = self._attempts[key]
            if until_ms <= now:
                self._loop.call(self._lease_ends, attempt, 0)
            elif until_ms - _grace_ms(attempt) <= now and key not in self._ending:
                self._ending.add(key)
                self._loop.call(self._lease_ends, attempt, until_ms - now)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake up when the next lease ends, or when its grace period begins."""
        now = now_ms()
        times = []
        for key, until_ms in self._until.items():
            grace_at_ms = until_ms - _grace_ms(self._attempts[key])
            is_ending = key in self._ending or grace_at_ms <= now
            times.append(until_ms if is_ending else grace_at_ms)
        if self._alarm is None:
            if not times:
                return
            self._alarm = BootTimeAlarm()
            self._loop.add(self._alarm.descriptor, self._on_alarm)
        self._alarm.set(min((at for at in times if at > now), default=0))

    def _on_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.clear()
        self.check()


def _grace_ms(attempt: Attempt) -> int:
    """How long before the end of its lease a job is asked to end."""
    return min(attempt.work.grace_ms, attempt.work.lease_ms // _GRACE_PART)
