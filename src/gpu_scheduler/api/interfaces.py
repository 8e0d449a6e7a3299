"""What the API needs from the rest of the server, as protocols, and its settings.

The control loop implements `Service`, the server's log files implement `LogSource`. Tests can put
small fakes behind the same handlers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_scheduler.api.ha.leadership_gate import LeadershipStatus
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
from gpu_scheduler.settings.groups.network import TenantEntry
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import AuditRow, EventRow, Write

ExtraWrites = Callable[[Sequence[Outcome]], Sequence[Write]]
"""Makes additional rows for the commit of a command from its outcome."""


Attach = Callable[[Job, Launch, Allocation], tuple[str, ...]]
"""Returns the command with which a user attaches to a running job; empty if there is none."""


class Service(Protocol):
    """The control loop: the only writer, its state, and the store of what is committed."""

    @property
    def core(self) -> Core:
        """The state after the last accepted message."""
        ...

    @property
    def store(self) -> Store:
        """The state after the last commit."""
        ...

    @property
    def telemetry(self) -> Mapping[str, NodeReadings]:
        """The last device readings by node."""
        ...

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last scheduling cycle."""
        ...

    @property
    def loop_metrics(self) -> LoopMetrics:
        """The counters since the start."""
        ...

    @property
    def trouble(self) -> str:
        """Why the last commit failed; empty if it did not."""
        ...

    @property
    def cycle_trouble(self) -> str:
        """Why the last scheduling cycle failed; empty if it did not."""
        ...

    @property
    def away(self) -> str:
        """Why the store is unavailable, so that requests are rejected; empty if it is not."""
        ...

    def look_for_tokens(self) -> None:
        """Load tokens that another server may have created since the state was loaded."""
        ...

    def note(self, row: AuditRow) -> None:
        """Write an audit row with one of the next commits, without waiting for it."""
        ...

    def now_ms(self) -> int:
        """The time of the control loop."""
        ...

    def calendar_ms(self) -> int:
        """The time with which begin times and advance reservations are compared."""
        ...

    async def apply(
        self, message: Command, caller: Caller, *, extra_writes: ExtraWrites | None = None
    ) -> Outcome:
        """Execute one command; return after its commit, or raise without any effect."""
        ...

    def subscribe(self, after: int | None = None) -> AsyncIterator[tuple[int, EventRow]]:
        """Yield events after the sequence number `after`, in order: old ones, then new ones.

        Ends when the subscriber falls too far behind, or the service closes.
        """
        ...


class LogSource(Protocol):
    """Reads the logs of jobs."""

    def read_log(
        self,
        job_id: str,
        allocation_id: str,
        member: int,
        offset: int,
        limit: int,
        follow: bool,
    ) -> AsyncIterator[bytes]:
        """Yield one member's log from an offset on (negative: from the end).

        A limit of 0 means no limit. With `follow`, continue until the attempt has ended.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on requests: sizes, rates, timeouts and concurrent streams."""

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
    body_mb_per_hour: float = 0.0
    connections: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Settings of the API.

    `server_uid` is the uid of the server, `admins` are additional users with the role admin.
    `host_names` are additional names of the server, besides localhost and loopback addresses.
    `attach` returns the command to attach to a job, `runner` is the default runner of jobs.
    `vitals` returns the server's own health findings. Nodes connect without TLS if `plain_nodes`.
    Without `auth` every local caller is an admin. `warnings` are shown by /health. `leadership` is
    set if there can be several servers. `file_tenants` are those of the settings file, which every
    start sets again. `running` are the settings of the server, as shown to admins.
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
    file_tenants: tuple[TenantEntry, ...] = ()
    running: Settings = field(default_factory=Settings)
