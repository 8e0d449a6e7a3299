"""Settings of HTTP: where the server listens, and how much it takes from one caller."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.fields import LAST_PORT, setting
from gpu_scheduler.wire.tenants import TenantPatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Where the server listens."""

    host: str = setting(
        "127.0.0.1",
        "Address for HTTP. On loopback callers are known by their uid; any other address needs "
        "`tls_certificate`, and callers there need a token.",
    )
    host_names: tuple[str, ...] = setting(
        (),
        "Further names by which browsers may call the server, besides localhost, `host` and the "
        "machine's own name.",
    )
    tls_certificate: str = setting(
        "", "File with the certificate chain (PEM) for HTTPS; read again when it changes."
    )
    tls_key: str = setting(
        "", "File with its private key; only its owner, and perhaps a group, may read it."
    )
    allow_plain_http: bool = setting(
        default=False,
        about="Serve other addresses than loopback without TLS: only where something before the "
        "server encrypts, as tokens can be read on the way otherwise.",
    )
    requests_per_second: float = setting(
        500.0,
        "Most requests of one caller (admins excepted), in the long run; 0 means no limit. Beyond "
        "that they are answered with 429 and `Retry-After`.",
        least=0,
        most=1_000_000,
    )
    requests_burst: int = setting(
        2000, "So many requests of one caller may come at once.", least=1, most=10_000_000
    )
    connections_per_caller: int = setting(
        512, "Most connections that one user, or one address, may hold open.", least=1, most=65_536
    )
    slow_request_s: float = setting(
        30.0,
        "A request whose head, or whose body, has not arrived after this time is given up.",
        least=0.1,
        most=3600,
    )
    http_port: int = setting(
        8080, "Port of the REST API; 0 takes a free one.", least=0, most=LAST_PORT
    )
    grpc_port: int = setting(
        9090,
        "Port of gRPC with `tgpu server`, for programs and for agents of other machines; 0 takes a "
        "free one. With `tgpu up` it is not opened.",
        least=0,
        most=LAST_PORT,
    )
    metrics_port: int = setting(
        9091, "Port of the Prometheus metrics; 0 takes a free one.", least=0, most=LAST_PORT
    )
    max_body_mb: float = setting(64.0, "Largest body of a request, in MiB.", least=0.001, most=1024)
    max_jobs_per_request: int = setting(
        100_000, "Most jobs in one submission.", least=1, most=1_000_000
    )


# --- Settings of gRPC: for programs, and for agents of other machines.

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


# --- Settings about who may come in: tokens, other issuers, and the tenants of this machine.

ALGORITHMS = ("HS256", "RS256", "ES256")
ROLES = ("viewer", "user", "tenant-admin", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Who is believed, and what for. `auth: off` is short for `enabled: false`."""

    enabled: bool = setting(
        default=True,
        about="Callers may do what their role allows. Off: everybody who reaches the server may do "
        "everything; only on loopback. Jobs still run as the account that the kernel names.",
    )
    max_token_days: float = setting(
        365.0, "No token is made for longer than this.", least=0.01, most=36_500
    )
    jwt_algorithm: str = setting(
        "RS256", "The one algorithm that signatures must have.", choices=ALGORITHMS
    )
    jwt_key_file: str = setting(
        "",
        "What checks the signatures of an issuer's JWTs: for HS256 a file with the secret (at "
        "least 32 bytes, readable by its owner alone), else a public key (PEM). Empty, and no "
        "`jwt_jwks_file`: JWTs are not taken.",
    )
    jwt_jwks_file: str = setting(
        "", "The same as a JWKS file, for several keys with ids; read again when it changes."
    )
    jwt_issuer: str = setting("", "What `iss` must be; needed for JWTs.")
    jwt_audience: str = setting("", "What `aud` must name; needed for JWTs.")
    jwt_leeway_s: float = setting(30.0, "How far the issuer's clock may be off.", least=0, most=600)
    jwt_user_claim: str = setting("sub", "The claim that names the Linux account.")
    jwt_tenant_claim: str = setting(
        "tenant", "The claim that names the tenant; without it the account's own tenant counts."
    )
    jwt_role_claim: str = setting(
        "role", "The claim with the role, or with a list of groups; see `jwt_roles`."
    )
    jwt_roles: tuple[str, ...] = setting(
        (),
        "What values of that claim mean, as `gpu-admins=admin`; empty: the roles' own names. The "
        "highest role counts.",
    )
    jwt_default_role: str = setting(
        "user", "The role if the claim names none that is known.", choices=ROLES
    )


@dataclass(frozen=True, slots=True)
class TenantEntry:
    """A tenant as the file has it: what it names is set at every start, the rest stays."""

    id: str
    patch: TenantPatch
    origin: str
