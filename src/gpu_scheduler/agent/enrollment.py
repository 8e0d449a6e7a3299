"""The identity of a node: it joins the cluster with a token, and renews its key from then on.

The private key is generated here and never leaves the machine. The token contains a pin of the
cluster's authority, so a machine needs nothing else to recognise the right servers.

A valid key takes precedence over any token. A node whose key was revoked, or that belongs to
another cluster now, joins again with a token that it has not used yet. The token file is read at
each try, so the agent need not be restarted. If the servers reject that too, the old key is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpu_scheduler import __version__
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.jobs.network import is_loopback
from gpu_scheduler.agent.machine import replace_file
from gpu_scheduler.agent.server_link import Credentials, open_channel
from gpu_scheduler.model.errors import ClusterError, InvalidInput, InvalidRequest
from gpu_scheduler.settings.trusted_files import read_trusted
from gpu_scheduler.wire import nodes_pb2 as nodes
from gpu_scheduler.wire.handshake import (
    JOIN_METHOD,
    MIN_PROTOCOL,
    PROTOCOL,
    RENEW_METHOD,
    SERVER_NAME,
    SIGNED_BY,
    JoinText,
    certificate_pin,
    leader_in_reason,
    renewal_payload,
    secret_hash,
    session_payload,
    write_proof,
)

IDENTITY_FILE = "identity.json"
JOINING_FILE = "joining.pem"
"""The key of a machine that has asked to join, and may have missed the answer."""
REQUEST_TIMEOUT_S = 10.0
RENEW_AT = 2 / 3
"""A key is renewed after this part of its lifetime."""
FIRST_WAIT_S, MAX_WAIT_S = 0.2, 10.0
RENEWAL_CHECK_S = 3600.0
RENEWAL_RETRY_S = 60.0
MAX_TOKEN_BYTES = 4096
MAX_USED_TOKENS = 20
"""So many used tokens are remembered, so that none of them is tried again."""
REJOINED = "it has joined again, and has another key now"
SPEAKS_HTTP = (
    "HTTP is spoken there, and no gRPC: it is the port of the API (api.http_port, 8080 by "
    "default); agents go to the port of gRPC (api.grpc_port, 9090 by default)"
)
ANOTHER_CLUSTER = "it is not a server of the cluster that the token is for"
FINAL_CODES = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
DER, PEM = serialization.Encoding.DER, serialization.Encoding.PEM
Client = tuple[bytes, bytes]
"""A client certificate and its key (PEM), for servers that require one."""
Method = tuple[str, Any]
"""The path of a gRPC method, and the serializer of its request."""
log = structlog.get_logger("agent")


class NotJoined(ClusterError):
    """The machine cannot join the cluster; the message says why.

    `is_final` means that a retry with the same token is pointless; `leader` is the address of the
    leader, if the server named it.
    """

    code = "not_joined"

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final
        self.leader = leader_in_reason(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The node's key and certificate, and the authority that it trusts, as PEM.

    `token` has the hashes of the tokens that it joined with: a revoked node needs another one. The
    field names are those of identity.json.
    """

    node: str
    key: str
    certificate: str
    authority: str
    expires_ms: int
    issued_ms: int
    plain: bool = False
    token: str = ""

    def proof(self, challenge: bytes, node: str, instance: str) -> str:
        """The signature with which a hello answers the server's challenge."""
        signature = self._private.sign(session_payload(challenge, node, instance), SIGNED_BY)
        return write_proof(self._der, signature)

    def channel_credentials(self) -> Credentials:
        """The credentials for channels to the servers."""
        return Credentials(
            authority=self.authority.encode(),
            key=self.key.encode(),
            certificate=self.certificate.encode(),
            plain=self.plain,
        )

    def renewal(self, key: ec.EllipticCurvePrivateKey) -> nodes.RenewRequest:
        """The request to replace the node's key by `key`, signed with the current one."""
        at_ms, request = _now_ms(), _request(key, self.node)
        signature = self._private.sign(renewal_payload(at_ms, request), SIGNED_BY)
        return nodes.RenewRequest(
            certificate=self._der, request=request, at_ms=at_ms, signature=signature
        )

    @property
    def renew_in_s(self) -> float:
        """Seconds until the key should be renewed; negative if that is overdue."""
        due_ms = self.issued_ms + RENEW_AT * (self.expires_ms - self.issued_ms)
        return (due_ms - _now_ms()) / 1000

    def may_redirect_to(self, target: str) -> bool:
        """Tell whether the node may follow a server's redirect to this address.

        With TLS the other server first proves that it belongs to this cluster.
        """
        return is_local(target) if self.plain else not target.startswith("unix:")

    @property
    def is_expired(self) -> bool:
        """Tell whether the certificate has expired: no server accepts it any more."""
        return self.expires_ms <= _now_ms()

    @property
    def pin(self) -> str:
        """The pin of the trusted authority, as in a token."""
        return certificate_pin(
            x509.load_pem_x509_certificate(self.authority.encode()).public_bytes(DER)
        )

    @property
    def _private(self) -> ec.EllipticCurvePrivateKey:
        return _private_key(self.key)

    @property
    def _der(self) -> bytes:
        return x509.load_pem_x509_certificate(self.certificate.encode()).public_bytes(DER)

    def write(self, directory: Path) -> None:
        """Write identity.json atomically, readable only by its owner."""
        replace_file(directory / IDENTITY_FILE, json.dumps(asdict(self)), sync=True)

    @classmethod
    def read(cls, directory: Path) -> Identity | None:
        """The stored identity; None if there is none."""
        file = directory / IDENTITY_FILE
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"not the identity of a node: {error}", file=str(file)) from error


