"""Parts that work for as long as a server does: a mistake costs such a part a pause, not its life.

Nobody waits for them, so nobody would notice that one has gone.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import structlog

from gpu_scheduler.store.rows import NewJobs, Write

PAUSE_S = 5.0
log = structlog.get_logger("server")


async def lasting(part: str, work: Callable[[], Awaitable[None]]) -> None:
    """Work until that is done or cancelled; after a mistake, begin anew."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a part of the server has failed, and begins anew", part=part)
            await asyncio.sleep(PAUSE_S)
        else:
            return


# --- Python's search for cycles, in a process that keeps many small values for a long time.
#
# Waiting jobs are such values: there are many, they are in no cycle, and they go when nobody holds
# them any more. The search walks over all of them all the same, and everybody waits meanwhile: a
# quarter of a second for 200,000 jobs. So those that come in great numbers are put where it does
# not
# look. A cycle that is put there by chance is found when they have gone.

YOUNG_OBJECTS = 50_000
COLLECT_PAUSE_S = 600.0
MANY_JOBS = 200
"""So many at once are put aside: much more than what a request leaves beside them."""
FEW_JOBS = 30_000
"""What there is with so many is searched in about a tenth of a second."""


def calm_collector() -> None:
    """Look for cycles less often, and not among what is there now.

    At the usual threshold the search takes a third of the time of a large submission.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


class Collector:
    """Puts jobs aside while they come, and looks at all of it again when most have gone."""

    def __init__(self, jobs: Callable[[], int]) -> None:
        """`jobs` says how many there are now."""
        self._jobs = jobs
        self._has_put_aside = False

    def note(self, writes: list[Write]) -> None:
        """Jobs have come, and will stay for a while."""
        if any(isinstance(write, NewJobs) and len(write.jobs) >= MANY_JOBS for write in writes):
            self._has_put_aside = True
            gc.freeze()

    async def run(self) -> None:
        """Look again now and then, until cancelled."""
        while True:
            await asyncio.sleep(COLLECT_PAUSE_S)
            self.look_again()

    def look_again(self) -> None:
        """Search what was put aside, if that is quickly done."""
        if self._has_put_aside and self._jobs() <= FEW_JOBS:
            self.end()
            gc.collect()

    def end(self) -> None:
        """Put nothing aside: all of it may be of no use from now on."""
        self._has_put_aside = False
        gc.unfreeze()
