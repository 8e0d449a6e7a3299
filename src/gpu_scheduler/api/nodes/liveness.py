"""How long nothing has been heard of nodes, and what the core is told when it is too long.

Suspect, then lost; and when nobody can hold a lease there any more, that. All of it is counted by
the event loop's clock, which cannot be set and stands still while the machine sleeps: a wall clock
that jumps ahead must never make a lease look older than it is. A server that has just begun knows
nothing of what was granted before, so it counts from its own beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpu_scheduler.control.messages import Fact, LeasesExpired, NodeLost, NodeSilent

LEFT_S = 3.0
"""An agent that is started again is back by then; without one, a node gets no new work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimeouts:
    """After how long a silent node is suspect, then lost; what is waited beyond a lease."""

    suspect_s: float = 15.0
    lost_s: float = 60.0
    margin_s: float = 30.0


class LivenessTimers:
    """One count for each node that does not speak."""

    def __init__(
        self,
        patience: NodeTimeouts,
        tell: Callable[[Fact], object],
        leases_on: Callable[[str], Iterable[int]],
    ) -> None:
        """`leases_on` says how long the leases are, in ms, that a node holds."""
        self._patience = patience
        self._tell = tell
        self._leases_on = leases_on
        self._timers: dict[str, list[asyncio.TimerHandle]] = {}
        self._closed = False

    def begin(self, node_id: str, *, left: bool = False) -> None:
        """Nothing is heard from now on; if that was known, it goes on.

        One that has `left`, as its stream is closed, need not be waited for as long.
        """
        if node_id not in self._timers and not self._closed:
            wait_s = min(self._patience.suspect_s, LEFT_S if left else self._patience.suspect_s)
            self._timers[node_id] = [
                self._later(wait_s, lambda: self.suspect(node_id, silent_s=wait_s))
            ]

    def suspect(self, node_id: str, *, silent_s: float | None = None) -> None:
        """It has been silent for too long, and gets no more leases: from now on they run out."""
        if self._closed:
            return
        self.end(node_id)
        waited_s = self._patience.suspect_s if silent_s is None else silent_s
        self._tell(NodeSilent(node_id, round(waited_s * 1000)))
        lost_s = max(0.0, self._patience.lost_s - waited_s)
        self._timers[node_id] = [
            self._later(lost_s, lambda: self._tell(NodeLost(node_id))),
            *(
                self._lease_timer(node_id, lease_ms)
                for lease_ms in sorted(self._leases_on(node_id))
            ),
        ]

    def end(self, node_id: str) -> None:
        """It speaks again."""
        for timer in self._timers.pop(node_id, ()):
            timer.cancel()

    def close(self) -> None:
        """Count no more."""
        self._closed = True
        for node_id in list(self._timers):
            self.end(node_id)

    def _lease_timer(self, node_id: str, lease_ms: int) -> asyncio.TimerHandle:
        # Rounded up: what is waited must never be less than what is said.
        waited_ms = lease_ms + round(self._patience.margin_s * 1000)
        fact = LeasesExpired(node_id, waited_ms)
        return self._later(waited_ms / 1000 + 0.001, lambda: self._tell(fact))

    def _later(self, wait_s: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, act)