async def load_or_join(
    node: str,
    targets: Sequence[str],
    directory: Path,
    token: str = "",
    *,
    client: Client | None = None,
    waits_s: tuple[float, float] = (FIRST_WAIT_S, MAX_WAIT_S),
) -> Identity:
    """The stored identity of this node, or a new one by joining with the token.

    Servers that are unreachable or not ready are retried; `waits_s` are the first and the longest
    wait.
    """
    known = Identity.read(directory)
    if known is not None and known.node == node:
        return known
    if not token:
        raise InvalidRequest(
            f"node '{node}' has not joined yet; make a token on the server with 'tgpu node token "
            "create' and start the agent with --token, or with agent.token_file"
        )
    key = joining_key(directory, known)
    (wait_s, longest_s), logged = waits_s, ""
    while True:
        try:
            identity = await join(node, targets, token, key=key, client=client)
            break
        except NotJoined as error:
            if error.is_final:
                raise
            if str(error) != logged:
                logged = str(error)
                log.warning("not joined yet; retrying", error=logged)
        await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
        wait_s = min(longest_s, wait_s * 2)
    save_joined(identity, directory)
    return identity


def save_joined(identity: Identity, directory: Path) -> None:
    """Store a new identity, and delete the key file of the join."""
    identity.write(directory)
    (directory / JOINING_FILE).unlink(missing_ok=True)
    log.info("joined the cluster", node=identity.node)


def joining_key(directory: Path, known: Identity | None) -> ec.EllipticCurvePrivateKey:
    """The key to join with. It is stored before its first use, so that a retry uses the same."""
    file = directory / JOINING_FILE
    with contextlib.suppress(FileNotFoundError, ValueError):
        text = file.read_text(encoding="utf-8")
        if known is None or text != known.key:
            return _private_key(text)
    key = ec.generate_private_key(ec.SECP256R1())
    replace_file(file, _key_text(key), sync=True)
    return key


async def join(
    node: str,
    targets: Sequence[str],
    token: str,
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    client: Client | None = None,
) -> Identity:
    """Have one of the servers sign a key with a token; a new key if none is given."""
    text = JoinText.read(token)
    key = key or ec.generate_private_key(ec.SECP256R1())
    request = nodes.JoinRequest(
        token=str(text),
        node=node,
        request=_request(key, node),
        version=__version__,
        protocol=PROTOCOL,
        least_protocol=MIN_PROTOCOL,
    )
    method = (JOIN_METHOD, nodes.JoinRequest.SerializeToString)

    async def ask(target: str) -> nodes.JoinAnswer:
        authority = b"" if text.plain else await asyncio.to_thread(_fetch_authority, target, text)
        if text.plain and not is_local(target):
            # Others could read the token on its way over a network.
            raise NotJoined(
                "the token is for a server without TLS, and those are only reached on their own "
                "machine; switch grpc.tls on at the server and make another token",
                is_final=True,
            )
        credentials = Credentials(authority=authority, plain=text.plain)
        if client is not None:
            credentials = replace(credentials, certificate=client[0], key=client[1])
        answer = await _call(target, credentials, method, request)
        if certificate_pin(answer.authority) != text.pin:
            raise NotJoined(ANOTHER_CLUSTER)
        return answer

    try:
        answer = await _first_answer(targets, ask)
    except NotJoined as error:
        message = f"node '{node}' could not join; {error}"
        raise NotJoined(message, is_final=error.is_final) from None
    identity = identity_from(answer, key, plain=text.plain)
    return replace(identity, token=secret_hash(token.strip()))


