"""What the API needs from below, as protocols.

The control loop fulfils `Service`; whoever reads logs from nodes fulfils `LogSource`. Nothing here
does anything, so that tests can put real or small parts behind the same handlers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import Command, Outcome
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.store.rows import EventRow, Store, Write

Also = Callable[[Sequence[Outcome]], Sequence[Write]]
"""From what a command led to, to further rows that are kept in the same commit.

Called once, right after the core has accepted everything and before anything is committed.
"""


class DeviceProcess(Protocol):
    """A process seen on a device; `allocation_id` is empty if it is not ours."""

    pid: int
    user: str
    command: str
    memory_mb: int
    allocation_id: str


class DeviceReading(Protocol):
    """What was measured on one device last."""

    index: int
    utilisation_percent: int
    memory_used_mb: int
    temperature_c: int
    power_mw: int

    @property
    def processes(self) -> Sequence[DeviceProcess]:
        """Who uses the device."""
        ...


class NodeReadings(Protocol):
    """The last readings of a node; `problem` is set while its devices cannot be read."""

    at_ms: int
    problem: str

    @property
    def readings(self) -> Sequence[DeviceReading]:
        """One for each device that could be read."""
        ...


class Histogram(Protocol):
    """How many observations were at most `bounds[i]`; the last count is of what was larger."""

    @property
    def bounds(self) -> Sequence[float]:
        """The upper bounds, rising."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """How many fell into each bucket, not cumulated; one more than there are bounds."""
        ...

    @property
    def total(self) -> float:
        """The sum of all observations."""
        ...


class Tallies(Protocol):
    """What the loop counts while it works, for metrics."""

    @property
    def cycle_seconds(self) -> Histogram:
        """How long decisions took."""
        ...

    @property
    def commit_seconds(self) -> Histogram:
        """How long commits took."""
        ...

    @property
    def wait_seconds(self) -> Histogram:
        """How long jobs waited until their first start."""
        ...

    @property
    def jobs(self) -> Mapping[str, int]:
        """How many jobs and tasks have entered each state since the start."""
        ...

    @property
    def submissions(self) -> int:
        """Accepted jobs."""
        ...

    @property
    def preemptions(self) -> int:
        """Attempts that were preempted."""
        ...


class Service(Protocol):
    """The one writer, its state, and what has been committed."""

    @property
    def core(self) -> Core:
        """State as of the last accepted message: for reasons, forecasts and the picture."""
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
    def tallies(self) -> Tallies:
        """What was counted since the start."""
        ...

    async def apply(self, message: Command, caller: Caller, *, also: Also | None = None) -> Outcome:
        """Accept one command; return after its commit, or raise and leave nothing behind."""
        ...

    async def apply_many(
        self, messages: Sequence[Command], caller: Caller, *, also: Also | None = None
    ) -> list[Outcome]:
        """Accept all commands in one commit, or none.

        A refusal has the place of its command in the list as the attribute `index`.
        """
        ...

    def subscribe(self, after: int) -> AsyncIterator[tuple[int, EventRow]]:
        """Events as they are committed, with their sequence numbers, in order."""
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


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large what comes in may be, and how much may go out at once."""

    body_bytes: int = 1 << 20
    bulk_bytes: int = 16 << 20
    bulk_jobs: int = 10_000
    headers: int = 64
    header_bytes: int = 32 << 10
    query_bytes: int = 4096
    page: int = 1000
    sockets_per_user: int = 64
    event_backlog: int = 100_000
    send_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What the API must know of its surroundings.

    `server_uid` is who runs the server, `host_names` are further names by which it may be called
    (besides localhost and the loopback addresses). `version` is shown by /health.
    """

    server_uid: int
    host_names: tuple[str, ...] = ()
    version: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    clock_ms: Callable[[], int] = wall_clock_ms
