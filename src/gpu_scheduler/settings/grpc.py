"""Settings of gRPC: for programs, and for agents of other machines."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import setting

TLS_CHOICES = ("auto", "on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Where gRPC listens besides `api.grpc_port`, and with which keys."""

    host: str = setting(
        "", "Address for gRPC; empty: `api.host`. Agents of other machines come here."
    )
    tls: str = setting(
        "auto",
        "Whether gRPC is encrypted. `auto`: yes, but on loopback only with `api.tls_certificate`. "
        "Agents check the server by the cluster's own authority, so no certificate has to be made "
        "for them.",
        choices=TLS_CHOICES,
    )
    client_ca: str = setting(
        "",
        "File with authorities (PEM): every caller needs a certificate of one of them, besides its "
        "token (mutual TLS). Nodes that have joined show their own.",
    )
    client_certificate: str = setting(
        "",
        "File with a certificate (PEM) that an agent shows to a server with `client_ca` until it "
        "has joined.",
    )
    client_key: str = setting("", "File with its private key.")
    max_message_mb: float = setting(
        64.0, "Largest message of gRPC, in MiB, both ways.", least=1, most=1024
    )
    max_streams: int = setting(
        256, "Most calls that one connection may have under way at once.", least=1, most=65_536
    )
    keepalive_s: float = setting(
        30.0,
        "A connection on which nothing came for this long is asked whether it is still there.",
        least=1,
        most=7200,
    )
    node_key_days: float = setting(
        90.0,
        "So long the key of a node is good; it is renewed when two thirds are over.",
        least=0.00001,
        most=3650,
    )