def identity_from(
    answer: nodes.JoinAnswer, key: ec.EllipticCurvePrivateKey, *, plain: bool
) -> Identity:
    """The identity that a server's answer gives to a key."""
    return Identity(
        node=answer.node,
        key=_key_text(key),
        certificate=_pem(answer.certificate).decode(),
        authority=_pem(answer.authority).decode(),
        expires_ms=answer.expires_ms,
        issued_ms=_now_ms(),
        plain=plain,
    )


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    none = serialization.NoEncryption()
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, none).decode()


def _private_key(text: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(text.encode(), None)
    return cast(ec.EllipticCurvePrivateKey, key)


def _request(key: ec.EllipticCurvePrivateKey, node: str) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    return builder.sign(key, hashes.SHA256()).public_bytes(DER)


async def request_renewal(
    identity: Identity, targets: Sequence[str], key: ec.EllipticCurvePrivateKey
) -> nodes.JoinAnswer:
    """Ask the servers to replace the node's key by `key`."""
    method = (RENEW_METHOD, nodes.RenewRequest.SerializeToString)
    credentials = identity.channel_credentials()

    async def ask(target: str) -> nodes.JoinAnswer:
        if target not in targets and not identity.may_redirect_to(target):
            raise NotJoined(f"without TLS the redirect to {target} is not followed")
        return await _call(target, credentials, method, identity.renewal(key))

    return await _first_answer(targets, ask)


async def _first_answer(
    targets: Sequence[str], ask: Callable[[str], Awaitable[nodes.JoinAnswer]]
) -> nodes.JoinAnswer:
    """The first successful answer; a leader that a standby names gets the request too."""
    addresses = list(targets)
    errors: dict[str, NotJoined] = {}
    for address in addresses:
        try:
            return await ask(address)
        except NotJoined as error:
            errors[address] = error
            if error.leader and error.leader not in addresses and address in targets:
                addresses.append(error.leader)
    # The answer of a standby is never final: only that of the leader counts.
    answers = [error for error in errors.values() if not error.leader]
    raise NotJoined(
        "; ".join(f"{address}: {error}" for address, error in errors.items()),
        is_final=bool(answers) and all(error.is_final for error in answers),
    )


async def _call(
    target: str, credentials: Credentials, method: Method, request: Any
) -> nodes.JoinAnswer:
    path, serializer = method
    async with open_channel(target, credentials) as channel:
        call = channel.unary_unary(
            path,
            request_serializer=serializer,
            response_deserializer=nodes.JoinAnswer.FromString,
        )
        try:
            return await call(request, timeout=REQUEST_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            detail = error.details() or error.code().name.lower()
            message = SPEAKS_HTTP if "Failed parsing HTTP/2" in detail else detail
            raise NotJoined(message, is_final=error.code() in FINAL_CODES) from None


def is_local(target: str) -> bool:
    """Tell whether an address is on this machine."""
    host = target.rpartition(":")[0].strip("[]")
    return target.startswith("unix:") or host == "localhost" or is_loopback(host)


def _fetch_authority(target: str, text: JoinText) -> bytes:
    """Fetch the authority's certificate from a server, and compare it with the token's pin."""
    host, _, port = target.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the chain is compared with the pin instead
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), REQUEST_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as secure,
        ):
            chain = _certificate_chain(secure)
            if secure.selected_alpn_protocol() != "h2":
                raise NotJoined(SPEAKS_HTTP)
    except ssl.SSLError:
        raise NotJoined("it does not speak TLS there") from None
    except (OSError, ValueError) as error:
        detail = getattr(error, "strerror", None) or error
        raise NotJoined(f"cannot be reached: {detail}") from None
    for certificate in chain:
        if certificate_pin(certificate) == text.pin:
            return _pem(certificate)
    # Not final: a server that has just started may not know its authority yet.
    raise NotJoined(ANOTHER_CLUSTER)


def _certificate_chain(secure: ssl.SSLSocket) -> list[bytes]:
    """All certificates that the server sent (DER)."""
    get_chain = getattr(secure, "get_unverified_chain", None)
    if get_chain is not None:
        return list(get_chain())
    # Before Python 3.13 the method exists, but is not public.
    certificates = cast(Any, secure)._sslobj.get_unverified_chain() or ()
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in certificates]


def _pem(certificate: bytes) -> bytes:
    return x509.load_der_x509_certificate(certificate).public_bytes(PEM)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def token_in(file: str) -> str:
    """The token in a file; empty if the file does not exist, as it is needed only once."""
    if not file or not os.path.exists(file):  # noqa: PTH110 - pathlib would cost its import
        return ""
    return read_trusted(file, MAX_TOKEN_BYTES, secret=True).decode("ascii", "replace").strip()


