"""Settings about who may come in: tokens, other issuers, and the tenants of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import setting
from gpu_scheduler.wire.tenants import TenantPatch

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
