"""Where gRPC may listen, and whether it is encrypted there: checked before it does."""

from __future__ import annotations

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.server.access import is_loopback
from gpu_scheduler.settings.groups import Settings


def speaks_tls(settings: Settings) -> bool:
    """Tell whether the gRPC port is encrypted."""
    tls = settings.grpc.tls
    if tls == "auto":
        return bool(settings.api.tls_certificate) or not is_loopback(grpc_host(settings))
    return tls == "on"


def grpc_host(settings: Settings) -> str:
    """The address that gRPC listens on."""
    return settings.grpc.host or settings.api.host


def check_grpc(settings: Settings) -> None:
    """Refuse what would let secrets be read on their way."""
    host = grpc_host(settings)
    if speaks_tls(settings):
        return
    if settings.grpc.client_ca:
        raise InvalidRequest("grpc.client_ca wants certificates and grpc.tls is off; switch it on")
    if not is_loopback(host) and not settings.api.allow_plain_http:
        raise InvalidRequest(
            f"gRPC would listen on {host} without TLS, where others could read tokens on their "
            "way; leave grpc.tls at auto, or listen on 127.0.0.1 (grpc.host)"
        )
