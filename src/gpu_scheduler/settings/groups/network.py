"""Settings of the network: HTTP, gRPC, authentication, and tenants from the settings file."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.fields import LAST_PORT, setting
from gpu_scheduler.wire.tenants import TenantPatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Addresses and limits of the HTTP server."""

    host: str = setting(
        "127.0.0.1",
        "Address of the HTTP server. On loopback callers are identified by their uid. Any other "
        "address needs `tls_certificate`, and its callers need a token.",
    )
    host_names: tuple[str, ...] = setting(
        (),
        "Further host names that browsers may use for the server, in addition to localhost, `host`"
        " and the name of this machine.",
    )
    tls_certificate: str = setting(
        "", "File with the certificate chain (PEM) for HTTPS; reloaded when it changes."
    )
    tls_key: str = setting(
        "", "File with the private key; only its owner, and possibly a group, may read it."
    )
    allow_plain_http: bool = setting(
        default=False,
        about="Serve other addresses than loopback without TLS. Use this only behind a proxy that "
        "encrypts, because tokens are readable otherwise.",
    )
    requests_per_second: float = setting(
        500.0,
        "Rate limit of one caller (except admins); 0: no limit. Further requests get status 429 "
        "and `Retry-After`.",
        least=0,
        most=1_000_000,
    )
    requests_burst: int = setting(
        2000, "Number of requests that one caller may send at once.", least=1, most=10_000_000
    )
    body_mb_per_hour: float = setting(
        500.0,
        "Megabytes that one caller (except admins) may send in the bodies of requests within an "
        "hour, such as scripts and environments of jobs, which the database stores; each change "
        "counts 1 kB more. 0: no limit. "
        "Further requests get status 429 and `Retry-After`.",
        least=0,
        most=1_000_000_000,
    )
    connections_per_caller: int = setting(
        512, "Maximum number of open connections of one user or address.", least=1, most=65_536
    )
    slow_request_s: float = setting(
        30.0,
        "Timeout for the headers, and for the body, of a request to arrive.",
        least=0.1,
        most=3600,
    )
    http_port: int = setting(
        8080, "Port of the REST API; 0: any free port.", least=0, most=LAST_PORT
    )
    grpc_port: int = setting(
        9090,
        "Port of gRPC with `tgpu server`, for programs and for agents of other machines; 0: any "
        "free port. `tgpu up` does not open it.",
        least=0,
        most=LAST_PORT,
    )
    metrics_port: int = setting(
        9091, "Port of the Prometheus metrics; 0: any free port.", least=0, most=LAST_PORT
    )
    max_body_mb: float = setting(
        64.0, "Maximum size of a request body in MiB.", least=0.001, most=1024
    )
    max_jobs_per_request: int = setting(
        100_000, "Maximum number of jobs in one submission.", least=1, most=1_000_000
    )


TLS_CHOICES = ("auto", "on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """gRPC: address, encryption and limits; its port is `api.grpc_port`."""

    host: str = setting(
        "",
        "Address of the gRPC server, to which agents of other machines connect; empty: `api.host`.",
    )
    tls: str = setting(
        "auto",
        "Encryption of gRPC. `auto`: on, except on loopback without `api.tls_certificate`. Agents "
        "verify the server with the cluster's own CA, so they need no certificate from you.",
        choices=TLS_CHOICES,
    )
    client_ca: str = setting(
        "",
        "File with CAs (PEM): every caller needs a certificate of one of them in addition to its "
        "token (mutual TLS). Nodes that have joined use their own certificate.",
    )
    client_certificate: str = setting(
        "",
        "File with the certificate (PEM) that an agent presents to a server with `client_ca` until"
        " it has joined.",
    )
    client_key: str = setting("", "File with the private key of that certificate.")
    max_message_mb: float = setting(
        64.0, "Maximum size of a gRPC message in MiB, in both directions.", least=1, most=1024
    )
    max_streams: int = setting(
        256, "Maximum number of concurrent calls on one connection.", least=1, most=65_536
    )
    keepalive_s: float = setting(
        30.0,
        "A connection without traffic for this long gets a keepalive ping.",
        least=1,
        most=7200,
    )
    node_key_days: float = setting(
        90.0,
        "Validity of a node's key; it is renewed after two thirds of this time.",
        least=0.00001,
        most=3650,
    )


ALGORITHMS = ("HS256", "RS256", "ES256")
ROLES = ("viewer", "user", "tenant-admin", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Authentication and roles. `auth: off` is short for `enabled: false`."""

    enabled: bool = setting(
        default=True,
        about="Check the role of each caller. Off: everyone who reaches the server may do "
        "everything; only allowed on loopback. Jobs still run as the account of the calling "
        "process.",
    )
    max_token_days: float = setting(
        365.0, "Maximum validity of a new token.", least=0.01, most=36_500
    )
    jwt_algorithm: str = setting(
        "RS256", "The only accepted algorithm of signatures.", choices=ALGORITHMS
    )
    jwt_key_file: str = setting(
        "",
        "Key that verifies the signatures of an issuer's JWTs: for HS256 a file with the secret "
        "(at least 32 bytes, readable only by its owner), else a public key (PEM). Empty, and no "
        "`jwt_jwks_file`: JWTs are not accepted.",
    )
    jwt_jwks_file: str = setting(
        "", "A JWKS file instead, for several keys with ids; reloaded when it changes."
    )
    jwt_issuer: str = setting("", "Required value of `iss`; needed for JWTs.")
    jwt_audience: str = setting("", "Required entry of `aud`; needed for JWTs.")
    jwt_leeway_s: float = setting(
        30.0, "Tolerated difference to the issuer's clock.", least=0, most=600
    )
    jwt_user_claim: str = setting("sub", "Claim with the name of the Linux account.")
    jwt_tenant_claim: str = setting(
        "tenant", "Claim with the tenant; without it the tenant of the account is used."
    )
    jwt_role_claim: str = setting(
        "role", "Claim with the role, or with a list of groups; see `jwt_roles`."
    )
    jwt_roles: tuple[str, ...] = setting(
        (),
        "Roles for values of that claim, as `gpu-admins=admin`; empty: the values are role names. "
        "The highest role applies.",
    )
    jwt_default_role: str = setting(
        "user", "Role of a caller whose claim has no known value.", choices=ROLES
    )


@dataclass(frozen=True, slots=True)
class TenantEntry:
    """A tenant of the settings file: fields it names are set at every start, others are kept."""

    id: str
    patch: TenantPatch
    origin: str
