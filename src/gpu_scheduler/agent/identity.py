"""How a machine becomes a node: it shows its token once, and has a key of its own from then on.

The key is made here and never leaves the machine. The token's pin says which authority is the right
one, so that nothing else has to be brought along. What becomes of the key later: `keeper`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
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
PATIENCE_S = 10.0
RENEW_AT = 2 / 3
"""Of a key's life, that much may pass before there is a new one."""
FIRST_WAIT_S, LONGEST_PAUSE_S = 0.2, 10.0
SPEAKS_HTTP = (
    "HTTP is spoken there, and no gRPC: it is the port of the API (api.http_port, 8080 by "
    "default); agents go to the port of gRPC (api.grpc_port, 9090 by default)"
)
ANOTHER_CLUSTER = "it is not a server of the cluster that the token is for"
FINAL = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
DER, PEM = serialization.Encoding.DER, serialization.Encoding.PEM
log = structlog.get_logger("agent")


class NotJoined(ClusterError):
    """The machine cannot become a node; the text says why."""

    code = "not_joined"

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        """If it is final, there is no use in trying again with the same token."""
        super().__init__(message)
        self.is_final = is_final
        self.ask = leader_in_reason(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is: its key and certificate, and the authority that it believes, as PEM.

    `token` has hashes of the tokens that it joined with: who was revoked needs another one.
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
        """What a hello must hold to be believed."""
        signature = self._private.sign(session_payload(challenge, node, instance), SIGNED_BY)
        return write_proof(self._der, signature)

    def channel_credentials(self) -> Credentials:
        """How servers are reached and known, and what is shown to those that ask."""
        return Credentials(
            authority=self.authority.encode(),
            key=self.key.encode(),
            certificate=self.certificate.encode(),
            plain=self.plain,
        )

    def renewal(self, key: ec.EllipticCurvePrivateKey) -> nodes.RenewRequest:
        """The request to be known by another key."""
        at_ms, request = _now_ms(), _request(key, self.node)
        signature = self._private.sign(renewal_payload(at_ms, request), SIGNED_BY)
        return nodes.RenewRequest(
            certificate=self._der, request=request, at_ms=at_ms, signature=signature
        )

    @property
    def renew_in_s(self) -> float:
        """How long until it should be renewed."""
        due_ms = self.issued_ms + RENEW_AT * (self.expires_ms - self.issued_ms)
        return (due_ms - _now_ms()) / 1000

    def may_redirect_to(self, target: str) -> bool:
        """Tell whether this may be shown at an address that only another server has named.

        Over TLS whoever answers there proves first that it is a server of this cluster.
        """
        return is_local(target) if self.plain else not target.startswith("unix:")

    @property
    def is_expired(self) -> bool:
        """Tell whether its time is over: no server believes it any more."""
        return self.expires_ms <= _now_ms()

    @property
    def pin(self) -> str:
        """The authority that it believes, as a token names it."""
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
        """Keep it where only the owner can read it, whole or not at all."""
        _write_secret(directory / IDENTITY_FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> Identity | None:
        """What was kept; None if nothing was."""
        file = directory / IDENTITY_FILE
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidInput(f"not the identity of a node: {error}", file=str(file)) from error


async def load_or_join(
    node: str,
    targets: Sequence[str],
    directory: Path,
    token: str = "",
    *,
    client: tuple[bytes, bytes] | None = None,
    waits_s: tuple[float, float] = (FIRST_WAIT_S, LONGEST_PAUSE_S),
) -> Identity:
    """Who this node is: as it is kept here, whatever the token is; else by joining with it.

    `client` is a certificate with its key (PEM), for servers that want one from everybody;
    `waits_s` are the first and the longest wait before they are asked again.
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
    identity = await _until_joined(node, targets, token, key, client, waits_s)
    save_joined(identity, directory)
    return identity


def save_joined(identity: Identity, directory: Path) -> None:
    """Keep what a machine has become by joining."""
    identity.write(directory)
    (directory / JOINING_FILE).unlink(missing_ok=True)
    log.info("this machine has joined", node=identity.node)


def joining_key(directory: Path, known: Identity | None) -> ec.EllipticCurvePrivateKey:
    """The key to join with. It is kept before it is shown: whoever asks again shows the same."""
    file = directory / JOINING_FILE
    with contextlib.suppress(FileNotFoundError, ValueError):
        text = file.read_text(encoding="utf-8")
        if known is None or text != known.key:
            return _private_key(text)
    key = ec.generate_private_key(ec.SECP256R1())
    _write_secret(file, _key_text(key))
    return key


async def _until_joined(
    node: str,
    targets: Sequence[str],
    token: str,
    key: ec.EllipticCurvePrivateKey,
    client: tuple[bytes, bytes] | None,
    waits_s: tuple[float, float],
) -> Identity:
    """Join; servers that are away, or not ready yet, are waited for."""
    (wait_s, longest_s), told = waits_s, ""
    while True:
        try:
            return await join(node, targets, token, key=key, client=client)
        except NotJoined as error:
            if error.is_final:
                raise
            if str(error) != told:
                told = str(error)
                log.warning("not joined yet; it is tried again", error=told)
        await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
        wait_s = min(longest_s, wait_s * 2)


async def join(
    node: str,
    targets: Sequence[str],
    token: str,
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    client: tuple[bytes, bytes] | None = None,
) -> Identity:
    """Show a token to one of the servers, and have a key signed: a new one if none is given."""
    text = JoinText.read(token)
    key = key or ec.generate_private_key(ec.SECP256R1())
    asked = nodes.JoinRequest(
        token=str(text),
        node=node,
        request=_request(key, node),
        version=__version__,
        protocol=PROTOCOL,
        least_protocol=MIN_PROTOCOL,
    )
    method = (JOIN_METHOD, nodes.JoinRequest.SerializeToString)

    async def ask(target: str) -> nodes.JoinAnswer:
        authority = b"" if text.plain else await asyncio.to_thread(_authority_at, target, text)
        credentials = Credentials(authority=authority, plain=_checked_plain(text, target))
        if client is not None:
            credentials = replace(credentials, certificate=client[0], key=client[1])
        answer = await _ask(target, credentials, method, asked)
        if certificate_pin(answer.authority) != text.pin:
            raise NotJoined(ANOTHER_CLUSTER)
        return answer

    try:
        answer = await _first_answer(targets, ask)
    except NotJoined as error:
        told = f"node '{node}' could not join; {error}"
        raise NotJoined(told, is_final=error.is_final) from None
    identity = identity_from(answer, key, plain=text.plain)
    return replace(identity, token=secret_hash(token.strip()))


def identity_from(
    answer: nodes.JoinAnswer, key: ec.EllipticCurvePrivateKey, *, plain: bool
) -> Identity:
    """Who a node is by the answer to its key."""
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


def _write_secret(target: Path, text: str) -> None:
    """Keep something that only the owner can read, whole or not at all."""
    fresh = target.with_name(f"{target.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(target)


def _request(key: ec.EllipticCurvePrivateKey, node: str) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    return builder.sign(key, hashes.SHA256()).public_bytes(DER)


# --- asking servers

Method = tuple[str, Any]


async def renewed(
    identity: Identity, targets: Sequence[str], key: ec.EllipticCurvePrivateKey
) -> nodes.JoinAnswer:
    """The answer to a node that wants to be known by another key."""
    method = (RENEW_METHOD, nodes.RenewRequest.SerializeToString)
    credentials = identity.channel_credentials()

    async def ask(target: str) -> nodes.JoinAnswer:
        if target not in targets and not identity.may_redirect_to(target):
            raise NotJoined(f"it was sent to {target}, and without TLS it goes nowhere else")
        return await _ask(target, credentials, method, identity.renewal(key))

    return await _first_answer(targets, ask)


async def _first_answer(
    targets: Sequence[str], ask: Callable[[str], Awaitable[nodes.JoinAnswer]]
) -> nodes.JoinAnswer:
    """The first good answer. Where a standby says that the leader is, it is asked too."""
    places = list(targets)
    troubles: dict[str, NotJoined] = {}
    for place in places:
        try:
            return await ask(place)
        except NotJoined as error:
            troubles[place] = error
            if error.ask and error.ask not in places and place in targets:
                places.append(error.ask)
    # What a standby says ends nothing: the leader's own word counts.
    said = [error for error in troubles.values() if not error.ask]
    raise NotJoined(
        "; ".join(f"{place}: {error}" for place, error in troubles.items()),
        is_final=bool(said) and all(error.is_final for error in said),
    )


async def _ask(
    target: str, credentials: Credentials, method: Method, asked: Any
) -> nodes.JoinAnswer:
    path, written = method
    async with open_channel(target, credentials) as channel:
        call = channel.unary_unary(
            path,
            request_serializer=written,
            response_deserializer=nodes.JoinAnswer.FromString,
        )
        try:
            return await call(asked, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            why = _in_words(error.details() or error.code().name.lower())
            raise NotJoined(why, is_final=error.code() in FINAL) from None


def _in_words(why: str) -> str:
    """What gRPC says of a port that is not meant for it, so that people know which one is."""
    return SPEAKS_HTTP if "Failed parsing HTTP/2" in why else why


def _checked_plain(text: JoinText, target: str) -> bool:
    """A token that says so is believed only about this machine: others could read it on the way."""
    if text.plain and not is_local(target):
        raise NotJoined(
            "the token is for a server without TLS, and those are only reached on their own "
            "machine; switch grpc.tls on at the server and make another token",
            is_final=True,
        )
    return text.plain


def is_local(target: str) -> bool:
    """Tell whether an address is on this machine."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _authority_at(target: str, text: JoinText) -> bytes:
    """The certificate of the authority behind a server, if it is the one that the token names."""
    host, _, port = target.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # what comes is compared with the pin instead
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as secure,
        ):
            chain = _chain(secure)
            if secure.selected_alpn_protocol() != "h2":
                raise NotJoined(SPEAKS_HTTP)
    except (OSError, ValueError) as error:
        raise NotJoined(_why_not(error)) from None
    for certificate in chain:
        if certificate_pin(certificate) == text.pin:
            return _pem(certificate)
    # Perhaps it has just started and does not know its authority yet: worth another try.
    raise NotJoined(ANOTHER_CLUSTER)


def _chain(secure: ssl.SSLSocket) -> list[bytes]:
    """All certificates that were shown, DER."""
    found = getattr(secure, "get_unverified_chain", None)
    if found is not None:
        return list(found())
    # Before Python 3.13 it is there, and not public.
    certificates = cast(Any, secure)._sslobj.get_unverified_chain() or ()
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in certificates]


