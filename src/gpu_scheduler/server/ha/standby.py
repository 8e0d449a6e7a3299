"""A standby: it reads what the leader has committed, and decides nothing.

Rows are read from the database on request. What is computed from all rows (placements, reasons,
forecasts, tokens) comes from a core of its own, which is reloaded when it is too old. The standby
runs a scheduling cycle on that core only to explain why jobs wait; it never applies the plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import structlog

from gpu_scheduler.api.ha.leadership_gate import (
    AGE,
    HEALTH,
    ROLE,
    TERM,
    LeadershipStatus,
    reject,
    with_headers,
)
from gpu_scheduler.api.http.errors import ErrorForm
from gpu_scheduler.api.http.request import AsgiApp
from gpu_scheduler.control.clock import RECORD, StoredClock
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import Command
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.scheduling.cycle import correct_expectations, refresh_account_usage
from gpu_scheduler.control.self_monitoring import LoopMetrics
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.model.errors import NotLeader, SchedulerError
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import AuditRow, EventRow

MAX_AGE_S = 2.0
RELOAD_RATIO = 10
"""Reloading takes at most one part in this many of the time: a large queue is read less often."""
EVENT_POLL_S = 0.3
TOKEN_POLL_S = 0.5
EVENT_PAGE = 1_000
log = structlog.get_logger("standby")

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@runtime_checkable
class SnapshotStore(Protocol):
    """A store that another server writes to."""

    def read_snapshot(self, work: Callable[[Any], Core]) -> Core:
        """Run several reads on one consistent snapshot."""
        ...


class StandbyService:
    """The read-only form of `api.interfaces.Service`."""

    def __init__(
        self, store: Store, new_core: Callable[[], Core], now_ms: Callable[[], int]
    ) -> None:
        """Nothing is loaded yet."""
        self.store = store
        self.core = new_core()
        self.loop_metrics = LoopMetrics()
        self.last_plan: Plan | None = None
        self.telemetry: Mapping[str, NodeReadings] = {}
        self.trouble = ""
        self.cycle_trouble = ""
        self._new_core = new_core
        self._now_ms = now_ms
        self._loaded_at = -1e9
        self._tokens_polled_until = 0.0
        self._reload_took_s = 0.0
        self._reloading: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    @property
    def away(self) -> str:
        """Why the store cannot be reached; empty if it can."""
        return self.store.unavailable_reason()

    def now_ms(self) -> int:
        """The time that the core uses."""
        return self._now_ms()

    def calendar_ms(self) -> int:
        """The time with which begin times and advance reservations are compared."""
        return self.core.state.calendar_ms(self._now_ms())

    def look_for_tokens(self) -> None:
        """Load tokens that the leader has made since the core was loaded, and their tenants.

        This is rate-limited, because a caller with a wrong token is not authenticated.
        """
        now = time.monotonic()
        if now < self._tokens_polled_until:
            return
        self._tokens_polled_until = now + TOKEN_POLL_S
        state = self.core.state
        for tenant in self.store.tenants():
            if tenant.id not in state.cluster.tenants:
                state.set_tenant(tenant)
        for token in self.store.tokens():
            state.tokens[token.id] = token
            state.token_ids[token.secret_hash] = token.id

    def note(self, row: AuditRow) -> None:
        """Log a rejected request: only the leader writes the audit log."""
        log.info("request rejected", user=row.user, action=row.action, target=row.target)

    async def apply(self, message: Command, caller: Caller, **_: object) -> Outcome:
        """Reject every command."""
        raise NotLeader(
            f"this server is a standby and cannot run {type(message).__name__} for "
            f"'{caller.user}'; ask the leader"
        )

    async def subscribe(self, after: int | None = None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events after sequence number `after`, polled from the database."""
        seen = await asyncio.to_thread(self.store.last_event) if after is None else after
        while not self._closed.is_set():
            page = await asyncio.to_thread(self.store.events, seen, EVENT_PAGE)
            for sequence, event in page:
                seen = sequence
                yield sequence, event
            if len(page) < EVENT_PAGE:
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVENT_POLL_S):
                        await self._closed.wait()

    @property
    def age_s(self) -> float:
        """Age of the core."""
        return time.monotonic() - self._loaded_at

    async def fresh(self) -> None:
        """Reload the core if it is too old. Concurrent callers wait for the same reload."""
        is_fresh = self.age_s < max(MAX_AGE_S, RELOAD_RATIO * self._reload_took_s)
        # An error in a forecast may have left the state half changed.
        if is_fresh and not self.core.state.cluster.trials:
            return
        if self._reloading is None:
            self._reloading = asyncio.create_task(self._reload())
        await asyncio.shield(self._reloading)

    async def _reload(self) -> None:
        began = time.monotonic()
        try:
            self.core, self.last_plan = await asyncio.to_thread(self._load)
            self.loop_metrics.messages += 1  # answers computed from the old core are out of date
            self._loaded_at = began
            self._reload_took_s = time.monotonic() - began
            self.trouble = ""
        except SchedulerError as error:
            self.trouble = str(error)
            raise
        finally:
            self._reloading = None

    def _load(self) -> tuple[Core, Plan]:
        """The state, and the plan that the leader would make from it."""
        # One snapshot: the leader keeps writing meanwhile.
        if isinstance(self.store, SnapshotStore):
            core = self.store.read_snapshot(self._build_core)
        else:
            core = self._build_core(self.store)
        state, now_ms = core.state, self._now_ms()
        try:
            correct_expectations(state, now_ms)
            refresh_account_usage(state, now_ms)
            return core, decide(state.cluster, state.policy, now_ms)
        except Exception:
            # A bug here costs the reasons of waiting jobs, not the proxy to the leader.
            log.exception("cannot compute the plan of the leader")
            return core, Plan()

    def _build_core(self, store: Any) -> Core:
        core = self._new_core()
        if (clock := store.cursor(RECORD)) is not None:
            core.state.calendar = StoredClock.from_row(clock).calendar
        restore(core.state, store, self._now_ms())
        for node in store.nodes():
            core.state.cluster.set_node(node)  # liveness as the leader sees it
        return core

    def close(self) -> None:
        """End the event streams; their readers reconnect elsewhere."""
        self._closed.set()


class StandbyApplication:
    """Answers from the loaded state, with headers for the standby role and the age of the data."""

    def __init__(
        self, application: AsgiApp, service: StandbyService, election: LeadershipStatus
    ) -> None:
        """`application` answers from `service`."""
        self._application = application
        self._service = service
        self._election = election

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket (ASGI)."""
        try:
            await self._service.fresh()
        except Exception as error:
            if not isinstance(error, SchedulerError):
                log.exception("cannot load the state")
            if scope["path"] not in HEALTH:
                form = ErrorForm(error=f"this server is a standby: {error}", code="unavailable")
                await reject(scope, send, form)
                return

        async def send_marked(message: Any) -> None:
            await send(with_headers(message, self._headers(message)))

        await self._application(scope, receive, send_marked)

    def _headers(self, message: Any) -> list[tuple[bytes, bytes]]:
        if any(name == ROLE for name, _ in message.get("headers", ())):
            return []  # a response of the leader, passed on
        age_ms = max(0, round(self._service.age_s * 1000))
        return [
            (ROLE, b"standby"),
            (TERM, str(self._election.lead.term).encode()),
            (AGE, str(age_ms).encode()),
        ]
