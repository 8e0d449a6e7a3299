"""What the API needs from below, as protocols.

The control loop fulfils `Service`; whoever reads logs from nodes fulfils `LogSource`. Nothing here
does anything, so that tests can put real or small parts behind the same handlers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gpu_scheduler.api.ha.gate import LeadershipStatus
from gpu_scheduler.api.nodes.streams import TerminalSession
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import Command
from gpu_scheduler.control.self_monitoring import HealthFinding, LoopMetrics
from gpu_scheduler.ledger.cost import PriceList, Prices
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.model.plan import Allocation, Plan
from gpu_scheduler.notify.service import Notifications
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import AuditRow, EventRow, Write
from gpu_scheduler.wire import agent_pb2 as pb

ExtraWrites = Callable[[Sequence[Outcome]], Sequence[Write]]
"""From what a command led to, to further rows that are kept in the same commit."""


Attach = Callable[[Job, Launch, Allocation], tuple[str, ...]]
"""The command that a person runs to look into a running job; empty if there is none."""


class Service(Protocol):
    """The one writer, its state, and what has been committed."""

    @property
    def core(self) -> Core:
        """State as of the last accepted message: for reasons, forecasts and the cluster state."""
        ...

    @property
    def store(self) -> Store:
        """State as of the last commit."""
        ...

    @property
    def telemetry(self) -> Mapping[str, NodeReadings]:
        """The last readings by node."""
        ...

    @property
    def last_plan(self) -> Plan | None:
        """What the last cycle decided."""
        ...

    @property
    def tallies(self) -> LoopMetrics:
        """What was counted since the start."""
        ...

    @property
    def trouble(self) -> str:
        """Why the last commit failed; empty if it did not."""
        ...

    @property
    def away(self) -> str:
        """Why nothing can be asked or changed now: the store is away. Empty if it is not."""
        ...

    def look_for_tokens(self) -> None:
        """Take in tokens that somebody else may have made since the core was read."""
        ...

    def note(self, row: AuditRow) -> None:
        """Keep a record with one of the next commits; nobody waits for it."""
        ...

    def now_ms(self) -> int:
        """The time by which the core goes."""
        ...

    async def apply(
        self, message: Command, caller: Caller, *, extra_writes: ExtraWrites | None = None
    ) -> Outcome:
        """Accept one command; return after its commit, or raise and leave nothing behind."""
        ...

    def subscribe(self, after: int | None = None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events with their sequence numbers, in order, from behind `after`: old ones, then new.

        Ends when the subscriber falls too far behind, or the service closes.
        """
        ...


class LogSource(Protocol):
    """Where the output of jobs comes from."""

    def read_log(
        self,
        job_id: str,
        allocation_id: str,
        member: int,
        offset: int,
        limit: int,
        follow: bool,
    ) -> AsyncIterator[bytes]:
        """Bytes of one member's log from an offset on (negative: from the end).

        A limit of 0 means all there is. With `follow`, goes on until the attempt has ended.
        """
        ...


class TerminalSource(Protocol):
    """Where the terminals of jobs are joined."""

    def open(
        self, node_id: str, asked: pb.TerminalOpen
    ) -> AbstractAsyncContextManager[TerminalSession]:
        """Join one, for as long as the block lasts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large what comes in may be, and how much may go out at once."""

    body_bytes: int = 1 << 20
    bulk_bytes: int = 16 << 20
    bulk_jobs: int = 10_000
    query_bytes: int = 4096
    page: int = 1000
    sockets_per_user: int = 64
    logs_per_user: int = 64
    send_seconds: float = 10.0
    receive_seconds: float = 30.0
    requests_per_second: float = 0.0
    requests_burst: int = 2000
    connections: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What the API must know of its surroundings.

    `server_uid` is who runs the server, `admins` are further users who may do everything,
    `host_names` are further names by which it may be called (besides localhost and the loopback
    addresses). `version` is shown by /health. `attach` says what enters the session of a job.
    `runner` is for jobs that do not name one.
    `notifications` are those who tell people what happens, `prices` are for reports,
    `vitals` what the server watches of itself.
    Nodes come without TLS if they are `plain_nodes`.
    With `auth` off everybody may do everything. `warnings` are shown by /health. `standing` says
    who leads, where there can be several servers.
    """

    server_uid: int
    admins: tuple[str, ...] = ()
    host_names: tuple[str, ...] = ()
    version: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    attach: Attach | None = None
    notifications: Notifications | None = None
    runner: Runner = Runner.PROCESS
    vitals: Callable[[], Iterable[HealthFinding]] | None = None
    prices: PriceList = field(default_factory=lambda: PriceList(first=Prices(other_gpu_micro=0)))
    auth: bool = True
    max_token_days: float = 365.0
    warnings: tuple[str, ...] = ()
    plain_nodes: bool = False
    leadership: LeadershipStatus | None = None
    started: float = 0.0
