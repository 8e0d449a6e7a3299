"""Leader election: acquire the lease, renew it, and notice when it is lost.

One task polls the lease in a thread and calls back when this server becomes or stops being the
leader. Two rules limit what a leader may do. A write depends on the term alone, which the database
checks in each commit. A response or an order also depends on time: the server trusts its lease for
slightly less than the granted time, measured with the local boot-time clock from before the
request. So a process that was suspended knows on resume that its lease has expired, before it asks
the database.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Protocol, TypeVar

import structlog

from gpu_scheduler.control.commit_thread import CommitExecutor, StoreWriter
from gpu_scheduler.model.errors import ClusterError, NotLeader, SchedulerError
from gpu_scheduler.model.identity import LeaderLease, ServerMember

T = TypeVar("T")
CLOCK_DRIFT = 0.1
"""Fraction of a lease that is not used, because clocks run at slightly different speeds."""
SHORTEST_PAUSE_S = 0.05
LATE_INTERVALS = 1.25
"""A renewal is late when this many intervals have passed since the previous one."""
STUCK_S = 30.0
"""An event loop blocked for this long is considered stuck: its lease is no longer renewed."""
NEVER = -1e9
log = structlog.get_logger("election")


class ServerNameTaken(ClusterError):
    """A server of another installation uses the same name."""

    code = "name_taken"
    exit_code = 7

    def __init__(self, message: str, *, seen_at: float, free_in_s: float) -> None:
        """`seen_at` is the other server's last heartbeat; without a new one the name expires."""
        super().__init__(message)
        self.seen_at = seen_at
        self.free_in_s = free_in_s


class Lease(Protocol):
    """The leader's lease in a place that all servers reach. Calls block."""

    @property
    def me(self) -> ServerMember:
        """This server."""
        ...

    def heartbeat(self) -> LeaderLease:
        """Record that this server is alive; return the current lease.

        Raises `ServerNameTaken` if a live server of another installation has the same name.
        """
        ...

    def acquire(self) -> int | None:
        """Take the lease if it is free; return the new term."""
        ...

    def renew(self, term: int) -> bool:
        """Extend the lease; False if the term has ended."""
        ...

    def release(self, term: int) -> None:
        """Give the lease back."""
        ...

    def unregister(self) -> None:
        """Remove this server from the list of servers."""
        ...

    def cluster_secret(self) -> bytes:
        """The secret that only the servers of this cluster share."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How often the lease is renewed, how long it is valid, and the delay of a first attempt."""

    renew_s: float = 2.0
    valid_s: float = 6.0
    hesitate_s: float = 0.0