def _why_not(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS there"
    return f"cannot be reached: {getattr(error, 'strerror', None) or error}"


def _pem(certificate: bytes) -> bytes:
    return x509.load_der_x509_certificate(certificate).public_bytes(PEM)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- The file with the token that a machine joins with. It may be gone later: it is needed once.

LARGEST_TOKEN = 4096


def token_in(file: str) -> str:
    """The token of a file; of one that is gone none."""
    if not file or not os.path.exists(file):  # noqa: PTH110 - pathlib would cost its import
        return ""
    return read_trusted(file, LARGEST_TOKEN, secret=True).decode("ascii", "replace").strip()


# --- The key of a running agent: it is renewed in time, and replaced when servers refuse it.
#
# A key that is good wins over any token. One that was revoked, or is of another cluster, is
# replaced
# by joining anew, with a token that was not used for it; its file is read at each try, so that
# nobody
# has to start the agent again. If that is refused as well, the old key stays.

LONGEST_WAIT_S = 3600.0
TRY_AGAIN_S = 60.0
MOST_TOKENS = 20
"""So many that it has joined with are remembered, so that none of them is shown again."""
JOINED_ANEW = "it has joined anew, and has another key now"
Client = tuple[bytes, bytes]


async def key_renewer_for(config: AgentConfig) -> KeyRenewer | None:
    """The identity of an agent and its keeper; None where the socket's owner vouches for it."""
    if all(target.startswith("unix:") for target in config.targets):
        return None
    directory, client = Path(config.dir), _client(config)
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
    """The identity of a running agent, as it is renewed. Whoever opens a stream asks for it."""

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
        """Renewals are asked of the targets, and kept in the directory.

        The token, or what is in its file by then, is for the day when the key is refused.
        """
        self.identity = identity
        self._directory = directory
        self._targets = tuple(targets)
        self._token = token
        self._token_file = token_file
        self._client = client

    async def run(self) -> None:
        """Renew in time, for ever."""
        while True:
            wait_s = max(0.0, self.identity.renew_in_s)
            if wait_s:
                await asyncio.sleep(min(wait_s, LONGEST_WAIT_S))
                continue
            try:
                await self.renew()
            except (NotJoined, OSError) as error:
                log.warning("the node's key is not renewed yet", error=str(error))
                await asyncio.sleep(TRY_AGAIN_S * random.uniform(0.5, 1.0))

    async def renew(self) -> None:
        """Get a new key signed, and use it once it is kept; until then the old one is good."""
        old = self.identity
        key = ec.generate_private_key(ec.SECP256R1())
        answer = await renewed(old, self._targets, key)
        if self.identity is not old:
            return  # it has joined anew meanwhile, and that key counts
        new = identity_from(answer, key, plain=old.plain)
        new = replace(new, authority=old.authority, token=old.token)
        new.write(self._directory)
        self.identity = new
        log.info("the node has a new key", node=new.node)

    async def rejoin(self, *, is_refused: bool) -> str:
        """Join with a new token if the key is good for nothing, and say what came of it.

        Servers that refuse the key have said so; those of another cluster cannot even be asked,
        so a token for another authority than the key's is tried as well.
        """
        is_refused = is_refused or self.identity.is_expired
        troubles: list[str] = []
        for source, token in await asyncio.to_thread(self._tokens, troubles):
            try:
                if is_refused or JoinText.read(token).pin != self.identity.pin:
                    await self._join(token)
                    return JOINED_ANEW
            except (NotJoined, InvalidRequest, OSError) as error:
                told = f"with the token {source} it cannot join anew: {error}"
                if isinstance(error, NotJoined) and error.is_final and not is_refused:
                    return told  # by a server of the other cluster, so this is the one to mend
                troubles.append(told)
        return "; ".join((*troubles, self._advice())) if is_refused else ""

    def _tokens(self, troubles: list[str]) -> list[tuple[str, str]]:
        """Tokens with which this node has not joined yet, and where they are."""
        found = {}
        if self._token:
            found[self._token] = "that it was started with"
        try:
            if written := token_in(self._token_file):
                found[written] = f"in {self._token_file}"
        except InvalidInput as error:
            troubles.append(str(error))
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
        used = [*self.identity.token.split(), *identity.token.split()][-MOST_TOKENS:]
        identity = replace(identity, token=" ".join(dict.fromkeys(used)))
        save_joined(identity, self._directory)
        self.identity = identity

    def _advice(self) -> str:
        make = f"to let it in again, run 'tgpu node token create -q --node {self.identity.node}'"
        if self._token_file:
            return (
                f"{make} on the server and write what it prints to {self._token_file} (mode 600) "
                "here; this agent looks there at each try"
            )
        return f"{make} on the server and start this agent again with --token and what it prints"


def _client(config: AgentConfig) -> Client | None:
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
