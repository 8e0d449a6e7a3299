"""Connections from an agent to its servers: over TLS to those that the right authority vouches for.

Without credentials a target must be a socket of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from gpu_scheduler.wire.node_proof import SERVER_NAME

MESSAGE_BYTES = 64 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # A connection that a former process left behind must not be used again.
    ("grpc.use_local_subchannel_pool", 1),
)
OVER_NETWORK = (
    *OPTIONS,
    # A server that is frozen, or whose machine is gone, says nothing: ask, and give up soon.
    ("grpc.keepalive_time_ms", 4_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The authority whose servers are believed, and what is shown to them (PEM)."""

    authority: bytes = b""
    key: bytes = b""
    certificate: bytes = b""
    plain: bool = False


def open_channel(target: str, credentials: Credentials | None = None) -> grpc.aio.Channel:
    """A channel to one server."""
    if target.startswith("unix:"):
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    if credentials is None or credentials.plain:
        return grpc.aio.insecure_channel(target, options=OVER_NETWORK)
    secure = grpc.ssl_channel_credentials(
        credentials.authority, credentials.key or None, credentials.certificate or None
    )
    named = ("grpc.ssl_target_name_override", SERVER_NAME)
    return grpc.aio.secure_channel(target, secure, options=(*OVER_NETWORK, named))
