"""A server that does not lead: it reads what the leader has committed, and decides nothing.

Rows are read from the database as they are asked for. What is computed from all of them (places,
reasons, forecasts, tokens) comes from a core of its own that is read anew when it is too old. What
a cycle would decide on it is never done: it says why jobs wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import structlog

from gpu_scheduler.api.ha.gate import (
    AGE,
    HEALTH,
    ROLE,
    TERM,
    AsgiApp,
    LeadershipStatus,
    refuse,
    with_headers,
)
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import Command
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.scheduling.cycle import correct_expectations, refresh_standings
from gpu_scheduler.control.self_monitoring import LoopMetrics
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.model.errors import NotLeader, SchedulerError
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import AuditRow, EventRow
from gpu_scheduler.wire.answers import ErrorForm

MOST_AGE_S = 2.0
WORTH = 10
"""Reading takes at most this part of the time: a large queue is read less often."""
LOOK_FOR_EVENTS_S = 0.3
LOOK_FOR_TOKENS_S = 0.5
EVENTS_AT_ONCE = 1_000
log = structlog.get_logger("standby")

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@runtime_checkable
class Shared(Protocol):
    """A store to which somebody else writes."""

    def at_one_moment(self, work: Callable[[Any], Core]) -> Core:
        """Read many things that fit together."""
        ...


class StandbyService:
    """What the API needs, by reading alone; see `api.service.Service`."""

    def __init__(
        self, store: Store, new_core: Callable[[], Core], now_ms: Callable[[], int]
    ) -> None:
        """Nothing is read yet."""
        self.store = store
        self.core = new_core()
        self.tallies = LoopMetrics()
        self.last_plan: Plan | None = None
        self.telemetry: Mapping[str, NodeReadings] = {}
        self.trouble = ""
        self._new_core = new_core
        self._now_ms = now_ms
        self._read_at = -1e9
        self._tokens_after = 0.0
        self._took_s = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    @property
    def away(self) -> str:
        """Why nothing can be asked now: the store is away. Empty if it is not."""
        return self.store.trouble()

    def now_ms(self) -> int:
        """The time by which the core goes."""
        return self._now_ms()

    def look_for_tokens(self) -> None:
        """Take in what the leader has made since the core was read, and the tenants it is for.

        Once in a while only: whoever shows a wrong token has not shown who they are.
        """
        now = time.monotonic()
        if now < self._tokens_after:
            return
        self._tokens_after = now + LOOK_FOR_TOKENS_S
        state = self.core.state
        for tenant in self.store.tenants():
            if tenant.id not in state.cluster.tenants:
                state.set_tenant(tenant)
        for token in self.store.tokens():
            state.tokens[token.id] = token
            state.token_ids[token.secret_hash] = token.id

    def note(self, row: AuditRow) -> None:
        """Only the leader keeps records; here a refusal goes into the log."""
        log.info("refused", user=row.user, action=row.action, target=row.target)

    async def apply(self, message: Command, caller: Caller, **_: object) -> Outcome:
        """Nothing is changed here."""
        raise NotLeader(
            f"this server does not lead, so '{caller.user}' cannot change anything through it "
            f"({type(message).__name__}); ask the leader"
        )

    async def subscribe(self, after: int | None = None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events behind `after`, as they are found in the database."""
        seen = await asyncio.to_thread(self.store.last_event) if after is None else after
        while not self._closed.is_set():
            page = await asyncio.to_thread(self.store.events, seen, EVENTS_AT_ONCE)
            for sequence, event in page:
                seen = sequence
                yield sequence, event
            if len(page) < EVENTS_AT_ONCE:
                await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_FOR_EVENTS_S):
                await self._closed.wait()
        except TimeoutError:
            return

    @property
    def age_s(self) -> float:
        """How old the core is."""
        return time.monotonic() - self._read_at

    async def fresh(self) -> None:
        """Read the core again if it is too old. Those who come meanwhile wait for the same one."""
        if self.age_s < max(MOST_AGE_S, WORTH * self._took_s):
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            self.core, self.last_plan = await asyncio.to_thread(self._read_all)
            self.tallies.messages += 1  # what was worked out on the old one is out of date
            self._read_at = began
            self._took_s = time.monotonic() - began
            self.trouble = ""
        except SchedulerError as error:
            self.trouble = str(error)
            raise
        finally:
            self._reading = None

    def _read_all(self) -> tuple[Core, Plan]:
        """The state, and what would be decided on it."""
        core = self._read_core()
        state, now_ms = core.state, self._now_ms()
        try:
            correct_expectations(state, now_ms)
            refresh_standings(state, now_ms)
            return core, decide(state.cluster, state.policy, now_ms)
        except Exception:
            # A bug must cost reasons, not the way to the leader.
            log.exception("what the leader decides is not known here")
            return core, Plan()

    def _read_core(self) -> Core:
        """All of it as of one moment: the leader goes on writing meanwhile."""
        if isinstance(self.store, Shared):
            return self.store.at_one_moment(self._core_from)
        return self._core_from(self.store)

    def _core_from(self, store: Any) -> Core:
        core = self._new_core()
        restore(core.state, store, self._now_ms())
        for node in store.nodes():
            core.state.cluster.set_node(node)  # as the leader sees it, who hears of it
        return core

    def close(self) -> None:
        """Let streams of events end: their readers go on elsewhere."""
        self._closed.set()


class StandbyFront:
    """Answers with what was read, and says that this is a standby and how old it can be."""

    def __init__(
        self, application: AsgiApp, service: StandbyService, standing: LeadershipStatus
    ) -> None:
        """`application` answers from `service`."""
        self._application = application
        self._service = service
        self._standing = standing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        try:
            await self._service.fresh()
        except Exception as error:
            if not isinstance(error, SchedulerError):
                log.exception("the state could not be read")
            if scope["path"] not in HEALTH:
                form = ErrorForm(error=f"this server stands by, and {error}", code="unavailable")
                await refuse(scope, send, form)
                return

        async def marked(message: Any) -> None:
            await send(with_headers(message, self._headers(message)))

        await self._application(scope, receive, marked)

    def _headers(self, message: Any) -> list[tuple[bytes, bytes]]:
        if any(name == ROLE for name, _ in message.get("headers", ())):
            return []  # the leader's own words, passed on
        age_ms = max(0, round(self._service.age_s * 1000))
        return [
            (ROLE, b"standby"),
            (TERM, str(self._standing.lead.term).encode()),
            (AGE, str(age_ms).encode()),
        ]