def boot_s() -> float:
    """Seconds since boot, including the time that the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElector:
    """This server's part in the election. `term` is 0 while it is not the leader."""

    def __init__(
        self,
        lease: Lease,
        times: LeaseTimes,
        *,
        clock: Callable[[], float] = boot_s,
        thread: CommitExecutor | None = None,
    ) -> None:
        """`clock` must keep running while the process is suspended.

        Lease calls block, so they run in a thread of their own.
        """
        self.times = times
        self.term = 0
        self.trouble = ""
        self.is_leaving = False
        self._lease = lease
        self._clock = clock
        self._thread: CommitExecutor = thread or StoreWriter()
        self._uses_renewal_thread = thread is None
        self._loop_active_at = clock()
        self._lead = LeaderLease()
        self._lead_read_at = NEVER
        self._valid_until = NEVER
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._has_seen_leader = False
        self._started_at = clock()
        self._rest_until = NEVER
        self._failing_since: float | None = None
        self._fatal_error: SchedulerError | None = None
        self._last_term = 0

    @property
    def me(self) -> ServerMember:
        """This server."""
        return self._lease.me

    @property
    def is_held(self) -> bool:
        """Whether this server may respond and send orders as the leader right now."""
        return self.term > 0 and self._clock() < self._valid_until

    @property
    def lead(self) -> LeaderLease:
        """The current leader as known here, minus the time since it was read."""
        if self.term:
            return replace(
                self._lead,
                term=self.term,
                holder=self.me.name,
                address=self.me.address,
                agents=self.me.agents,
                left_s=self._valid_until - self._clock(),
            )
        return replace(self._lead, left_s=self._lead.left_s - self._lead_age_s)

    @property
    def is_late(self) -> bool:
        """Whether the leader has missed a renewal, so that it may have failed."""
        return self.lead.left_s < self.times.valid_s - 2 * self.times.renew_s

    @property
    def _lead_age_s(self) -> float:
        return self._clock() - self._lead_read_at

    def database_ms(self) -> int:
        """The database's clock, which all servers share."""
        return self._lead.database_ms + round(self._lead_age_s * 1000)

    async def cluster_secret(self) -> bytes:
        """The secret that only the servers of this cluster share."""
        return await self._thread.run(self._lease.cluster_secret)

    async def register(self) -> None:
        """Send the first heartbeat.

        Fails if a live server has the same name. If that server has died, wait until its name
        expires.
        """
        seen_at = None
        while True:
            try:
                await self.refresh()
            except ServerNameTaken as error:
                if seen_at is not None and error.seen_at > seen_at:
                    raise
                if seen_at is None:
                    log.warning(
                        "waiting to see whether a server of the same name is alive",
                        name=self.me.name,
                        longest_s=round(error.free_in_s, 1),
                    )
                seen_at = error.seen_at
                await asyncio.sleep(self.times.renew_s / 2)
            else:
                return

    async def changed(self) -> None:
        """Return when the leader changes, or when a late leader has renewed its lease."""
        await self._changed.wait()

    def step_down(self, error: SchedulerError) -> None:
        """Stop leading after a commit failed with `error`.

        Either the term has ended, or this server cannot lead: then it releases the lease.
        """
        if not isinstance(error, NotLeader):
            self._fatal_error = error
        self._valid_until = NEVER
        self._lost.set()

    def on_commit(self, error: SchedulerError | None) -> None:
        """Record the result of a commit.

        A leader that can renew its lease but has committed nothing for a whole lease steps down
        if there is a standby.
        """
        now = self._clock()
        if error is None:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > self.times.valid_s and self._lead.standbys:
            self.step_down(error)

    async def run(
        self,
        on_elected: Callable[[int], Awaitable[None]],
        on_deposed: Callable[[], Awaitable[None]],
    ) -> None:
        """Alternate between standby and leader until cancelled. `on_elected` gets the term."""
        while True:
            try:
                await self._run_one_term(on_elected, on_deposed)
            except Exception as error:
                # A bug costs one term. It must not end this server's part in the election.
                log.exception("leader election failed; will retry")
                self.trouble = repr(error)
                await asyncio.sleep(self.times.renew_s)

    async def _run_one_term(
        self,
        on_elected: Callable[[int], Awaitable[None]],
        on_deposed: Callable[[], Awaitable[None]],
    ) -> None:
        """Wait for the lease, then lead until it is lost."""
        term = await self._acquire()
        self._begin_term(term)
        renewing = asyncio.create_task(self._renew_until_lost(term))
        thread = _RenewalThread(self, term) if self._uses_renewal_thread else None
        starting = asyncio.ensure_future(on_elected(term))
        try:
            await asyncio.wait({renewing, starting}, return_when=asyncio.FIRST_COMPLETED)
            if not renewing.done() and starting.exception() is not None:
                await self._resign(term, starting.exception())
                return
            await renewing
            if self._fatal_error is not None:
                await self._resign(term, self._fatal_error)
        finally:
            renewing.cancel()
            starting.cancel()
            if thread is not None:
                thread.stop()
            self._valid_until = NEVER
            self.term = 0
            self.notify_waiters()
            log.warning("no longer the leader", term=term)
            await asyncio.gather(starting, return_exceptions=True)
            await on_deposed()

    def _begin_term(self, term: int) -> None:
        self.term = self._last_term = term
        self._lost.clear()
        self._fatal_error = self._failing_since = None
        self.notify_waiters()
        log.info("elected as leader", term=term, name=self.me.name)

    async def release(self) -> None:
        """Release the lease on shutdown, if this server held it, and unregister.

        Agents that wait here are redirected to the next leader. After that no agent waits here.
        """
        term, self._last_term = self._last_term, 0
        try:
            if term:  # has no effect if another server has the lease by now
                await self._thread.run(lambda: self._lease.release(term))
                await self._wait_for_successor()
            await self._thread.run(self._lease.unregister)
        except SchedulerError as error:
            log.warning("lease not released; it will expire", error=str(error))
        finally:
            self.is_leaving = True
            self.notify_waiters()

    async def _wait_for_successor(self) -> None:
        """Wait until another server leads, for as long as a live standby needs to notice."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.times.renew_s
        while clock() < deadline:
            await self.refresh()
            has_others = any(one.name != self.me.name for one in self._lead.standbys)
            if self._lead.is_held or not has_others:
                return
            await asyncio.sleep(SHORTEST_PAUSE_S)

    def close(self) -> None:
        """Stop the thread of the lease."""
        self._thread.close()

    async def _resign(self, term: int, error: BaseException | None) -> None:
        """Release the lease because this server cannot lead, and do not compete for a while."""
        log.error("cannot lead", term=term, error=str(error))
        self._lost.set()
        self._valid_until = NEVER
        try:
            await self._thread.run(lambda: self._lease.release(term))
        except SchedulerError:
            log.warning("lease not released; it will expire", term=term)
        self._rest_until = self._clock() + self.times.valid_s

    async def _acquire(self) -> int:
        """Wait as a standby until the lease is free and this server has taken it."""
        while True:
            pause_s = self.times.renew_s / 2
            try:
                await self.refresh()
                if not self._lead.is_held and self._may_compete():
                    asked_at = self._clock()
                    term = await self._thread.run(self._lease.acquire)
                    if term is not None:
                        self._extend(asked_at)
                        return term
                elif self._lead.is_held:
                    # Wake up when the lease may have expired, not a whole pause later.
                    pause_s = min(
                        pause_s, max(SHORTEST_PAUSE_S, self._lead.left_s + SHORTEST_PAUSE_S)
                    )
            except SchedulerError as error:
                self._report_trouble(str(error))
            await asyncio.sleep(pause_s * random.uniform(0.9, 1.0))

    def _may_compete(self) -> bool:
        """A preferred standby waits after its start; a server that resigned waits one lease."""
        now = self._clock()
        hesitates = not self._has_seen_leader and now - self._started_at < self.times.hesitate_s
        return now >= self._rest_until and not hesitates

    async def _renew_until_lost(self, term: int) -> None:
        """Renew until the term ends. While the database is down, no other server can lead."""
        while True:
            pause_s = self.times.renew_s
            asked_at = self._loop_active_at = self._clock()
            try:
                if not await self._thread.run(lambda: self._lease.renew(term)):
                    return
                self._extend(asked_at)
                await self.refresh()
            except SchedulerError as error:
                self._report_trouble(str(error))
                self._failing_since = None  # no server reaches the database
                pause_s /= 4
            try:
                async with asyncio.timeout(pause_s * random.uniform(0.9, 1.0)):
                    await self._lost.wait()
            except TimeoutError:
                continue
            return

    def renew_if_late(self, term: int) -> None:
        """Renew from another thread while the event loop is busy, unless the loop is stuck."""
        now = self._clock()
        renewed_at = self._valid_until - self.times.valid_s * (1 - CLOCK_DRIFT)
        is_late = now - renewed_at > LATE_INTERVALS * self.times.renew_s
        if not is_late or not self._leads_in(term) or now - self._loop_active_at > STUCK_S:
            return
        try:
            if self._lease.renew(term) and self._leads_in(term):
                self._extend(now)
        except Exception as error:  # noqa: BLE001 - the thread must last as long as the term
            self._report_trouble(str(error))

    def _leads_in(self, term: int) -> bool:
        return self.term == term and not self._lost.is_set()

    async def refresh(self) -> None:
        """Send a heartbeat and read the current leader."""
        before, was_late = self._lead, self.is_late
        asked_at = self._clock()
        self._lead = await self._thread.run(self._lease.heartbeat)
        self._lead_read_at = asked_at
        self.trouble = ""
        self._has_seen_leader = self._has_seen_leader or self._lead.is_held
        has_changed = (before.term, before.is_held) != (self._lead.term, self._lead.is_held)
        if has_changed or (was_late and not self.is_late):
            self.notify_waiters()

    def _extend(self, asked_at: float) -> None:
        self._valid_until = asked_at + self.times.valid_s * (1 - CLOCK_DRIFT)
        self.trouble = ""

    def _report_trouble(self, trouble: str) -> None:
        if not self.trouble:
            log.warning("cannot confirm the lease", error=trouble)
        self.trouble = trouble

    def notify_waiters(self) -> None:
        """Wake every caller of `changed`; later callers wait for the next change."""
        self._changed.set()
        self._changed = asyncio.Event()


class _RenewalThread(Thread):
    """Renews when the event loop is too busy: a large submission must not cost the lease."""

    def __init__(self, elector: LeaderElector, term: int) -> None:
        super().__init__(name="lease", daemon=True)
        self._elector = elector
        self._term = term
        self._stopped = Event()
        self.start()

    def run(self) -> None:
        """Check twice per interval."""
        while not self._stopped.wait(self._elector.times.renew_s / 2):
            self._elector.renew_if_late(self._term)

    def stop(self) -> None:
        """End the thread after its current check."""
        self._stopped.set()
