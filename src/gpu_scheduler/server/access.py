"""Where the server may be reached from, by whom, and with which keys: checked before it listens."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from gpu_scheduler.api.auth.jwt import Issuer, JwtVerifier, Keys
from gpu_scheduler.api.auth.tokens import Verifier
from gpu_scheduler.api.context import Context
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, SchedulerError
from gpu_scheduler.model.identity import Role
from gpu_scheduler.settings.fields import Mistakes
from gpu_scheduler.settings.groups.network import ApiSettings, AuthSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.trusted_files import read_trusted

LARGEST_FILE = 1 << 20
LOOK_AT_FILES_S = 10.0
ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on
log = structlog.get_logger("server")


def check_access(settings: Settings) -> tuple[str, ...]:
    """Refuse what would let strangers in; what is allowed and risky is said."""
    api, auth = settings.api, settings.auth
    local = is_loopback(api.host)
    warnings = []
    mistakes = Mistakes()
    if bool(api.tls_certificate) != bool(api.tls_key):
        told = "TLS needs both api.tls_certificate and api.tls_key; one is missing"
        mistakes.add(InvalidRequest(told))
    if not auth.enabled and local:
        warnings.append("auth is off: every user of this machine may do everything")
    elif not auth.enabled:
        told = (
            f"auth is off and api.host is {api.host}: whoever reaches that address could do "
            "everything; switch auth on, or listen on 127.0.0.1"
        )
        mistakes.add(InvalidRequest(told))
    if not local and not api.tls_certificate:
        if not api.allow_plain_http:
            told = (
                f"api.host is {api.host}, where others could read tokens on their way; set "
                "api.tls_certificate and api.tls_key, or api.allow_plain_http if something before "
                "the server encrypts"
            )
            mistakes.add(InvalidRequest(told))
        warnings.append(f"api.host is {api.host} without TLS: tokens can be read on their way")
    mistakes.check()
    return tuple(warnings)


def host_names(api: ApiSettings) -> tuple[str, ...]:
    """The names by which browsers may call the server."""
    if is_loopback(api.host):
        return api.host_names
    own = () if api.host in ANY_ADDRESS else (api.host, f"[{api.host}]")
    return (*api.host_names, *own, socket.gethostname())


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def on_reload(act: Callable[[], None]) -> None:
    """Act on SIGHUP, as services do; on a terminal it means that the person has gone."""
    if not sys.stdin.isatty():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, act)


class Certificate:
    """The server's certificate; connections that are made after a change get the new one."""

    def __init__(self, api: ApiSettings) -> None:
        """Read it, or say why it cannot be."""
        self._files = (api.tls_certificate, api.tls_key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamps = self._current_stamps()
        self._load(self.context)

    async def watch(self, also: Callable[[], None] = lambda: None) -> None:
        """Until cancelled: read it again when it has changed, or at once when told by SIGHUP.

        Others who use the same files do so too, by `also`.
        """
        told = asyncio.Event()
        on_reload(told.set)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AT_FILES_S):
                    await told.wait()
            self.refresh(at_once=told.is_set())
            also()
            told.clear()

    def refresh(self, *, at_once: bool = False) -> None:
        """Take over files that have changed; those that cannot be read change nothing."""
        stamps = self._current_stamps()
        if stamps == self._stamps and not at_once:
            return
        self._stamps = stamps
        try:
            # First into another context: a key that does not fit must not spoil the one in use.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except SchedulerError as error:
            log.warning("the new certificate is not used", error=str(error))
        else:
            log.info("the certificate was read again", file=self._files[0])

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        read_trusted(certificate, LARGEST_FILE)
        read_trusted(key, LARGEST_FILE, secret=True, group_may_read=True)
        load_pair(context, certificate, key)

    def _current_stamps(self) -> list[tuple[int, int]]:
        stamps = []
        for file in self._files:
            try:
                status = Path(file).stat()
            except OSError:
                stamps.append((0, 0))
            else:
                stamps.append((status.st_mtime_ns, status.st_ino))
        return stamps


def load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Let a context use a certificate, or say why it is none or the key is not its own."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise InvalidInput(
            f"and {key} are no certificate with its key: {error}", file=certificate
        ) from None


def verifier_of(auth: AuthSettings) -> Callable[[Context], Verifier] | None:
    """What believes the issuer that the settings name; None if they name none."""
    if not auth.jwt_key_file and not auth.jwt_jwks_file:
        return None
    if auth.jwt_key_file and auth.jwt_jwks_file:
        raise InvalidRequest("auth has both jwt_key_file and jwt_jwks_file; leave out one")
    for name in ("jwt_issuer", "jwt_audience"):
        if not getattr(auth, name):
            raise InvalidRequest(
                f"auth.{name} is missing: without it a token for another service would be believed"
            )
    issuer = Issuer(
        algorithm=auth.jwt_algorithm,
        issuer=auth.jwt_issuer,
        audience=auth.jwt_audience,
        leeway_s=auth.jwt_leeway_s,
        user_claim=auth.jwt_user_claim,
        tenant_claim=auth.jwt_tenant_claim,
        role_claim=auth.jwt_role_claim,
        roles=_roles(auth.jwt_roles),
        default_role=Role(auth.jwt_default_role),
    )
    is_secret = auth.jwt_algorithm == "HS256"
    keys = Keys(
        auth.jwt_key_file or auth.jwt_jwks_file,
        partial(_read_key, is_secret=is_secret),
        auth.jwt_algorithm,
        is_set=bool(auth.jwt_jwks_file),
    )
    return lambda context: JwtVerifier(issuer, keys, context.directory, context.resolve_tenant)


def _read_key(file: str, *, is_secret: bool) -> bytes:
    return read_trusted(file, LARGEST_FILE, secret=is_secret)


def _roles(pairs: tuple[str, ...]) -> dict[str, Role]:
    if not pairs:
        return {role.value: role for role in Role}
    known = {role.value: role for role in Role}
    roles = {}
    for pair in pairs:
        word, equals, role = pair.rpartition("=")
        if not equals or role not in known or not word:
            raise InvalidRequest(
                f"auth.jwt_roles has '{pair}'; write VALUE=ROLE, as in gpu-admins=admin, with one "
                f"of {', '.join(known)}"
            )
        roles[word] = known[role]
    return roles


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one without a password")
