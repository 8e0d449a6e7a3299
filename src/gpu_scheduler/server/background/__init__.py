"""Background tasks of a server, each of them restarted after an error (`supervise`).

A module here is one task: it gets the control loop and runs until it is cancelled. No other part
of the server waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

RESTART_PAUSE_S = 5.0
log = structlog.get_logger("server")


async def supervise(task: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a task until it returns or is cancelled; restart it after an error."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("background task failed; restarting it", task=task)
            await asyncio.sleep(RESTART_PAUSE_S)
        else:
            return
