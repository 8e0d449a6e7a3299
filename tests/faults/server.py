"""A server that can be killed: the real control loop and the real agent service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from gpu_scheduler.api.http.idempotency import IdempotencyStore
from gpu_scheduler.api.http.request import Response
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.clock import SchedulerClock
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Command
from gpu_scheduler.model.errors import ClusterError, SchedulerError
from gpu_scheduler.model.identity import Caller, ServerMember
from gpu_scheduler.predict.history import History
from gpu_scheduler.server.background.clock_watch import ClockWatch, resume_clock
from gpu_scheduler.server.from_settings import (
    check_node_timeouts,
    limits_of,
    node_timeouts_of,
    policy_of,
)
from gpu_scheduler.server.grpc import AgentGate
from gpu_scheduler.server.ha.election import LeaderElector, LeaseTimes
from gpu_scheduler.settings.groups.cluster import NodeSettings
from gpu_scheduler.settings.schema import Settings
from tests.faults.audit import Audit
from tests.faults.disk import Disk, DiskLease, DiskWriter, Rows
from tests.faults.network import Broken, Connection
from tests.faults.node import VirtualMachine
from tests.faults.virtual_loop import Part, VirtualLoop

T = TypeVar("T")
START_AGAIN_S = 1.0


class NoContext:
    """Stands in for the context of a gRPC call."""

    async def abort(self, code: object, text: str) -> None:
        raise ClusterError(f"{code}: {text}")


class VirtualServer:
    """Successive server processes on the same database, alone or among others."""

    def __init__(
        self, loop: VirtualLoop, audit: Audit, disk: Disk, name: str, *, is_alone: bool
    ) -> None:
        self.name = name
        self.machine = VirtualMachine(loop)
        self.part = Part(name)
        self.part.is_dead = True
        self.loop: Loop | None = None
        self._agents: Agents | None = None
        self._clock_watch: asyncio.Task[None] | None = None
        self._repeats: IdempotencyStore | None = None
        self._holds: Callable[[], bool] = lambda: True
        self._gate: AgentGate | None = None
        self._elector: LeaderElector | None = None
        self._writers: list[DiskWriter] = []
        self._is_alone = is_alone
        self._events = loop
        self._audit = audit
        self._disk = disk
        self._rows = Rows(disk, name)

    # --- start and stop

    def start(self) -> None:
        if self.part.is_dead:
            self._audit.note("server starts", self.name)
            self.part = Part(self.name)
            self._rows = Rows(self._disk, self.name)
            self._events.start(self.part, self._live() if self._is_alone else self._compete())

    async def _live(self) -> None:
        """A single server leads from its start to its end."""
        self._gate = AgentGate()
        while True:
            try:
                await self._begin(0)
                break
            except SchedulerError:
                await asyncio.sleep(START_AGAIN_S)

    async def _compete(self) -> None:
        """One of several servers leads when it can."""
        gate = self._gate = AgentGate()
        times = LeaseTimes()
        me = ServerMember(name=self.name, address=self.name, agents=self.name)
        self._elector = gate.election = LeaderElector(
            DiskLease(self._disk, me, times.valid_s),
            times,
            clock=lambda: self.machine.boot_ms() / 1000,
            thread=self._new_writer(),
        )
        await self._elector.run(self._begin, self._end)

    async def _begin(self, term: int) -> None:
        try:
            await self._lead(term)
        except SchedulerError:
            raise
        except Exception as error:
            self._audit.problem(f"{self.name} cannot lead: {error!r}")
            raise

    async def _lead(self, term: int) -> None:
        rows: Any = self._rows
        if self._elector is not None:
            rows.fence(term)
        clock = SchedulerClock(
            wall_ms=self.machine.wall_ms,
            boot_ms=self.machine.boot_ms,
            boot_id=lambda: f"{self.name} {self.machine.boot_id()}",
            is_synchronised=lambda: False,
        )
        resume_clock(clock, rows)
        loop = Loop(
            rows,
            new_core,
            clock.now_ms,
            writer=self._new_writer(),
            calendar=lambda: clock.calendar,
        )
        elector = self._elector

        def holds() -> bool:
            return elector is None or (elector.term == term and elector.is_held)

        if elector is not None:
            loop.on_deposed(elector.step_down)
            loop.on_written(elector.on_commit)
            self._audit.note("leads", self.name, term)
        agents = Agents(loop, timeouts=node_timeouts_of(SETTINGS.nodes), term=term, may_order=holds)
        loop.start()
        self._clock_watch = asyncio.create_task(ClockWatch(loop, clock).run())
        agents.watch_known_nodes()
        service: Any = loop
        self.loop, self._agents, self._repeats = loop, agents, IdempotencyStore(service)
        self._holds = holds
        if self._gate is not None:
            self._gate.open(agents)

    async def _end(self) -> None:
        """It no longer leads, and continues as a standby."""
        self._audit.note("leads no more", self.name)
        self._rows.fence(0)
        loop, agents = self.loop, self._agents
        if self._clock_watch is not None:
            self._clock_watch.cancel()
        self.loop = self._agents = self._repeats = None
        if self._gate is not None:
            self._gate.shut()
        if agents is not None:
            agents.close()
        if loop is not None:
            await loop.close()

    def _new_writer(self) -> DiskWriter:
        writer = DiskWriter(self._disk, self.name)
        self._writers.append(writer)
        return writer

    def kill(self) -> None:
        if not self.part.is_dead:
            self._audit.note("server dies", self.name)
            self._events.kill(self.part)
            self.loop = self._agents = self._repeats = self._gate = self._elector = None
            for writer in self._writers:
                writer.die()
            self._writers.clear()

    # --- agents

    @property
    def is_listening(self) -> bool:
        return self._gate is not None

    def accept(self, connection: Connection) -> None:
        """An agent has connected."""
        task = self._events.start(self.part, self._serve(connection))
        connection.on_server_end = task.cancel

    async def _serve(self, connection: Connection) -> None:
        if self._gate is None:
            return
        context: Any = NoContext()
        try:
            async for message in self._gate.session(connection.requests(), context):
                connection.answer(message)
        except SchedulerError as error:
            self._audit.note("session refused", self.name, connection.link[0], error)
        finally:
            connection.lose("server", "the stream has ended")

    # --- commands and clients

    async def apply_once(self, key: str, command: Command, caller: Caller) -> str:
        """Handle a request with an Idempotency-Key as the API does; returns the id of its job.

        Like the API's gate it does not answer once leadership is lost: even a rejection may be
        outdated.
        """
        loop, repeats, holds = self.loop, self._repeats, self._holds
        if loop is None or repeats is None or not holds():
            raise Broken("this server does not lead")
        call: Any = SimpleNamespace(
            headers={b"idempotency-key": key.encode()},
            caller=caller,
            scope={"method": "POST", "path": "/", "query_string": b""},
        )

        def tell(outcome: Outcome) -> Response:
            if outcome.service is not None:
                return Response(outcome.service.id.encode())
            return Response(",".join(job.id for job in outcome.jobs).encode())

        try:
            return (await repeats.run_once(call, key.encode(), command, tell)).body.decode()
        finally:
            if not holds():
                raise Broken("this server lost the lead meanwhile")


SETTINGS = Settings(nodes=NodeSettings(lease_s=80.0, lease_margin_s=10.0))
"""Default limits, except that leases expire within a fault."""
check_node_timeouts(SETTINGS.nodes, SETTINGS.agent)
LIMITS = replace(limits_of(SETTINGS), quarantine_after=0)
"""GPUs are not quarantined, because there is no admin to resume them."""


def new_core() -> Core:
    """As the server itself makes it."""
    return Core(policy_of(SETTINGS), History(), LIMITS)


async def request(
    events: VirtualLoop,
    server: VirtualServer,
    delay_s: Callable[[], float],
    work: Callable[[], Awaitable[T]],
) -> T:
    """Send a request to a server over the network. TimeoutError: the outcome is unknown."""
    await asyncio.sleep(delay_s())
    if not server.is_listening:
        raise Broken("connection refused")
    answer: asyncio.Future[T] = events.create_future()

    async def handle() -> None:
        try:
            result = await work()
        except Exception as error:  # noqa: BLE001 - whoever asks must hear of it
            events.tell(None, delay_s(), _settle, answer, None, error)
        else:
            events.tell(None, delay_s(), _settle, answer, result, None)

    events.start(server.part, handle())
    async with asyncio.timeout(10):
        return await answer


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not answer.done():
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)
