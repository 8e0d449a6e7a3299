"""Whether this server leads: tries to, holds the lead while it can, and notices when it cannot.

One task asks the lease again and again, in a thread, and tells its owner to begin and to end. What
may be done as the leader hangs on two things. Writes hang on the term alone, which the database
checks in each commit. Answers and orders also hang on time: a lease is believed for a little less
than it was given, counted by this machine's own boot-time clock from before it was asked for, so
that a server which was frozen knows it at the moment it thaws, before it has asked anybody.
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

from gpu_scheduler.control.writer import CommitExecutor, StoreWriter
from gpu_scheduler.model.errors import ClusterError, NotLeader, SchedulerError
from gpu_scheduler.model.identity import LeaderLease, ServerMember

T = TypeVar("T")
DRIFT = 0.1
"""Part of a lease that is not used: clocks may run at slightly different speeds."""
SOONEST_S = 0.05
LATE = 1.25
"""So many intervals after the last renewal the event loop is late with the next."""
STUCK_S = 30.0
"""An event loop that has not come round for so long will not do so again: let another lead."""
log = structlog.get_logger("leadership")


class NameTaken(ClusterError):
    """A server of another installation bears the same name."""

    code = "name_taken"
    exit_code = 7

    def __init__(self, message: str, *, seen_at: float, free_in_s: float) -> None:
        """`seen_at` grows while that one lives; if it does not, the name is free some time."""
        super().__init__(message)
        self.seen_at = seen_at
        self.free_in_s = free_in_s


class Lease(Protocol):
    """The lead, kept somewhere that all servers reach. Calls block."""

    @property
    def me(self) -> ServerMember:
        """Who asks."""
        ...

    def look(self) -> LeaderLease:
        """Say that we are here, and read who leads; `NameTaken` if a namesake is there."""
        ...

    def take(self) -> int | None:
        """Take the lead if nobody has it: the new term."""
        ...

    def renew(self, term: int) -> bool:
        """Hold it for longer; False if the term is over."""
        ...

    def release(self, term: int) -> None:
        """Give it back."""
        ...

    def leave(self) -> None:
        """This server goes away."""
        ...

    def secret(self) -> bytes:
        """What only the servers know."""
        ...

    def close(self) -> None:
        """Nothing more will be asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How often the lease is renewed, for how long it holds, and who waits before taking it."""

    renew_s: float = 2.0
    valid_s: float = 6.0
    hesitate_s: float = 0.0


def boot_s() -> float:
    """Seconds since the machine was started; goes on while it is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """This server's part in it. `term` is 0 while it does not lead."""

    def __init__(
        self,
        lease: Lease,
        times: Times,
        *,
        clock: Callable[[], float] = boot_s,
        thread: CommitExecutor | None = None,
    ) -> None:
        """`clock` must never stand still, not even while the process does.

        Questions to the lease block, and are asked in a thread of their own.
        """
        self._lease = lease
        self._times = times
        self._clock = clock
        self._thread: CommitExecutor = thread or StoreWriter()
        self._has_helper = thread is None
        self._awake = clock()
        self._lead = LeaderLease()
        self._looked = -1e9
        self._believed_until = -1e9
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._has_seen_one = False
        self._began = clock()
        self._rest_until = -1e9
        self._failing_since: float | None = None
        self._unable: SchedulerError | None = None
        self._last_term = 0
        self.term = 0
        self.trouble = ""
        self.is_leaving = False

    # --- for others

    @property
    def me(self) -> ServerMember:
        """This server."""
        return self._lease.me

    @property
    def is_held(self) -> bool:
        """Tell whether this server may answer and order as the leader at this very moment."""
        return self.term > 0 and self._clock() < self._believed_until

    @property
    def lead(self) -> LeaderLease:
        """Who leads, as far as is known here, with the time since it was read taken off."""
        if self.term:
            return replace(
                self._lead,
                term=self.term,
                holder=self.me.name,
                address=self.me.address,
                agents=self.me.agents,
                left_s=self._believed_until - self._clock(),
            )
        return replace(self._lead, left_s=self._lead.left_s - self._age_s)

    @property
    def is_late(self) -> bool:
        """Tell whether the leader should have renewed its lease by now, so that it may be gone."""
        return self.lead.left_s < self._times.valid_s - 2 * self._times.renew_s

    @property
    def _age_s(self) -> float:
        return self._clock() - self._looked

    def database_ms(self) -> int:
        """The database's time, by which all servers can go."""
        return self._lead.database_ms + round(self._age_s * 1000)

    async def secret(self) -> bytes:
        """What only the servers of this cluster know."""
        return await self._ask(self._lease.secret)

    async def arrive(self) -> None:
        """Look for the first time. A namesake that lives is refused, one that died waited out."""
        seen_at = None
        while True:
            try:
                await self.look()
            except NameTaken as error:
                if seen_at is not None and error.seen_at > seen_at:
                    raise
                if seen_at is None:
                    log.warning(
                        "waiting to see whether a server of the same name is alive",
                        name=self.me.name,
                        longest_s=round(error.free_in_s, 1),
                    )
                seen_at = error.seen_at
                await asyncio.sleep(self._times.renew_s / 2)
            else:
                return

    async def changed(self) -> None:
        """Return when somebody else leads than before, or nobody, or it is clear again who does."""
        await self._changed.wait()

    def lose(self, error: SchedulerError) -> None:
        """A commit has found that nothing more may be said or ordered in this term.

        Either it is over, or this server cannot lead: then it gives the lead back.
        """
        if not isinstance(error, NotLeader):
            self._unable = error
        self._believed_until = -1e9
        self._lost.set()

    def note_commit(self, error: SchedulerError | None) -> None:
        """A commit was kept, or failed.

        Who can renew its lease, but has committed nothing for a whole lease, is in the way of
        whoever stands by.
        """
        now = self._clock()
        if error is None:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > self._times.valid_s and self._lead.standbys:
            self.lose(error)

    # --- life

    async def run(
        self, begin: Callable[[int], Awaitable[None]], end: Callable[[], Awaitable[None]]
    ) -> None:
        """Until cancelled: stand by, lead, stand by. `begin` hears the term."""
        while True:
            try:
                await self._lead_once(begin, end)
            except Exception as error:
                # A bug must cost one term, not this server's part in who leads.
                log.exception("this server had to begin anew with who leads")
                self.trouble = repr(error)
                await asyncio.sleep(self._times.renew_s)

    async def _lead_once(
        self, begin: Callable[[int], Awaitable[None]], end: Callable[[], Awaitable[None]]
    ) -> None:
        """Stand by until the lead is taken, and lead until it is lost."""
        term = await self._obtain()
        self._set_out(term)
        log.info("this server leads", term=term, name=self.me.name)
        holding = asyncio.create_task(self._hold(term))
        helper = _Helper(self, term) if self._has_helper else None
        beginning = asyncio.ensure_future(begin(term))
        try:
            await asyncio.wait({holding, beginning}, return_when=asyncio.FIRST_COMPLETED)
            if not holding.done() and beginning.exception() is not None:
                await self._give_up(term, beginning.exception())
                return
            await holding
            if self._unable is not None:
                await self._give_up(term, self._unable)
        finally:
            holding.cancel()
            beginning.cancel()
            if helper is not None:
                helper.stop()
            self._believed_until = -1e9
            self.term = 0
            self.announce()
            log.warning("this server does not lead any more", term=term)
            await asyncio.gather(beginning, return_exceptions=True)
            await end()

    def _set_out(self, term: int) -> None:
        """Lead in a new term; what was wrong in the last one does not count."""
        self.term = self._last_term = term
        self._lost.clear()
        self._unable = self._failing_since = None
        self.announce()

    async def release(self) -> None:
        """Give the lead back at the end, if it was held, and say goodbye.

        Whoever waits here meanwhile hears of the next leader, and nobody waits here after that.
        """
        term, self._last_term = self._last_term, 0
        try:
            if term:  # does nothing if another one has it by now
                await self._ask(lambda: self._lease.release(term))
                await self._see_the_next_one()
            await self._ask(self._lease.leave)
        except SchedulerError as error:
            log.warning("the lead runs out by itself", error=str(error))
        finally:
            self.is_leaving = True
            self.announce()

    async def _see_the_next_one(self) -> None:
        """Look until another server leads, for as long as one that lives takes to notice."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._times.renew_s
        while clock() < give_up:
            await self.look()
            has_others = any(one.name != self.me.name for one in self._lead.standbys)
            if self._lead.is_held or not has_others:
                return
            await asyncio.sleep(SOONEST_S)

    def close(self) -> None:
        """Ask no more."""
        self._thread.close()

    async def _give_up(self, term: int, error: BaseException | None) -> None:
        """What leads could not begin: let another server try, and not this one again at once."""
        log.error("this server cannot lead", term=term, error=str(error))
        self._lost.set()
        self._believed_until = -1e9
        try:
            await self._ask(lambda: self._lease.release(term))
        except SchedulerError:
            log.warning("the lead runs out by itself", term=term)
        self._rest_until = self._clock() + self._times.valid_s

    async def _obtain(self) -> int:
        """Stand by until nobody leads and the lead could be taken."""
        while True:
            pause_s = self._times.renew_s / 2
            try:
                await self.look()
                if not self._lead.is_held and self._may_take():
                    asked = self._clock()
                    term = await self._ask(self._lease.take)
                    if term is not None:
                        self._believe(asked)
                        return term
                elif self._lead.is_held:
                    # Wake up when it could be over, not a whole pause later.
                    pause_s = min(pause_s, max(SOONEST_S, self._lead.left_s + SOONEST_S))
            except SchedulerError as error:
                self._note(str(error))
            await asyncio.sleep(pause_s * random.uniform(0.9, 1.0))

    def _may_take(self) -> bool:
        """At the start, and after it could not lead, a server lets the others try first."""
        now = self._clock()
        is_shy = not self._has_seen_one and now - self._began < self._times.hesitate_s
        return now >= self._rest_until and not is_shy

    async def _hold(self, term: int) -> None:
        """Renew until the term is over. While the database does not answer, nobody else leads."""
        while True:
            pause_s = self._times.renew_s
            asked = self._awake = self._clock()
            try:
                if not await self._ask(lambda: self._lease.renew(term)):
                    return
                self._believe(asked)
                await self.look()
            except SchedulerError as error:
                self._note(str(error))
                self._failing_since = None  # nobody reaches the database
                pause_s /= 4
            if await self._is_lost_within(pause_s * random.uniform(0.9, 1.0)):
                return

    def renew_late(self, term: int) -> None:
        """Renew from another thread while the event loop is busy; not if it is stuck for good."""
        now = self._clock()
        believed_s = self._believed_until - self._times.valid_s * (1 - DRIFT)
        is_late = now - believed_s > LATE * self._times.renew_s
        if not is_late or not self._is_in(term) or now - self._awake > STUCK_S:
            return
        try:
            if self._lease.renew(term) and self._is_in(term):
                self._believe(now)
        except Exception as error:  # noqa: BLE001 - the thread is needed for as long as the term
            self._note(str(error))

    def _is_in(self, term: int) -> bool:
        """Tell whether it leads in this term, and has not given it up."""
        return self.term == term and not self._lost.is_set()

    @property
    def times(self) -> Times:
        """How often, and for how long."""
        return self._times

    async def _is_lost_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        except TimeoutError:
            return False
        return True

    async def look(self) -> None:
        """Read who leads."""
        before, was_late = self._lead, self.is_late
        asked = self._clock()
        self._lead = await self._ask(self._lease.look)
        self._looked = asked
        self.trouble = ""
        self._has_seen_one = self._has_seen_one or self._lead.is_held
        is_another = (before.term, before.is_held) != (self._lead.term, self._lead.is_held)
        if is_another or (was_late and not self.is_late):
            self.announce()

    def _believe(self, asked: float) -> None:
        self._believed_until = asked + self._times.valid_s * (1 - DRIFT)
        self.trouble = ""

    def _note(self, trouble: str) -> None:
        if not self.trouble:
            log.warning("the lead is not certain", error=trouble)
        self.trouble = trouble

    def announce(self) -> None:
        """Wake all who wait for a change; later ones wait for the next."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _ask(self, question: Callable[[], T]) -> T:
        return await self._thread.run(question)


class _Helper(Thread):
    """Renews when the event loop is too busy to: a large submission must not cost the lead."""

    def __init__(self, leadership: Leadership, term: int) -> None:
        super().__init__(name="lease", daemon=True)
        self._leadership = leadership
        self._term = term
        self._over = Event()
        self.start()

    def run(self) -> None:
        """Look twice in every interval."""
        while not self._over.wait(self._leadership.times.renew_s / 2):
            self._leadership.renew_late(self._term)

    def stop(self) -> None:
        """Renew no more."""
        self._over.set()
