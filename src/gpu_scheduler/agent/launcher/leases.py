"""Jobs that may run only for as long as somebody says so again and again.

A job with a lease comes in with the time until which it may run; renewals move that time. When it
is over the job is killed, whoever is away: the agent, the server, or (by the guard) this launcher.
A lease that has ended is never renewed: the job may run elsewhere by then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from gpu_scheduler.agent.launcher import lease_files
from gpu_scheduler.agent.launcher.lease_files import Alarm
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.logs import own_log
from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher.messages import Key

# --- The launcher's side of its guard: start it, wake it, start it again when it dies.

AGAIN_MS = 1_000


class Guarding:
    """One guard, while any job has a lease; `needed` tells whether any has."""

    def __init__(self, loop: Loop, directory: str, mark: str, needed: Callable[[], bool]) -> None:
        self._loop = loop
        self._directory = directory
        self._mark = mark
        self._needed = needed
        self._pid = 0
        self._bell = -1

    def wake(self) -> None:
        """The leases have changed: let the guard look again. One that does not read is no harm."""
        if not self._pid:
            if self._needed():
                self._start()
            return
        try:
            os.write(self._bell, b".")
        except OSError:
            return

    def _start(self) -> None:
        """In a session of its own, and not taken for a job's: it has to outlive us."""
        heard, bell = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(bell, False)
        command = (sys.executable, "-I", "-m", "gpu_scheduler.agent.launcher.watchdog")
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [*command, "--dir", self._directory, "--mark", self._mark],
                {**os.environ, "TGPU_HELPER": self._mark},
                file_actions=[(os.POSIX_SPAWN_DUP2, heard, 0)],
                setsid=True,
            )
        except OSError as error:
            own_log.warn(f"cannot start the guard of leases: {error}")
            os.close(bell)
            self._loop.after(AGAIN_MS, self.wake)
            return
        finally:
            os.close(heard)
        self._bell = bell
        self._loop.at_exit(self._pid, self._ended)

    def _ended(self, status: int) -> None:
        del status
        os.close(self._bell)
        self._pid, self._bell = 0, -1
        if self._needed():
            own_log.warn("the guard of leases has died; another one is started")
            self._loop.after(AGAIN_MS, self.wake)


# --- Jobs that may run only for as long as somebody says so again and again.

LEASE = "lease"
"""Why a job is stopped whose lease ends."""
TOO_LATE = "its lease was over before it could begin"
_GRACE_PART = 4
Stop = Callable[[Key, int], None]
"""Stops what has this name, within so many milliseconds."""


class Leases:
    """Watches over the leases of all attempts. `stop` is given by who can stop them."""

    def __init__(
        self, loop: Loop, directory: str, attempts: Mapping[Key, Attempt], mark: str
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._attempts = attempts
        self._until: dict[Key, int] = {}
        self._ending: set[Key] = set()
        self._alarm: Alarm | None = None
        self._guarding = Guarding(loop, directory, mark, lambda: bool(self._until))
        self.stop: Stop = lambda key, grace_ms: None  # noqa: ARG005 - nobody yet

    def begin(self, attempt: Attempt, boot: str) -> None:
        """A job with a lease is about to run: from now on it is watched."""
        work = attempt.work
        if not work.lease_ms:
            return
        runner = attempt.runner
        until_ms = self._until.setdefault(attempt.key, work.leased_ms + work.lease_ms)
        form = {
            "boot": boot,
            "pid": attempt.pid,
            "ticks": attempt.ticks,
            "uid": work.uid,
            "groups": attempt.group.paths,
            "kill": () if runner is None else runner.signal_command(work, "KILL"),
        }
        try:
            lease_files.write(self._directory, attempt.key, until_ms, form)
        except OSError as error:
            own_log.warn(f"the guard is not told of the lease of {attempt.name}: {error}")
        self._guarding.wake()
        self.look()

    def expect(self, attempt: Attempt) -> None:
        """Watch what has been accepted and does not run yet."""
        work = attempt.work
        if work.lease_ms:
            self._until[attempt.key] = work.leased_ms + work.lease_ms
            self._set_alarm()

    def take_over(self, boot: str) -> None:
        """Go on with the leases of a launcher that has died, as they stand in their files.

        They are looked at when everything is taken over.
        """
        files = {lease.key: lease for lease in lease_files.read_all(self._directory)}
        for key, attempt in self._attempts.items():
            if attempt.over is None and attempt.work.lease_ms:
                lease = files.pop(key, None)
                until_ms = attempt.work.leased_ms + attempt.work.lease_ms
                known = lease is not None and lease.boot == boot
                self._until[key] = lease.until_ms if known and lease is not None else until_ms
        for key, lease in files.items():
            if lease.boot != boot or key not in self._attempts:
                lease_files.remove(self._directory, key)
        if self._until:
            self._guarding.wake()

    def renew(self, asked_ms: int) -> None:
        """All that may still run may do so until their leases after this moment."""
        now = now_ms()
        if asked_ms > now:
            raise ValueError(f"a renewal from {asked_ms - now} ms ahead")
        self.look()
        for key, until_ms in self._until.items():
            later_ms = asked_ms + self._attempts[key].work.lease_ms
            if until_ms <= now or later_ms <= until_ms:
                continue
            self._until[key] = later_ms
            try:
                lease_files.extend(self._directory, key, later_ms)
            except FileNotFoundError:
                continue  # it does not run yet
            except OSError as error:
                own_log.warn(f"a lease could not be renewed for the guard: {error}")
        self._set_alarm()

    def gone(self, attempt: Attempt) -> None:
        """Its main process is gone, or all of it; whose time was over was ended for that."""
        until_ms = self._until.get(attempt.key)
        if until_ms is None:
            return
        if until_ms <= now_ms():
            attempt.stopped_by = attempt.stopped_by or LEASE
        if attempt.phase is Phase.OVER:
            del self._until[attempt.key]
            self._ending.discard(attempt.key)
            lease_files.remove(self._directory, attempt.key)
            self._guarding.wake()
            self._set_alarm()

    def look(self) -> None:
        """Kill what is over; what soon will be is asked to end, as long as there is time."""
        now = now_ms()
        for key, until_ms in list(self._until.items()):
            if until_ms <= now:
                self.stop(key, 0)
            elif until_ms - _grace_ms(self._attempts[key]) <= now and key not in self._ending:
                self._ending.add(key)
                self.stop(key, until_ms - now)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """For the next time at which something is to do."""
        now = now_ms()
        times = []
        for key, until_ms in self._until.items():
            ask_ms = until_ms - _grace_ms(self._attempts[key])
            times.append(until_ms if key in self._ending or ask_ms <= now else ask_ms)
        if self._alarm is None:
            if not times:
                return
            self._alarm = Alarm()
            self._loop.add(self._alarm.descriptor, self._rings)
        self._alarm.set(min((at for at in times if at > now), default=0))

    def _rings(self) -> None:
        if self._alarm is not None:
            self._alarm.hear()
        self.look()


def _grace_ms(attempt: Attempt) -> int:
    """So long before the end it is asked to end by itself."""
    return min(attempt.work.grace_ms, attempt.work.lease_ms // _GRACE_PART)
