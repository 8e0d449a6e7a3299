"""A model of the launcher: the same orders, reports and records, with simulated processes.

It gives the same guarantees as the real one. A record is on disk before its command starts; an end
is written before it is reported, and synced a moment later. So a launcher that dies forgets
nothing, and a machine that dies forgets at most the last ends, whose exit codes are then unknown.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from gpu_scheduler.agent.launcher_client import OrderRefused
from gpu_scheduler.agent.launcher_protocol import Began, Over, Prepared, Report, Work
from tests.faults.virtual_loop import Part

if TYPE_CHECKING:
    from tests.faults.node import VirtualNode

Key = tuple[str, int]
SYNC_S = 0.1
LEASE = "lease"
NOT_BEGUN = "not_begun"
BAD_HOOK = "exit code 3"
NEVER_BEGAN = "the launcher died before the command began"
RESTARTED = "the machine was restarted: exit code unknown"
UNKNOWN = "the launcher that began it had died: exit code unknown"


@dataclass(slots=True)
class Entry:
    """A record of the journal."""

    kind: str
    key: Key
    value: Any = None


class Journal:
    """The disk of a machine: everything that was synced, and any part of the rest."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.synced = 0

    def write(self, kind: str, key: Key, value: Any = None) -> None:
        self.entries.append(Entry(kind, key, value))

    def sync(self) -> None:
        self.synced = len(self.entries)

    def lose_power(self, random: Random) -> None:
        """Records reach the disk in order; some of the last ones did not."""
        kept = random.randint(self.synced, len(self.entries))
        del self.entries[kept:]
        self.synced = kept

    def held(self) -> set[Key]:
        """Records that were accepted and not forgotten."""
        found: set[Key] = set()
        for entry in self.entries:
            if entry.kind == "forget":
                found.discard(entry.key)
            else:
                found.add(entry.key)
        return found


@dataclass(slots=True, eq=False)
class Attempt:
    """One member of one attempt on this node."""

    key: Key
    work: Work
    is_recorded: bool = False
    runs: bool = False
    over: Over | None = None
    stopped_by: str = ""
    wanted_stop: str = ""
    is_adopted: bool = False
    is_prepared: bool = False
    is_committed: bool = False
    began_ms: int = 0
    until_ms: int = 0
    """By the clock since boot, for jobs with a lease."""
    recorded: list[Callable[[str], None]] = field(default_factory=list)


