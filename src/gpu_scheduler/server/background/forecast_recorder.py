"""Tells every job that begins to wait when it should start, once, so that this can be judged.

Looks every other second at the jobs that came since, works out their starts together, and has them
kept. What starts at once is told nothing. Of a flood of jobs only some are told, as looks take no
more than their share of the server's time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import thread_time

import structlog

from gpu_scheduler.api.expected_start import forecast_start
from gpu_scheduler.api.explainer import Explainer
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Estimate, NoteEstimates
from gpu_scheduler.model.errors import SchedulerError

INTERVAL_S = 2.0
AT_ONCE = 100
LONGEST_LOOK_S = 0.04
"""Of CPU time. While jobs come in, every forecast has to be made anew; the rest waits its turn."""
MOST_SHARE = 0.02
"""Of the server's time. A look that took longer is followed by a longer pause."""
FLOOD = 1_000
MOST_PUT_OFF = 4
"""While so many jobs come between two looks, every forecast is out of date at once: the look is put
off, but not for ever."""
MOST_WAITING = 2_000
"""Of more new jobs than that, the rest is told nothing."""
log = structlog.get_logger("server")


class Estimator:
    """Tells each new job once when it should start, and has that kept."""

    def __init__(self, loop: Loop) -> None:
        """Jobs from now on are told; those before have been."""
        self._loop = loop
        self._explainer = Explainer(loop)
        self._next = loop.core.state.next_number
        self._new: deque[int] = deque()
        self._put_off = 0

    async def run(self) -> None:
        """Look again and again."""
        used_s = 0.0
        while True:
            await asyncio.sleep(max(INTERVAL_S, used_s / MOST_SHARE))
            try:
                used_s = await self.look()
            except SchedulerError as error:
                log.warning("expected starts could not be kept", error=str(error))

    async def look(self) -> float:
        """Tell the next few of the new jobs that wait; returns the CPU time that it took."""
        state = self._loop.core.state
        came = state.next_number - self._next
        self._new.extend(range(self._next, self._next + min(came, MOST_WAITING)))
        self._next += came
        while len(self._new) > MOST_WAITING:
            self._new.pop()
        if came > FLOOD and self._put_off < MOST_PUT_OFF:
            self._put_off += 1
            return 0.0
        self._put_off = 0
        chosen = [self._new.popleft() for _ in range(min(AT_ONCE, len(self._new)))]
        entries = state.cluster.queue.entries
        queued = [(n, entries[n].waiting.job.id) for n in chosen if n in entries]
        estimates = []
        used_s = 0.0
        while queued and used_s <= LONGEST_LOOK_S:
            # The last one first: its forecast mostly covers the others.
            _, job_id = queued.pop()
            began = thread_time()
            start = forecast_start(self._loop, self._explainer, job_id)
            used_s += thread_time() - began
            if start.at_ms is not None:
                estimates.append(Estimate(job_id, start.at_ms, start.basis))
            # Orders and reports do not wait for this.
            await asyncio.sleep(0)
        self._new.extendleft(number for number, _ in reversed(queued))
        if estimates:
            await self._loop.apply(NoteEstimates(tuple(reversed(estimates))))
        return used_s
