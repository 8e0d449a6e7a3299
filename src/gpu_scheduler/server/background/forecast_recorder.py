"""Records one forecast of the start time for every waiting job, so that forecasts can be audited.

Every two seconds it forecasts the starts of new jobs together and stores them. Jobs that start at
once get no forecast. Of a large burst of jobs only some get one, because the task may use only a
small share of the server's time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import thread_time

import structlog

from gpu_scheduler.api.expected_times import Explainer, expected_start
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Estimate, NoteEstimates
from gpu_scheduler.model.errors import SchedulerError

INTERVAL_S = 2.0
BATCH = 100
CPU_LIMIT_S = 0.04
"""CPU time of one round. While jobs arrive, each forecast is computed again; the rest waits."""
CPU_SHARE = 0.02
"""Share of the server's time. A longer round is followed by a longer pause."""
BURST = 1_000
MAX_POSTPONED = 4
"""During a burst, when every forecast is out of date at once, this many rounds are skipped."""
MAX_WAITING = 2_000
"""New jobs beyond this number get no forecast."""
log = structlog.get_logger("server")


class ForecastRecorder:
    """Forecasts and stores the start of each new job once."""

    def __init__(self, loop: Loop) -> None:
        """Start with the next job; earlier jobs have their forecast."""
        self._loop = loop
        self._explainer = Explainer(loop)
        self._next_number = loop.core.state.next_number
        self._new: deque[int] = deque()
        self._postponed = 0

    async def run(self) -> None:
        """Record forecasts until cancelled."""
        used_s = 0.0
        while True:
            await asyncio.sleep(max(INTERVAL_S, used_s / CPU_SHARE))
            try:
                used_s = await self.record_next()
            except SchedulerError as error:
                log.warning("cannot store forecasts; will retry", error=str(error))

    async def record_next(self) -> float:
        """Forecast the next new jobs that still wait; return the CPU time used."""
        state = self._loop.core.state
        arrived = state.next_number - self._next_number
        self._new.extend(range(self._next_number, self._next_number + min(arrived, MAX_WAITING)))
        self._next_number += arrived
        while len(self._new) > MAX_WAITING:
            self._new.pop()
        if arrived > BURST and self._postponed < MAX_POSTPONED:
            self._postponed += 1
            return 0.0
        self._postponed = 0
        batch = [self._new.popleft() for _ in range(min(BATCH, len(self._new)))]
        entries = state.cluster.queue.entries
        queued = [(n, entries[n].waiting.job.id) for n in batch if n in entries]
        estimates = []
        used_s = 0.0
        while queued and used_s <= CPU_LIMIT_S:
            # Last job first: its forecast usually covers the others.
            _, job_id = queued.pop()
            start_s = thread_time()
            start = expected_start(self._explainer, job_id)
            used_s += thread_time() - start_s
            if start.at_ms is not None:
                estimates.append(
                    Estimate(
                        job_id,
                        start.at_ms,
                        start.basis,
                        start.forecast_ms,
                        start.earliest_ms,
                        start.latest_ms,
                    )
                )
            # Let orders and reports run in between.
            await asyncio.sleep(0)
        self._new.extendleft(number for number, _ in reversed(queued))
        if estimates:
            await self._loop.apply(NoteEstimates(tuple(reversed(estimates))))
        return used_s
