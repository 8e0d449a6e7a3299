"""The certificates of the gRPC port: that of the site for programs, our own for agents.

Which of them a caller gets is settled by the name it asks for. Files are read again when they
change; connections that are made afterwards get the new ones.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import grpc
import structlog
from cryptography import x509

from gpu_scheduler.api.grpc.authority import NodeAuthority, Pair, new_authority
from gpu_scheduler.model.errors import InvalidInput, SchedulerError
from gpu_scheduler.server.access import LARGEST_FILE, LOOK_AT_FILES_S, load_pair
from gpu_scheduler.settings.groups import Settings
from gpu_scheduler.settings.trusted import read_trusted

RENEW_AFTER_S = 10 * 86_400.0
log = structlog.get_logger("server")


class GrpcCertificates:
    """What the gRPC port shows, and whom it asks to show something."""

    def __init__(self, settings: Settings) -> None:
        """Read the files; until the authority is known, one for nobody stands in for it."""
        self._files = (settings.api.tls_certificate, settings.api.tls_key)
        self._client_ca = settings.grpc.client_ca
        self.authority: NodeAuthority | None = None
        self._own = self._new_pair(NodeAuthority(new_authority(_now_ms())))
        self._own_since = time.monotonic()
        self._stamps = self._current_stamps()
        self._site, self._clients = self._read()
        self._current = self._made()

    def use(self, authority: NodeAuthority) -> None:
        """Vouch for this server with the cluster's authority from now on."""
        self.authority = authority
        self._own = self._new_pair(authority)
        self._own_since = time.monotonic()
        self._current = self._made()

    def credentials(self) -> grpc.ServerCredentials:
        """For one port; every new connection gets what holds then."""
        shown = self._current

        def changed() -> grpc.ServerCertificateConfiguration | None:
            # gRPC asks with every handshake, and replaces what it has by each answer without
            # regard to handshakes under way: answered with what it has, it crashes under many.
            nonlocal shown
            if shown is self._current:
                return None
            shown = self._current
            return shown

        return grpc.dynamic_ssl_server_credentials(
            shown,
            changed,  # type: ignore[arg-type] # None is for "as before", which its types forgot
            require_client_authentication=bool(self._client_ca),
        )

    async def watch(self) -> None:
        """Until cancelled: read files again when they change, and renew our own in time."""
        while True:
            await asyncio.sleep(LOOK_AT_FILES_S)
            self.refresh()

    def refresh(self) -> None:
        """Take over what has changed; files that cannot be read change nothing."""
        stamps = self._current_stamps()
        is_old = time.monotonic() - self._own_since > RENEW_AFTER_S
        if stamps == self._stamps and not is_old:
            return
        self._stamps = stamps
        try:
            self._site, self._clients = self._read()
        except SchedulerError as error:
            log.warning("the new certificate is not used for gRPC", error=str(error))
        if is_old and self.authority is not None:
            self.use(self.authority)
        self._current = self._made()

    def _made(self) -> grpc.ServerCertificateConfiguration:
        pairs = [self._own] if self._site is None else [self._site, self._own]
        roots = None
        if self._client_ca:
            own = b"" if self.authority is None else self.authority.certificate_pem
            roots = self._clients + b"\n" + own
        return grpc.ssl_server_certificate_configuration(pairs, roots)

    def _read(self) -> tuple[Pair | None, bytes]:
        clients = b""
        if self._client_ca:
            clients = read_trusted(self._client_ca, LARGEST_FILE)
            _check_certificates(clients, self._client_ca)
        certificate, key = self._files
        if not certificate:
            return None, clients
        chain = read_trusted(certificate, LARGEST_FILE)
        _check_certificates(chain, certificate)
        private = read_trusted(key, LARGEST_FILE, secret=True, group_may_read=True)
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
        return (private, chain), clients

    def _new_pair(self, authority: NodeAuthority) -> Pair:
        return authority.server_pair(_now_ms())

    def _current_stamps(self) -> list[tuple[int, int]]:
        stamps = []
        for file in (*self._files, self._client_ca):
            try:
                status = Path(file).stat() if file else None
            except OSError:
                status = None
            stamps.append((0, 0) if status is None else (status.st_mtime_ns, status.st_ino))
        return stamps


def _check_certificates(pem: bytes, file: str) -> None:
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidInput(f"holds no certificates (PEM): {error}", file=file) from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
