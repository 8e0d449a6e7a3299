"""The authority for nodes: made by the first leader, kept in the store, read by every server."""

from __future__ import annotations

import asyncio

import structlog

from gpu_scheduler.api.grpc.authority import NodeAuthority, new_authority
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import KeepAuthority
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.node_key import Authority
from gpu_scheduler.store.contract import Store

LOOK_AGAIN_S = 0.5
log = structlog.get_logger("server")


async def ensure_authority(loop: Loop) -> None:
    """Make the authority if there is none yet."""
    if loop.core.book.node_keys.authority is None:
        await loop.apply(KeepAuthority(new_authority(loop.now_ms())))


async def stored_authority(store: Store) -> NodeAuthority:
    """The authority of this database; a standby may have to wait for the first leader."""
    while True:
        try:
            for found in await asyncio.to_thread(store.identities):
                if isinstance(found, Authority):
                    return NodeAuthority(found)
        except SchedulerError as error:
            log.warning("the authority for nodes cannot be read yet", error=str(error))
        await asyncio.sleep(LOOK_AGAIN_S)
