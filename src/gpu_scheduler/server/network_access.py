"""Access to the server, checked before it listens: addresses, TLS certificate, token issuer."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import structlog

from gpu_scheduler.api.auth.jwt import Issuer, JwtVerifier, Keys
from gpu_scheduler.api.auth.tokens import Verifier
from gpu_scheduler.api.context import Context
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, SchedulerError
from gpu_scheduler.model.identity import Role
from gpu_scheduler.settings.fields import ErrorCollector
from gpu_scheduler.settings.groups.network import ApiSettings, AuthSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.trusted_files import read_trusted

LARGEST_FILE = 1 << 20
FILE_POLL_S = 10.0
ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on
log = structlog.get_logger("server")


def check_access(settings: Settings) -> tuple[str, ...]:
    """Reject unsafe settings; return warnings about settings that are allowed but risky."""
    api, auth = settings.api, settings.auth
    local = is_loopback(api.host)
    warnings = []
    errors = ErrorCollector()
    if bool(api.tls_certificate) != bool(api.tls_key):
        errors.add(
            InvalidRequest("TLS needs both api.tls_certificate and api.tls_key; one is missing")
        )
    if not auth.enabled and local:
        warnings.append("auth is off: every user of this machine may do everything")
    elif not auth.enabled:
        errors.add(
            InvalidRequest(
                f"auth is off and api.host is {api.host}: everyone who reaches that address could "
                "do everything; switch auth on, or listen on 127.0.0.1"
            )
        )
    if not local and not api.tls_certificate:
        if not api.allow_plain_http:
            errors.add(
                InvalidRequest(
                    f"api.host is {api.host} without TLS, so that others on the network could read "
                    "tokens; set api.tls_certificate and api.tls_key, or api.allow_plain_http if a "
                    "proxy in front of the server encrypts"
                )
            )
        warnings.append(f"api.host is {api.host} without TLS: tokens are sent unencrypted")
    errors.raise_if_any()
    return tuple(warnings)


def host_names(api: ApiSettings) -> tuple[str, ...]:
    """The host names that browsers may use for the server."""
    if is_loopback(api.host):
        return api.host_names
    own = () if api.host in ANY_ADDRESS else (api.host, f"[{api.host}]")
    return (*api.host_names, *own, socket.gethostname())


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def on_reload(callback: Callable[[], None]) -> None:
    """Call back on SIGHUP, except on a terminal, where SIGHUP means that it was closed."""
    if not sys.stdin.isatty():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, callback)


def file_stamps(files: Iterable[str]) -> list[tuple[int, int]]:
    """Modification time and inode of each file, to notice changes; zeros if there is no file."""
    stamps = []
    for file in files:
        try:
            status = Path(file).stat() if file else None
        except OSError:
            status = None
        stamps.append((0, 0) if status is None else (status.st_mtime_ns, status.st_ino))
    return stamps


class Certificate:
    """The server's TLS certificate; after a change new connections use the new one."""

    def __init__(self, api: ApiSettings) -> None:
        self._files = (api.tls_certificate, api.tls_key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamps = file_stamps(self._files)
        self._load(self.context)

    async def watch(self, on_check: Callable[[], None] = lambda: None) -> None:
        """Reload the files when they change, and on SIGHUP, until cancelled.

        `on_check` lets other users of the same files do the same.
        """
        requested = asyncio.Event()
        on_reload(requested.set)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FILE_POLL_S):
                    await requested.wait()
            self.refresh(force=requested.is_set())
            on_check()
            requested.clear()

    def refresh(self, *, force: bool = False) -> None:
        """Load changed files; if that fails, keep the current certificate."""
        stamps = file_stamps(self._files)
        if stamps == self._stamps and not force:
            return
        self._stamps = stamps
        try:
            # Try another context first: a wrong key must not damage the context in use.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except SchedulerError as error:
            log.warning("new certificate rejected; keeping the old one", error=str(error))
        else:
            log.info("certificate reloaded", file=self._files[0])

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        read_trusted(certificate, LARGEST_FILE)
        read_trusted(key, LARGEST_FILE, secret=True, group_may_read=True)
        load_pair(context, certificate, key)


def load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key into a context."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise InvalidInput(
            f"and {key} are not a certificate and its key: {error}", file=certificate
        ) from None


def verifier_of(auth: AuthSettings) -> Callable[[Context], Verifier] | None:
    """The verifier of JWTs for the issuer in the settings; None without an issuer."""
    if not auth.jwt_key_file and not auth.jwt_jwks_file:
        return None
    if auth.jwt_key_file and auth.jwt_jwks_file:
        raise InvalidRequest("auth has both jwt_key_file and jwt_jwks_file; leave out one")
    for name in ("jwt_issuer", "jwt_audience"):
        if not getattr(auth, name):
            raise InvalidRequest(
                f"auth.{name} is missing: without it a token for another service would be accepted"
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
    keys = Keys(
        auth.jwt_key_file or auth.jwt_jwks_file,
        partial(read_trusted, most_bytes=LARGEST_FILE, secret=auth.jwt_algorithm == "HS256"),
        auth.jwt_algorithm,
        is_set=bool(auth.jwt_jwks_file),
    )
    return lambda context: JwtVerifier(issuer, keys, context.directory, context.resolve_tenant)


def _roles(pairs: tuple[str, ...]) -> dict[str, Role]:
    known = {role.value: role for role in Role}
    if not pairs:
        return known
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


def speaks_tls(settings: Settings) -> bool:
    """Whether the gRPC port is encrypted."""
    tls = settings.grpc.tls
    if tls == "auto":
        return bool(settings.api.tls_certificate) or not is_loopback(grpc_host(settings))
    return tls == "on"


def grpc_host(settings: Settings) -> str:
    """The address that gRPC listens on."""
    return settings.grpc.host or settings.api.host


def check_grpc(settings: Settings) -> None:
    """Reject settings that would send secrets unencrypted."""
    host = grpc_host(settings)
    if speaks_tls(settings):
        return
    if settings.grpc.client_ca:
        raise InvalidRequest("grpc.client_ca needs TLS, but grpc.tls is off; switch it on")
    if not is_loopback(host) and not settings.api.allow_plain_http:
        raise InvalidRequest(
            f"gRPC would listen on {host} without TLS, so that others on the network could read "
            "tokens; leave grpc.tls at auto, or listen on 127.0.0.1 (grpc.host)"
        )
