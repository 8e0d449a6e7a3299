"""Who is at the other end of a gRPC connection, as far as gRPC tells."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc

from gpu_scheduler.api.callers import Peer

Context = grpc.aio.ServicerContext[Any, Any]


def host_of(context: Context) -> str:
    """The address of the other end, without its port."""
    kind, _, rest = context.peer().partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return kind
    return unquote(rest).rpartition(":")[0].strip("[]")


def peer_of_call(context: Context) -> Peer:
    """The other end. Which account it has is not asked: over gRPC callers show a token."""
    return Peer(uid=None, host=host_of(context))
