"""JWTs of the issuer that the settings name: a token in, a caller or an error out.

The settings fix the algorithm; it is never taken from the token. Issuer, audience and times are
always checked. The key file is read again when it changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import structlog
from cryptography.exceptions import UnsupportedAlgorithm

from gpu_scheduler.api.auth.accounts import ROOT, Account, Directory
from gpu_scheduler.api.auth.tokens import confined_caller
from gpu_scheduler.api.http.errors import BadToken, WrongTenant
from gpu_scheduler.model.errors import InvalidInput, SchedulerError
from gpu_scheduler.model.identity import Caller, Role

LEAST_SECRET_BYTES = 32
RELOAD_S = 5.0
VIA = "jwt"
KEY_TYPES = {"HS256": "oct", "RS256": "RSA", "ES256": "EC"}
_UNREADABLE_KEY = (
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
    *(jwt.PyJWTError, UnsupportedAlgorithm),
)
"""What the libraries raise for a key file with wrong content."""
log = structlog.get_logger("api")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """The issuer of tokens: how to verify them, and what their claims mean."""

    algorithm: str
    issuer: str
    audience: str
    leeway_s: float = 30.0
    user_claim: str = "sub"
    tenant_claim: str = "tenant"
    role_claim: str = "role"
    roles: Mapping[str, Role]
    default_role: Role = Role.USER


class Keys:
    """The keys of a file: one key, or a JWKS with key ids."""

    def __init__(
        self,
        file: str,
        read: Callable[[str], bytes],
        algorithm: str,
        *,
        is_set: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the keys; `read` rejects files that other users can write."""
        self._file = file
        self._read = read
        self._algorithm = algorithm
        self._is_set = is_set
        self._clock = clock
        self._stamp = self._current_stamp()
        self._keys = self._load()
        self._reload_at = clock() + RELOAD_S

    def key_for(self, key_id: str | None) -> Any:
        """Return the key with this id; if the file has no ids, its only key."""
        self._refresh()
        if not self._is_set:
            return self._keys[""]
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._keys.get(key_id or "")
        if key is None:
            raise BadToken("the token is signed with an unknown key", code="token_unknown")
        return key

    def _refresh(self) -> None:
        if self._clock() < self._reload_at:
            return
        self._reload_at = self._clock() + RELOAD_S
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return
        try:
            self._keys = self._load()
        except SchedulerError as error:
            log.warning("new key file rejected", file=self._file, error=str(error))
        self._stamp = stamp

    def _current_stamp(self) -> tuple[int, int]:
        try:
            status = Path(self._file).stat()
        except OSError:
            return (0, 0)
        return (status.st_mtime_ns, status.st_ino)

    def _load(self) -> dict[str, Any]:
        data = self._read(self._file)
        try:
            return self._read_set(data) if self._is_set else {"": self._read_one(data)}
        except _UNREADABLE_KEY as error:
            raise InvalidInput(
                f"holds no key for {self._algorithm}: {error}", file=self._file
            ) from None

    def _read_one(self, data: bytes) -> Any:
        algorithm = jwt.get_algorithm_by_name(self._algorithm)
        if self._algorithm != "HS256":
            key = algorithm.prepare_key(data)
            if not hasattr(key, "verify"):
                raise ValueError("give the public key, not the private one")
            return key
        secret = data.strip()
        _check_secret(secret)
        return algorithm.prepare_key(secret)

    def _read_set(self, data: bytes) -> dict[str, Any]:
        wanted = KEY_TYPES[self._algorithm]
        all_keys = jwt.PyJWKSet.from_json(data.decode()).keys
        keys = {key.key_id or "": key.key for key in all_keys if key.key_type == wanted}
        if not keys:
            raise ValueError(f"it has no key of type {wanted}")
        if wanted == "oct":
            for secret in keys.values():
                _check_secret(secret)
        return keys


def _check_secret(secret: bytes) -> None:
    if len(secret) < LEAST_SECRET_BYTES:
        raise ValueError(f"a secret needs at least {LEAST_SECRET_BYTES} bytes")


class JwtVerifier:
    """Verifies the tokens of one issuer."""

    def __init__(
        self,
        issuer: Issuer,
        keys: Keys,
        directory: Directory,
        resolve_tenant: Callable[[str], str],
    ) -> None:
        """`resolve_tenant` returns the id of a tenant that is given by id or name."""
        self._issuer = issuer
        self._keys = keys
        self._directory = directory
        self._resolve_tenant = resolve_tenant

    def caller(self, text: str, origin: str) -> Caller:
        """Return the caller that a token names."""
        claims = self._claims(text)
        account = self._account(claims)
        role = self._role(claims)
        tenant = claims.get(self._issuer.tenant_claim)
        if isinstance(tenant, str) and tenant:
            return confined_caller(account, role, self._tenant(tenant), origin, VIA)
        known = self._directory.caller(account.uid)
        return Caller(
            user=account.name,
            uid=account.uid,
            gid=account.gid,
            role=role,
            tenant=known.tenant,
            tenants=known.tenants,
            administers=known.administers if role is Role.TENANT_ADMIN else frozenset(),
            origin=origin,
            via=VIA,
        )

    def _claims(self, text: str) -> dict[str, Any]:
        issuer = self._issuer
        try:
            key_id = jwt.get_unverified_header(text).get("kid")
            claims: dict[str, Any] = jwt.decode(
                text,
                self._keys.key_for(key_id if isinstance(key_id, str) else None),
                algorithms=[issuer.algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise BadToken("the token has expired; get another", code="token_expired") from None
        except jwt.ImmatureSignatureError:
            raise BadToken(
                "the token is not valid yet; is a clock wrong?", code="token_not_yet_valid"
            ) from None
        except jwt.InvalidIssuerError:
            raise BadToken("the token is from another issuer", code="token_wrong_issuer") from None
        except jwt.InvalidAudienceError:
            raise BadToken(
                "the token is for another service", code="token_wrong_audience"
            ) from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise BadToken(f"the token is not valid: {error}", code="token_invalid") from None
        return claims

    def _account(self, claims: Mapping[str, Any]) -> Account:
        name = claims.get(self._issuer.user_claim)
        account = self._directory.accounts.named(name) if isinstance(name, str) and name else None
        if account is None:
            raise BadToken(
                f"the token's '{self._issuer.user_claim}' names no account of this machine",
                code="token_without_user",
            )
        if account.uid == ROOT:
            raise BadToken("a JWT may not name root", code="token_without_user")
        return account

    def _tenant(self, named: str) -> str:
        try:
            return self._resolve_tenant(named)
        except SchedulerError:
            raise WrongTenant(
                f"the token is for tenant '{named[:80]}', which is not known"
            ) from None

    def _role(self, claims: Mapping[str, Any]) -> Role:
        """Return the highest role that the claim names."""
        given = claims.get(self._issuer.role_claim, [])
        words = given if isinstance(given, list) else [given]
        roles = [
            self._issuer.roles[word]
            for word in words
            if isinstance(word, str) and word in self._issuer.roles
        ]
        return max(roles, key=lambda role: role.rank, default=self._issuer.default_role)
