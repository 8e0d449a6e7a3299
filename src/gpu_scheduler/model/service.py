"""Online services: a fixed number of replicas that run without an end, with port and probe."""

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
"""The expected run time of a replica: the engine plans nothing after it."""
BEYOND_MS = ENDLESS_MS // 2
"""A time this far ahead is treated as never."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Restart(StrEnum):
    """Whether a replica is restarted after its program ends by itself."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """When a replica is restarted, and with which back-off.

    The back-off doubles with every end up to `max_backoff_ms`, and is reset after a run of
    `reset_after_ms`.
    """

    policy: Restart = Restart.ALWAYS
    backoff_ms: int = 1_000
    max_backoff_ms: int = 300_000
    reset_after_ms: int = 60_000

    def __post_init__(self) -> None:
        """Reject a back-off of 0 or above its maximum."""
        if not 1 <= self.backoff_ms <= self.max_backoff_ms or self.reset_after_ms < 1:
            raise InvalidRequest(
                "the restart back-off must be more than 0 and at most its maximum, and the time "
                "after which it is reset must be more than 0"
            )

    def pause_ms(self, ends: int) -> int:
        """The back-off after this many ends in a row."""
        return min(self.backoff_ms << min(max(0, ends - 1), 40), self.max_backoff_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica: a job of a service, made from the service's `generation`.

    `is_over`: it ended and is not restarted. `leaving`: it is being stopped and not replaced.
    `port`: as reported by its agent. `detail`: why it is not ready. `last_end`: how it last ended.
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
    """A number of equal jobs in the online pool, which the scheduler keeps running.

    `job` and `launch` are the template of each replica. With `port` 0 every replica gets a free
    port of its node. With `surge`, an update starts a new replica before it stops an old one.
    `problem` says why missing replicas cannot be created. A `deleted` service is removed with its
    last replica.
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
        """Reject an invalid service."""
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
        """The replicas that should keep running."""
        return tuple(r for r in self.members if not r.leaving and not r.is_over)

    @property
    def ready_count(self) -> int:
        """The number of ready replicas."""
        return sum(replica.ready for replica in self.live)

    @property
    def updated_count(self) -> int:
        """The number of replicas of the current generation."""
        return sum(replica.generation == self.generation for replica in self.live)

    @property
    def restarts(self) -> int:
        """The number of restarts of the current replicas."""
        return sum(replica.restarts for replica in self.members)

    @property
    def state(self) -> str:
        """The state of the service in one word."""
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
    """Reject job options that a replica cannot have."""
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