class ModelLauncher:
    """One run of a launcher process on its journal."""

    def __init__(self, node: VirtualNode, random: Random) -> None:
        self.node = node
        self.part = Part(f"{node.name}/launcher")
        self._random = random
        self._loop = node.loop
        self._journal = node.journal
        self.attempts: dict[Key, Attempt] = {}
        self.client: LauncherClient | None = None
        self._recover()

    # --- orders

    def hear(self, asker: LauncherClient, number: int, kind: str, args: tuple[Any, ...]) -> None:
        """Receive an order, perhaps for the second time; its sender may be dead by now."""

        def done(problem: str = "", value: Any = None) -> None:
            asker.told_later(number, problem, value)

        getattr(self, f"_do_{kind}")(*args, done)

    def _do_start(self, work: Work, done: Callable[..., None]) -> None:
        key = (work.allocation_id, work.member)
        if key in self.attempts:
            done()
            return
        attempt = self.attempts[key] = Attempt(key, work)
        if work.lease_ms and work.leased_ms + work.lease_ms <= self.node.machine.boot_ms():
            done()
            attempt.stopped_by = LEASE
            self._close(attempt, None, None, ran=False, detail="its lease was over before")
            return
        attempt.recorded.append(done)
        self._later(self._random.uniform(0.001, 0.03), self._record, attempt)

    def _do_stop(
        self, allocation_id: str, member: int, why: str, done: Callable[..., None]
    ) -> None:
        key = (allocation_id, member)
        attempt = self.attempts.get(key)
        if attempt is None:
            attempt = self.attempts[key] = Attempt(key, Work(allocation_id=key[0], member=key[1]))
        done()
        if attempt.over is not None:
            return
        if attempt.runs:
            self._stop(attempt, why)
        elif attempt.is_committed:
            attempt.wanted_stop = attempt.wanted_stop or why
        else:
            attempt.stopped_by = attempt.stopped_by or why
            self._close(attempt, None, None, ran=False, detail="stopped before it began")

    def _do_renew(self, asked_ms: int, done: Callable[..., None]) -> None:
        """Leases that have not expired restart from the time of the request."""
        now_ms = self.node.machine.boot_ms()
        if asked_ms > now_ms:
            done(f"a renewal from {asked_ms - now_ms} ms ahead")
            return
        for attempt in self.attempts.values():
            if attempt.over is None and attempt.until_ms > now_ms:
                self._lease(attempt, max(attempt.until_ms, asked_ms + attempt.work.lease_ms))
        done()

    def _do_warn(
        self, allocation_id: str, member: int, text: str, done: Callable[..., None]
    ) -> None:
        done()

    def _do_forget(self, allocation_id: str, member: int, done: Callable[..., None]) -> None:
        attempt = self.attempts.get((allocation_id, member))
        if attempt is None:
            done()
        elif attempt.over is None:
            done(f"{allocation_id} member {member} is not over; it can be forgotten when it is")
        else:
            del self.attempts[attempt.key]
            self._journal.write("forget", attempt.key)
            self._sync_later()
            done()

    def _do_held(self, done: Callable[..., None]) -> None:
        done("", [(*attempt.key, attempt.over) for attempt in self.attempts.values()])

    def _do_watch(self, done: Callable[..., None]) -> None:
        """An agent has connected: it gets everything that runs, and every unacknowledged end."""
        for attempt in self.attempts.values():
            if attempt.over is not None:
                self._report(attempt.over)
            elif attempt.is_prepared:
                self._report(self._prepared(attempt))
            elif attempt.runs:
                self._report(self._began(attempt))
        done()

    # --- beginning

    def _record(self, attempt: Attempt) -> None:
        if attempt.over is None:
            self._journal.write("accepted", attempt.key, attempt.work)
            self._later(self.node.sync_delay_s(), self._recorded, attempt)

    def _recorded(self, attempt: Attempt) -> None:
        self._journal.sync()
        attempt.is_recorded = True
        self._answer(attempt)
        if attempt.over is None and not self._prolog_fails(attempt):
            self._meet(attempt)

    def _prolog_fails(self, attempt: Attempt) -> bool:
        """The command of a member whose prolog fails never runs."""
        if not attempt.work.prolog or "prolog" not in self.node.broken_hooks:
            return False
        self.node.prolog_failed(attempt.key)
        detail = f"the prolog 'check' failed: {BAD_HOOK}"
        self._close(attempt, None, None, ran=False, detail=detail, prolog_failed=BAD_HOOK)
        return True

    def _answer(self, attempt: Attempt) -> None:
        for done in attempt.recorded:
            done("")
        attempt.recorded.clear()

    def _meet(self, attempt: Attempt) -> None:
        """Members of a gang on one node start together, or none of them does."""
        together = [a for a in self.attempts.values() if a.key[0] == attempt.key[0]]
        if any(other.over is not None for other in together):
            attempt.stopped_by = attempt.stopped_by or "gang"
            self._close(attempt, None, None, ran=False, detail="another member did not get ready")
            return
        ready = [other for other in together if other.is_recorded]
        if len(ready) >= attempt.work.members_here:
            for member in ready:
                if member.work.prepare_ms:
                    self._wait_for_commit(member)
                else:
                    self._go(member)

    def _wait_for_commit(self, attempt: Attempt) -> None:
        attempt.is_prepared = True
        self.node.prepared(attempt.key)
        self._later(attempt.work.prepare_ms / 1000, self._give_up, attempt)
        self._report(self._prepared(attempt))

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.is_prepared:
            attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
            self._close(attempt, None, None, ran=False, detail="no commit came in time")

    def _prepared(self, attempt: Attempt) -> Prepared:
        now_ms = self.node.machine.wall_ms()
        return Prepared(allocation_id=attempt.key[0], member=attempt.key[1], at_ms=now_ms)

    def _do_commit(self, allocation_id: str, member: int, *rest: Any) -> None:
        """Start it, once; the record of its start is written first."""
        done = rest[-1]
        attempt = self.attempts.get((allocation_id, member))
        if attempt is None:
            done(f"{allocation_id} member {member} is not known on this node")
        elif attempt.is_committed or attempt.runs or (attempt.over and attempt.over.ran):
            done()
        elif not attempt.is_prepared:
            done(f"{allocation_id} member {member} does not wait for a commit any more")
        else:
            attempt.is_prepared = False
            attempt.is_committed = True
            done()
            self._journal.write("began", attempt.key)
            self._later(self.node.sync_delay_s(), self._committed, attempt)

    def _committed(self, attempt: Attempt) -> None:
        self._journal.sync()
        if attempt.over is None:
            self._go(attempt)

    def _go(self, attempt: Attempt) -> None:
        attempt.runs = True
        attempt.began_ms = self.node.machine.wall_ms()
        self.node.begin(attempt.work)
        attempt.until_ms = attempt.until_ms or attempt.work.leased_ms + attempt.work.lease_ms
        self._watch(attempt)
        self._report(self._began(attempt))
        if attempt.wanted_stop:
            self._stop(attempt, attempt.wanted_stop)

    # --- leases

    def _lease(self, attempt: Attempt, until_ms: int) -> None:
        """The job may run until then; some time before it is asked to end."""
        attempt.until_ms = until_ms
        if attempt.runs:
            self.node.lease(attempt.key, until_ms)
        work = attempt.work
        ask_ms = until_ms - min(work.grace_ms, work.lease_ms // 4)
        left_s = (ask_ms - self.node.machine.boot_ms()) / 1000
        self._later(max(0.0, left_s), self._look, attempt, until_ms)

    def _look(self, attempt: Attempt, until_ms: int) -> None:
        if attempt.over is not None or attempt.until_ms != until_ms:
            return
        if attempt.runs:
            self._stop(attempt, LEASE)
        else:
            attempt.stopped_by = attempt.stopped_by or LEASE
            self._close(attempt, None, None, ran=False, detail="its lease was over before")

    def _watch(self, attempt: Attempt) -> None:
        if attempt.work.lease_ms:
            self._lease(attempt, attempt.until_ms)
        limit_ms = attempt.work.limit_ms
        if limit_ms:
            self._later(limit_ms / 1000, self._stop, attempt, "timeout")

    def _began(self, attempt: Attempt) -> Began:
        key = attempt.key
        return Began(allocation_id=key[0], member=key[1], pid=1, at_ms=attempt.began_ms)

    # --- ending

    def _stop(self, attempt: Attempt, why: str) -> None:
        if attempt.over is None and not attempt.stopped_by:
            attempt.stopped_by = why
            self._journal.write("stop", attempt.key, why)
            self.node.signal(attempt.key, signal.SIGTERM)
            self._later(attempt.work.grace_ms / 1000, self._kill, attempt)

    def _kill(self, attempt: Attempt) -> None:
        if attempt.over is None:
            self.node.signal(attempt.key, signal.SIGKILL)

    def process_gone(self, key: Key, exit_code: int | None, number: int | None) -> None:
        """A process has ended; without its parent the exit code is unknown."""
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.over is None:
            if attempt.work.lease_ms and attempt.until_ms <= self.node.machine.boot_ms():
                attempt.stopped_by = attempt.stopped_by or LEASE
            if attempt.is_adopted:
                self._later(0.02, self._close_unknown, attempt, UNKNOWN)
            else:
                self._later(
                    self._random.uniform(0.001, 0.05), self._close, attempt, exit_code, number
                )

    def _close_unknown(self, attempt: Attempt, detail: str) -> None:
        self._close(attempt, None, None, detail=detail)

    def _close(
        self,
        attempt: Attempt,
        exit_code: int | None,
        number: int | None,
        *,
        ran: bool = True,
        detail: str = "",
        prolog_failed: str = "",
    ) -> None:
        """Write the end to the journal, then report it."""
        if attempt.over is not None:
            return
        attempt.runs = attempt.is_prepared = False
        attempt.over = Over(
            allocation_id=attempt.key[0],
            member=attempt.key[1],
            exit_code=exit_code,
            signal=number,
            ran=ran,
            at_ms=self.node.machine.wall_ms(),
            boot_id=self.node.machine.boot_id(),
            boot_ms=self.node.machine.boot_ms(),
            run_ms=0,
            stopped_by=attempt.stopped_by,
            detail=detail,
            prolog_failed=prolog_failed,
            epilog_failed=BAD_HOOK if ran and "epilog" in self.node.broken_hooks else "",
        )
        self._journal.write("end", attempt.key, attempt.over)
        self._sync_later()
        self._answer(attempt)
        self._report(attempt.over)
        for other in list(self.attempts.values()):
            waits = other.is_recorded and not other.runs and not other.is_committed
            if other.key[0] == attempt.key[0] and waits:
                self._never_together(other)

    def _never_together(self, attempt: Attempt) -> None:
        if attempt.over is None:
            attempt.stopped_by = attempt.stopped_by or "gang"
            self._close(attempt, None, None, ran=False, detail="another member did not get ready")

    # --- taking over

    def _recover(self) -> None:
        for entry in self._journal.entries:
            if entry.kind == "accepted":
                self.attempts[entry.key] = Attempt(entry.key, entry.value, is_recorded=True)
            elif entry.kind == "stop" and entry.key in self.attempts:
                self.attempts[entry.key].stopped_by = entry.value
            elif entry.kind == "end":
                work = Work(allocation_id=entry.key[0], member=entry.key[1])
                attempt = self.attempts.setdefault(entry.key, Attempt(entry.key, work))
                attempt.over = entry.value
            elif entry.kind == "forget":
                self.attempts.pop(entry.key, None)
        for attempt in list(self.attempts.values()):
            if attempt.over is None:
                self._take_over(attempt)

    def _take_over(self, attempt: Attempt) -> None:
        attempt.is_adopted = True
        if self.node.runs(attempt.key):
            attempt.runs = True
            attempt.until_ms = self.node.leases.get(attempt.key, 0)
            self._watch(attempt)
            if attempt.stopped_by:
                why, attempt.stopped_by = attempt.stopped_by, ""
                self._later(0.0, self._stop, attempt, why)
        elif not self.node.has_begun(attempt.key):
            self._later(0.0, self._never_began, attempt)
        else:
            detail = UNKNOWN if self.node.began_in_this_boot(attempt.key) else RESTARTED
            self._later(0.0, self._close_unknown, attempt, detail)

    def _never_began(self, attempt: Attempt) -> None:
        if attempt.work.prepare_ms or attempt.work.prolog:
            attempt.stopped_by = attempt.stopped_by or NOT_BEGUN
        self._close(attempt, None, None, ran=False, detail=NEVER_BEGAN)

    # --- helpers

    def _report(self, report: Report) -> None:
        if self.client is not None:
            self.client.reported_later(report)

    def _sync_later(self) -> None:
        self._later(SYNC_S, self._journal.sync)

    def _later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        self._loop.tell(self.part, delay_s, callback, *args)


class LauncherClient:
    """The client of the launcher that an agent uses; the same methods as the real one."""

    capabilities: dict[str, Any] = {"runners": ["process"]}  # noqa: RUF012
    keeps_leases = True
    is_outdated = False

    def __init__(self, node: VirtualNode, part: Part, random: Random) -> None:
        self._node = node
        self._part = part
        self._random = random
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self._asked: dict[int, tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = {}
        self._number = 0
        self._last_at = 0.0

    async def start(self, work: Work) -> None:
        await self._ask("start", work)

    async def stop(
        self, allocation_id: str, member: int, why: str, grace_ms: int | None = None
    ) -> None:
        await self._ask("stop", allocation_id, member, why)

    async def commit(
        self, allocation_id: str, member: int, environment: dict[str, str], files: dict[str, str]
    ) -> None:
        await self._ask("commit", allocation_id, member, environment, files)

    async def renew(self, asked_ms: int) -> None:
        await self._ask("renew", asked_ms)

    async def warn(self, allocation_id: str, member: int, text: str) -> None:
        await self._ask("warn", allocation_id, member, text)

    async def forget(self, allocation_id: str, member: int) -> None:
        await self._ask("forget", allocation_id, member)

    async def held(self) -> list[tuple[str, int, Over | None]]:
        found: list[tuple[str, int, Over | None]] = await self._ask("held")
        return found

    def reports(self) -> LauncherClient:
        return self

    def __aiter__(self) -> LauncherClient:
        return self

    async def __anext__(self) -> Report:
        return await self._reports.get()

    # --- the socket between them

    def join(self, launcher: ModelLauncher) -> None:
        """A launcher answers: repeat all unanswered orders."""
        launcher.client = self
        self._send(launcher, 0, "watch", ())
        for number, (kind, args, _) in list(self._asked.items()):
            self._send(launcher, number, kind, args)

    async def _ask(self, kind: str, *args: Any) -> Any:
        self._number += 1
        number = self._number
        answer = self._node.loop.create_future()
        self._asked[number] = (kind, args, answer)
        if self._node.launcher is not None:
            self._send(self._node.launcher, number, kind, args)
        try:
            problem, value = await answer
        finally:
            self._asked.pop(number, None)
        if problem:
            raise OrderRefused(problem)
        return value

    def _send(self, launcher: ModelLauncher, number: int, kind: str, args: tuple[Any, ...]) -> None:
        """Written data stays in the socket until it is read, even when its writer dies."""
        loop = self._node.loop
        pause_s = 0.0005
        if self._random.random() < self._node.busy:
            pause_s = self._random.uniform(0.01, 0.5)
        self._last_at = max(self._last_at, loop.time() + pause_s)
        loop.tell(
            launcher.part, self._last_at - loop.time(), launcher.hear, self, number, kind, args
        )

    def told_later(self, number: int, problem: str, value: Any) -> None:
        self._node.loop.tell(self._part, 0.0005, self._told, number, problem, value)

    def _told(self, number: int, problem: str, value: Any) -> None:
        asked = self._asked.get(number)
        if asked is not None and not asked[2].done():
            asked[2].set_result((problem, value))

    def reported_later(self, report: Report) -> None:
        self._node.loop.tell(self._part, 0.0005, self._reports.put_nowait, report)
