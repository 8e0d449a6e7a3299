"""Settings of HTTP: where the server listens, and how much it takes from one caller."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import LAST_PORT, setting


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
