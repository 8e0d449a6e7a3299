"""Parts that work for as long as a server does: a mistake costs such a part a pause, not its life.

Nobody waits for them, so nobody would notice that one has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

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
