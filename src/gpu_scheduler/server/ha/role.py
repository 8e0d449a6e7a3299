"""What a server is at the moment: the leader, or one that stands by; and the change between them.

The listeners stay. What stands behind them is exchanged first, and taken down afterwards, so that
nobody is answered by a leader that is none any more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

import structlog

from gpu_scheduler.api.application import Applications
from gpu_scheduler.api.ha.forwarded_identity import ForwardedIdentityMiddleware, IdentityVerifier
from gpu_scheduler.api.ha.gate import LeaderGate, SwitchableApp
from gpu_scheduler.api.ha.proxy import LeaderProxy
from gpu_scheduler.model.errors import ClusterError, InternalError
from gpu_scheduler.server.ha.agent_gate import AgentDoor
from gpu_scheduler.server.ha.components import Parts
from gpu_scheduler.server.ha.election import Leadership
from gpu_scheduler.server.ha.leader import Leading, new_core
from gpu_scheduler.server.ha.standby import StandbyFront, StandbyService
from gpu_scheduler.server.http_api import leading_api, standby_api

LAST_ANSWERS_S = 2.0
log = structlog.get_logger("server")


class Alone:
    """The only server of its database: it leads from its start to its stop."""

    def __init__(self, parts: Parts, door: AgentDoor) -> None:
        """Nothing works yet."""
        self._parts = parts
        self._leading = Leading(parts.settings, parts.paths, parts.store, parts.clock)
        self.door = door

    async def begin(self) -> Applications:
        """Work; what answers."""
        await self._leading.begin()
        self.door.open(self._leading.agents)
        return leading_api(self._parts, self._leading)

    async def settle(self) -> None:
        """There is nothing to wait for."""

    async def watch(self) -> None:
        """Its part cannot be lost."""
        await asyncio.Event().wait()

    async def end(self) -> None:
        """Work no more."""
        self.door.shut()
        await self._leading.end()


class OneOfSeveral:
    """A server on a database that others use as well: one of them leads."""

    def __init__(
        self,
        parts: Parts,
        door: AgentDoor,
        leadership: Leadership,
        fence: Callable[[int], None],
    ) -> None:
        """`fence` binds all further commits to a term; 0: to none at all."""
        self._parts = parts
        self._leadership = leadership
        self._fence = fence
        self._secret = b""
        self._is_over = False
        self._leading: Leading | None = None
        self._standby: StandbyService | None = None
        self._main = SwitchableApp()
        self._metrics = SwitchableApp()
        self._gate: LeaderGate | None = None
        self._role: asyncio.Task[None] | None = None
        self.door = door
        door.standing = leadership

    async def begin(self) -> Applications:
        """Stand by, and lead as soon as nobody else does."""
        self._secret = await self._leadership.secret()
        await self._leadership.arrive()
        self._check_alone()
        self._fence(0)
        self._follow()
        self._role = asyncio.create_task(self._leadership.run(self._lead, self._lost))
        return Applications(self._main, self._metrics)

    async def settle(self) -> None:
        """Wait until somebody leads."""
        while not self._leadership.lead.is_held or (self._leadership.term and not self._leading):
            await self._leadership.changed()

    async def watch(self) -> None:
        """Raise if this server does not take part in who leads any more; else wait."""
        cause: BaseException | None = None
        if self._role is not None:
            await asyncio.wait({self._role})
            cause = None if self._role.cancelled() else self._role.exception()
        raise InternalError(
            f"this server does not take part in who leads any more ({cause!r}), so it ends; "
            "start it again"
        ) from cause

    async def end(self) -> None:
        """Hand over: finish what has come as the leader, then let another one lead at once."""
        if self._is_over:
            return
        self._is_over = True
        leading = self._leading
        if leading is not None:
            self._follow()
            await leading.end()
            if self._gate is not None:
                await self._gate.finish_changes(LAST_ANSWERS_S)
        if self._role is not None:
            self._role.cancel()
            await asyncio.gather(self._role, return_exceptions=True)
        await self._leadership.release()
        self._leadership.close()

    def _check_alone(self) -> None:
        lead = self._leadership.lead
        is_other = lead.is_held and lead.holder != self._leadership.me.name
        if is_other and not self._parts.settings.replication.enabled:
            raise ClusterError(
                f"server '{lead.holder}' at {lead.address} uses this database, and "
                "replication.enabled is off; stop that one first, or switch it on to stand by"
            )

    async def _lead(self, term: int) -> None:
        """Read everything, and work."""
        self._fence(term)
        leadership = self._leadership
        make = partial(Leading, term=term, may_order=lambda: _holds(leadership, term))
        parts = self._parts
        leading = await asyncio.to_thread(
            make, parts.settings, parts.paths, parts.store, parts.clock
        )
        leading.loop.on_deposed(leadership.lose)
        leading.loop.on_written(leadership.note_commit)
        self._leading = leading
        await leading.begin()
        applications = leading_api(parts, leading, leadership)
        vouched = IdentityVerifier(self._secret, term)
        most = round(parts.settings.api.max_body_mb * (1 << 20))
        main = ForwardedIdentityMiddleware(applications.main, vouched, leadership, most)
        self._gate = self._main.application = LeaderGate(main, leadership, term)
        self._metrics.application = LeaderGate(applications.metrics, leadership, term)
        self.door.open(leading.agents)
        if self._standby is not None:
            self._standby.close()
        log.info("leading", term=term, nodes=len(leading.loop.core.state.cluster.index.by_id))
        leadership.announce()

    async def _lost(self) -> None:
        """Stand by again; whatever the leader still had under way is refused by the database."""
        leading, self._leading = self._leading, None
        self._fence(0)
        self._follow()
        if leading is not None:
            await leading.end()

    def _follow(self) -> None:
        self.door.shut()
        parts = self._parts
        standby = StandbyService(parts.store, new_core(parts.settings), parts.clock.now_ms)
        self._standby = standby
        forwarder = LeaderProxy(
            standing=self._leadership,
            secret=self._secret,
            tls=partial(_authorities, parts.settings.server.ca_file),
            age_s=lambda: standby.age_s,
        )
        applications = standby_api(parts, standby, self._leadership, forwarder)
        for switch, application in (
            (self._main, applications.main),
            (self._metrics, applications.metrics),
        ):
            switch.application = StandbyFront(application, standby, self._leadership)


Roles = Alone | OneOfSeveral


def _holds(leadership: Leadership, term: int) -> bool:
    return leadership.term == term and leadership.is_held


def _authorities(file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file or None)