async def key_renewer_for(config: AgentConfig) -> KeyRenewer | None:
    """The identity of an agent; None on a Unix socket, where the peer's uid is enough."""
    if all(target.startswith("unix:") for target in config.targets):
        return None
    directory, client = Path(config.dir), _read_client(config)
    token = config.token or token_in(config.token_file)
    waits_s = (config.retry_interval_s, config.max_retry_interval_s)
    identity = await load_or_join(
        config.node, config.targets, directory, token, client=client, waits_s=waits_s
    )
    return KeyRenewer(
        identity,
        directory,
        config.targets,
        token=config.token,
        token_file=config.token_file,
        client=client,
    )


class KeyRenewer:
    """Holds the identity of a running agent, renews its key, and joins again if it is rejected."""

    def __init__(
        self,
        identity: Identity,
        directory: Path,
        targets: Sequence[str],
        *,
        token: str = "",
        token_file: str = "",
        client: Client | None = None,
    ) -> None:
        """The token, or the content of its file at that time, is used when the key is rejected."""
        self.identity = identity
        self._directory = directory
        self._targets = tuple(targets)
        self._token = token
        self._token_file = token_file
        self._client = client

    async def run(self) -> None:
        """Renew the key in time, until cancelled."""
        while True:
            wait_s = max(0.0, self.identity.renew_in_s)
            if wait_s:
                await asyncio.sleep(min(wait_s, RENEWAL_CHECK_S))
                continue
            try:
                await self.renew()
            except (NotJoined, OSError) as error:
                log.warning("renewal of the node's key failed; will retry", error=str(error))
                await asyncio.sleep(RENEWAL_RETRY_S * random.uniform(0.5, 1.0))

    async def renew(self) -> None:
        """Have a new key signed, and use it once it is stored; until then the old one is valid."""
        old = self.identity
        key = ec.generate_private_key(ec.SECP256R1())
        answer = await request_renewal(old, self._targets, key)
        if self.identity is not old:
            return  # the node has rejoined meanwhile: that key is newer
        new = identity_from(answer, key, plain=old.plain)
        new = replace(new, authority=old.authority, token=old.token)
        new.write(self._directory)
        self.identity = new
        log.info("renewed the node's key", node=new.node)

    async def rejoin(self, *, is_refused: bool) -> str:
        """Join again with an unused token if the key is rejected; returns the result as text.

        A server of another cluster cannot be asked whether it accepts the key, so a token of
        another authority is tried even if no server has refused the key.
        """
        is_refused = is_refused or self.identity.is_expired
        problems: list[str] = []
        for source, token in await asyncio.to_thread(self._unused_tokens, problems):
            try:
                if is_refused or JoinText.read(token).pin != self.identity.pin:
                    await self._join(token)
                    return REJOINED
            except (NotJoined, InvalidRequest, OSError) as error:
                problem = f"with the token {source} it cannot join again: {error}"
                if isinstance(error, NotJoined) and error.is_final and not is_refused:
                    return problem  # from a server of the new cluster, so this is to be fixed
                problems.append(problem)
        return "; ".join((*problems, self._advice())) if is_refused else ""

    def _unused_tokens(self, problems: list[str]) -> list[tuple[str, str]]:
        """Where each token comes from, and the token, without those that were used already."""
        found = {}
        if self._token:
            found[self._token] = "that it was started with"
        try:
            if token := token_in(self._token_file):
                found[token] = f"in {self._token_file}"
        except InvalidInput as error:
            problems.append(str(error))
        used = self.identity.token.split()
        return [
            (source, token)
            for token, source in found.items()
            if secret_hash(token.strip()) not in used
        ]

    async def _join(self, token: str) -> None:
        key = joining_key(self._directory, self.identity)
        node, client = self.identity.node, self._client
        identity = await join(node, self._targets, token, key=key, client=client)
        used = [*self.identity.token.split(), *identity.token.split()][-MAX_USED_TOKENS:]
        identity = replace(identity, token=" ".join(dict.fromkeys(used)))
        save_joined(identity, self._directory)
        self.identity = identity

    def _advice(self) -> str:
        make = f"to let it in again, run 'tgpu node token create -q --node {self.identity.node}'"
        if self._token_file:
            return (
                f"{make} on the server and write what it prints to {self._token_file} (mode 600) "
                "here; this agent reads that file at each try"
            )
        return f"{make} on the server and start this agent again with --token and what it prints"


def _read_client(config: AgentConfig) -> Client | None:
    if not config.client_certificate:
        return None
    try:
        files = (config.client_certificate, config.client_key)
        certificate, key = (Path(file).read_bytes() for file in files)
    except OSError as error:
        raise InvalidRequest(
            f"grpc.client_certificate and grpc.client_key cannot be read: {error}"
        ) from None
    return certificate, key
