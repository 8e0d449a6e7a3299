"""Liveness of nodes: timers that report a silent node as suspect, then lost, then without leases.

All timers use the event loop's clock, which cannot be set and stops while the machine sleeps: a
wall clock that jumps ahead must never make a lease look older than it is. A server that has just
started does not know what its predecessor granted, so it counts from its own start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpu_scheduler.control.messages import Fact, LeasesExpired, NodeLost, NodeSilent

RESTART_S = 3.0
"""A restarted agent reconnects within this time; until then its node gets no new work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimeouts:
    """After how long a silent node is suspect and lost; how long to wait beyond a lease."""

    suspect_s: float = 15.0
    lost_s: float = 60.0
    margin_s: float = 30.0


class LivenessTimers:
    """The timers of each node that is silent."""

    def __init__(
        self,
        timeouts: NodeTimeouts,
        post: Callable[[Fact], object],
        leases_on: Callable[[str], Iterable[int]],
    ) -> None:
        """`leases_on` returns the lengths, in ms, of the leases that a node holds."""
        self._timeouts = timeouts
        self._post = post
        self._leases_on = leases_on
        self._timers: dict[str, list[asyncio.TimerHandle]] = {}
        self._closed = False

    def start(self, node_id: str, *, disconnected: bool = False) -> None:
        """Start the timer of a node that is silent from now on, unless it runs already.

        A node whose stream is closed is suspect sooner.
        """
        if node_id not in self._timers and not self._closed:
            wait_s = self._timeouts.suspect_s
            if disconnected:
                wait_s = min(wait_s, RESTART_S)
            self._timers[node_id] = [
                self._later(wait_s, lambda: self.mark_suspect(node_id, silent_s=wait_s))
            ]

    def mark_suspect(self, node_id: str, *, silent_s: float | None = None) -> None:
        """Report a node as suspect. Its leases are not renewed and expire from now on."""
        if self._closed:
            return
        self.stop(node_id)
        waited_s = self._timeouts.suspect_s if silent_s is None else silent_s
        self._post(NodeSilent(node_id, round(waited_s * 1000)))
        lost_s = max(0.0, self._timeouts.lost_s - waited_s)
        self._timers[node_id] = [
            self._later(lost_s, lambda: self._post(NodeLost(node_id))),
            *(
                self._lease_timer(node_id, lease_ms)
                for lease_ms in sorted(self._leases_on(node_id))
            ),
        ]

    def stop(self, node_id: str) -> None:
        """Stop the timers of a node that is alive."""
        for timer in self._timers.pop(node_id, ()):
            timer.cancel()

    def close(self) -> None:
        """Stop all timers."""
        self._closed = True
        for node_id in list(self._timers):
            self.stop(node_id)

    def _lease_timer(self, node_id: str, lease_ms: int) -> asyncio.TimerHandle:
        # Rounded up: the real wait must never be shorter than the reported one.
        waited_ms = lease_ms + round(self._timeouts.margin_s * 1000)
        fact = LeasesExpired(node_id, waited_ms)
        return self._later(waited_ms / 1000 + 0.001, lambda: self._post(fact))

    def _later(self, wait_s: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, act)
