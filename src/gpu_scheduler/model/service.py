"""Online services: jobs that should run for ever, so many of them, each with a port and a check."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch, Probe

MOST_REPLICAS = 1_000
LARGEST_PORT = 65_535
ENDLESS_MS = 10 * 365 * 86_400_000
"""As long as a replica is expected to run: nothing is planned behind it."""
BEYOND_MS = ENDLESS_MS // 2
"""What is that far off never comes."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Restart(StrEnum):
    """What follows when the program of a replica ends by itself."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """When a replica is started again, and how long it pauses before that.

    The pause doubles with every end up to `max_backoff_ms`, and begins anew after a run of
    `reset_after_ms`.
    """

    policy: Restart = Restart.ALWAYS
    backoff_ms: int = 1_000
    max_backoff_ms: int = 300_000
    reset_after_ms: int = 60_000

    def __post_init__(self) -> None:
        """Refuse pauses that are none."""
        if not 1 <= self.backoff_ms <= self.max_backoff_ms or self.reset_after_ms < 1:
            raise InvalidRequest(
                "the restart back-off must be more than nothing and at most the largest one, and "
                "a good run must last some time"
            )

    def pause_ms(self, ends: int) -> int:
        """How long to wait after so many ends in a row."""
        return min(self.backoff_ms << min(max(0, ends - 1), 40), self.max_backoff_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One job of a service. `index` is its place among them, `generation` what it was made from.

    `is_over` once it has ended in a way after which it is not started again; `leaving` when it is
    being stopped for good. Its `port` is known when its agent has said so, `detail` is why it is
    not ready, and `last_end` how it ended the last time.
    """

    index: int
    job_id: str
    generation: int
    ready: bool = False
    port: int = 0
    detail: str = ""
    since_ms: int = 0
    restarts: int = 0
    last_end: str = ""
    leaving: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """So many alike jobs of the online pool, kept at that number.

    `job` and `launch` are what each replica is made from. With `port` 0 every replica gets a free
    port of its node. With `surge`, an update starts a new replica before it stops an old one.
    `problem` says why replicas that are missing cannot be made. A service that is `deleted` goes
    when its last replica has ended.
    """

    id: str
    number: int
    name: str
    tenant: str
    user: str
    job: Job
    launch: Launch
    replicas: int = 1
    port: int = 0
    probe: Probe | None = None
    restart: RestartRule = field(default_factory=RestartRule)
    surge: bool = False
    generation: int = 1
    made_ms: int = 0
    changed_ms: int = 0
    deleted: bool = False
    problem: str = ""
    members: tuple[Replica, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what could never be a service."""
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"the name of a service is {self.name[:80]!r}; write up to 63 small letters, "
                "digits and dashes, such as llama-8b"
            )
        if not 0 <= self.replicas <= MOST_REPLICAS:
            raise InvalidRequest(
                f"service '{self.name}' asks for {self.replicas} replicas; allowed are 0 to "
                f"{MOST_REPLICAS}"
            )
        if not 0 <= self.port <= LARGEST_PORT:
            raise InvalidRequest(
                f"service '{self.name}' asks for port {self.port}; write 1 to {LARGEST_PORT}, or "
                "0 for a free one"
            )
        _check_job(self.name, self.job)

    @property
    def live(self) -> tuple[Replica, ...]:
        """Those that should go on."""
        return tuple(r for r in self.members if not r.leaving and not r.is_over)

    @property
    def ready_count(self) -> int:
        """How many of them can be used."""
        return sum(replica.ready for replica in self.live)

    @property
    def updated_count(self) -> int:
        """How many of them are as the service is now."""
        return sum(replica.generation == self.generation for replica in self.live)

    @property
    def restarts(self) -> int:
        """How often replicas that are here ended by themselves and were started again."""
        return sum(replica.restarts for replica in self.members)

    @property
    def state(self) -> str:
        """In a word: how it stands."""
        if self.deleted:
            return "deleting"
        wanted = self.replicas - sum(replica.is_over for replica in self.members)
        if self.replicas and wanted <= 0:
            return "ended"
        if not self.replicas:
            return "stopped"
        if self.updated_count < len(self.live):
            return "updating"
        if self.ready_count >= wanted:
            return "ready"
        return "degraded" if self.ready_count else "starting"


def _check_job(name: str, job: Job) -> None:
    """A replica is one plain job on one node, without an end."""
    for is_given, what in (
        (job.is_gang, "members"),
        (job.array is not None, "an array"),
        (bool(job.max_runtime_ms), "a time limit"),
        (bool(job.dependencies), "dependencies"),
        (bool(job.deadline_ms), "a deadline"),
        (bool(job.retries or job.retry_exit_codes), "retries (see its restart policy)"),
        (job.interactive, "a terminal"),
        (job.hold, "a hold (use 0 replicas)"),
    ):
        if is_given:
            raise InvalidRequest(f"service '{name}' asks for {what}, which a service cannot have")
