"""The server waits long enough for leases, however nodes, network, clocks and servers behave.

The real `LivenessTimers` run on virtual time. A node keeps its lease by its own clock, which runs a
little faster or slower; its messages and the server's replies take any time. The server restarts at
any moment, without memory of what was granted.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.api.nodes.missed_heartbeats import LivenessTimers, NodeTimeouts
from gpu_scheduler.control.messages import Fact, LeasesExpired, NodeSilent

LEASE_S, MARGIN_S = 60.0, 3.0
PATIENCE = NodeTimeouts(suspect_s=15, lost_s=30, margin_s=MARGIN_S)
DRIFT = 0.005
"""Clocks differ by half a percent at the most, far more than real ones do."""


class Timers(asyncio.AbstractEventLoop):
    """The timers of an event loop, with time that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now_s + delay, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._due, (self.now_s + delay, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        del handle

    def run_until(self, at_s: float) -> None:
        while self._due and self._due[0][0] <= at_s:
            self.now_s, _, handle = heapq.heappop(self._due)
            if not handle.cancelled():
                handle._run()
        self.now_s = at_s


@dataclass
class Node:
    """Until when its launcher lets the job run, by its own clock."""

    rate: float
    until_s: float = LEASE_S

    def clock(self, now_s: float) -> float:
        return now_s * self.rate

    def renewed(self, asked_s: float, now_s: float) -> None:
        if self.clock(now_s) < self.until_s:
            self.until_s = max(self.until_s, asked_s + LEASE_S)

    def is_held(self, now_s: float) -> bool:
        return self.clock(now_s) < self.until_s


@dataclass
class Server:
    """Grants leases while the node is not silent to it, as the agent sessions do."""

    timers: Timers
    patience: NodeTimeouts = PATIENCE
    overs: list[float] = field(default_factory=list)
    grants: bool = False
    heard_s: float = 0.0

    def __post_init__(self) -> None:
        self.silence = LivenessTimers(self.patience, self._tell, lambda _: {round(LEASE_S * 1000)})
        self.silence.start("n0")

    def hears(self) -> bool:
        """A message of the node arrives: it is welcome from now on, and gets its lease."""
        self.silence.stop("n0")
        self.grants = True
        self.heard_s = self.timers.now_s
        self.timers.call_later(PATIENCE.suspect_s, self._look)
        return self.grants

    def _look(self) -> None:
        if self.grants and self.timers.now_s - self.heard_s >= PATIENCE.suspect_s:
            self.grants = False
            self.silence.mark_suspect("n0")

    def _tell(self, fact: Fact) -> None:
        if isinstance(fact, NodeSilent):
            self.grants = False
        elif isinstance(fact, LeasesExpired):
            self.overs.append(self.timers.now_s)


Step = tuple[str, float, float, float]
"""An event, its time, and the delays of a message and its answer."""

steps = st.lists(
    st.tuples(
        st.sampled_from(["beat", "beat", "beat", "silence", "server restarts"]),
        st.floats(0.1, 40),
        st.floats(0, 20),
        st.floats(0, 90),
    ),
    min_size=1,
    max_size=25,
)


@given(steps, st.floats(1 - DRIFT, 1 + DRIFT))
def test_no_lease_is_held_when_server_declares_it_expired(steps: list[Step], rate: float) -> None:
    _play(steps, Node(rate), PATIENCE)


def _play(steps: list[Step], node: Node, patience: NodeTimeouts) -> None:
    timers = Timers()
    asyncio._set_running_loop(timers)
    try:
        _play_on(timers, steps, node, patience)
    finally:
        asyncio._set_running_loop(None)


def _play_on(timers: Timers, steps: list[Step], node: Node, patience: NodeTimeouts) -> None:
    server = Server(timers, patience)
    for what, wait_s, on_its_way_s, back_s in steps:
        timers.run_until(timers.now_s + wait_s)
        if what == "beat":
            _beat(timers, server, node, on_its_way_s, back_s)
        elif what == "server restarts":
            server.silence.close()
            server.grants = False
            server = Server(timers, patience)
        _check(server, node)
    timers.run_until(timers.now_s + 2 * LEASE_S)
    _check(server, node)


def _beat(timers: Timers, server: Server, node: Node, on_its_way_s: float, back_s: float) -> None:
    """The node sends a heartbeat; it and the answer arrive later, if the server still runs."""
    asked_s = node.clock(timers.now_s)

    def arrives() -> None:
        if not server.silence._closed and server.hears():
            timers.call_later(back_s, lambda: node.renewed(asked_s, timers.now_s))

    timers.call_later(on_its_way_s, arrives)


def _check(server: Server, node: Node) -> None:
    for over_s in server.overs:
        assert not node.is_held(over_s), "requeued, and it still runs"


def test_check_detects_server_with_too_short_margin() -> None:
    """The check works: a node that was just renewed, and a server that waits too little."""
    hasty = NodeTimeouts(suspect_s=15, lost_s=30, margin_s=-20)
    steps = [("beat", 1.0, 0.0, 0.0), ("silence", 40.0, 0.0, 0.0)]
    _play(steps, Node(1.0), PATIENCE)
    with pytest.raises(AssertionError, match="it still runs"):
        _play(steps, Node(1.0), hasty)
