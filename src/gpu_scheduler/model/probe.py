"""How a replica of a service shows that it can be used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest


class ProbeKind(StrEnum):
    """How a replica shows that it can be used."""

    HTTP = "http"
    TCP = "tcp"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A check that the agent makes on the node, again and again.

    One good answer makes a replica ready; `failures` bad ones in a row make it not ready any more.
    Before the first good one it has `grace_ms` to begin.
    """

    kind: ProbeKind
    path: str = "/"
    argv: tuple[str, ...] = ()
    interval_ms: int = 5_000
    timeout_ms: int = 2_000
    failures: int = 3
    grace_ms: int = 60_000

    def __post_init__(self) -> None:
        """Refuse a check that could never be made."""
        if self.kind is ProbeKind.HTTP and not _is_path(self.path):
            raise InvalidRequest(
                f"the readiness path is {self.path[:80]!r}; write an absolute path such as /health"
            )
        if (self.kind is ProbeKind.COMMAND) != bool(self.argv):
            raise InvalidRequest("a readiness check by command needs a command, and no other does")
        if any("\0" in word for word in self.argv):
            raise InvalidRequest("the readiness command holds a NUL character; remove it")
        if self.interval_ms < 100 or self.timeout_ms < 10 or self.failures < 1 or self.grace_ms < 0:
            raise InvalidRequest(
                "the readiness check needs an interval of 0.1 s or more, a timeout of 0.01 s or "
                "more, 1 failure or more, and no negative grace"
            )


def _is_path(path: str) -> bool:
    return path.startswith("/") and path.isascii() and path.isprintable() and " " not in path
