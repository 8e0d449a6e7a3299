"""The handshake of agents and servers: join tokens, signatures, protocol version, redirection.

A join token is `tgpn_SECRET.PIN`, where PIN is the hash of the authority's certificate, so that the
token alone lets a node verify the servers. The suffix `.plain` means that the servers do not use
TLS, which an agent accepts only for addresses of the same machine.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.model.errors import InvalidRequest, WrongState

PREFIX = "tgpn_"
PLAIN = "plain"
SERVER_NAME = "servers.gpu-scheduler.internal"
"""The name in the certificates of servers, whatever their address."""
CHALLENGE = "tgpu-challenge-bin"
JOIN_METHOD = "/gpu_scheduler.v1.NodeService/Join"
RENEW_METHOD = "/gpu_scheduler.v1.NodeService/Renew"
SIGNED_BY = ec.ECDSA(hashes.SHA256())
_TOKEN = re.compile(r"tgpn_([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{43})(\.plain)?")


@dataclass(frozen=True, slots=True)
class JoinText:
    """The parts of a join token."""

    secret: str
    pin: str
    plain: bool = False

    def __str__(self) -> str:
        """Return the token."""
        return f"{PREFIX}{self.secret}.{self.pin}{'.' + PLAIN if self.plain else ''}"

    @classmethod
    def read(cls, text: str) -> JoinText:
        """Parse a token."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise InvalidRequest(
                f"the join token cannot be read: {_token_problem(text.strip())}; copy it "
                "completely, or create another one with 'tgpu node token create' on the server"
            )
        return cls(match[1], match[2], bool(match[3]))


def _token_problem(text: str) -> str:
    """Return what is wrong with a token, without showing it."""
    if not text.startswith(PREFIX):
        return f"it has {len(text)} characters and does not start with '{PREFIX}'"
    whole = len(str(JoinText("x" * 43, "x" * 43)))
    if len(text) < whole:
        return f"it has {len(text)} characters but a complete one has {whole} or more"
    return f"it starts with '{PREFIX}', but the rest does not have the format of a token"


def secret_hash(secret: str) -> str:
    """Return the stored hash of a secret, which is 256 random bits: no salt is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def certificate_pin(certificate: bytes) -> str:
    """Return the pin of an authority from its certificate (DER)."""
    return encode_base64(hashlib.sha256(certificate).digest())


def key_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the fingerprint of a public key."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def session_payload(challenge: bytes, node: str, instance: str) -> bytes:
    """Return the bytes that a node signs to open a session."""
    return b"\n".join((b"gpu-scheduler session 1", challenge, node.encode(), instance.encode()))


def renewal_payload(at_ms: int, request: bytes) -> bytes:
    """Return the bytes that a node signs to renew its key."""
    return b"gpu-scheduler renewal 1\n" + str(at_ms).encode() + b"\n" + request


def write_proof(certificate: bytes, signature: bytes) -> str:
    """Return a certificate and a signature by its key, in the format of Hello.token."""
    return f"{encode_base64(certificate)}.{encode_base64(signature)}"


def read_proof(text: str) -> tuple[bytes, bytes] | None:
    """Return certificate and signature; None if the text has another format."""
    certificate, dot, signature = text.partition(".")
    try:
        return (_decode_base64(certificate), _decode_base64(signature)) if dot else None
    except (ValueError, binascii.Error):
        return None


def encode_base64(data: bytes) -> str:
    """Return bytes as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


# Protocol version. Both sides use the newest version that both support. An older side ignores
# unknown fields and messages, so the version is raised only when the meaning of a message changes.
# A new message that needs a response is a capability: the server sends it only to agents that
# announce it.

PROTOCOL = 1
"""The newest supported version."""
MIN_PROTOCOL = 1
"""The oldest supported version."""
TERMINALS = "terminals"
"""The capability of an agent to forward the terminals of jobs."""
TRUSTS = "trusts"
"""The capability of an agent to report which orders to trust a device it has carried out."""


class NoCommonProtocol(WrongState):
    """Agent and server support no common protocol version."""

    code = "no_common_protocol"


def negotiate_protocol(
    newest: int, least: int, *, who: str, own: tuple[int, int] = (MIN_PROTOCOL, PROTOCOL)
) -> int:
    """Return the version to use with a peer that supports `least` (0: only `newest`) to `newest`.

    `own` are the oldest and the newest version of this side; `who` names the peer in the error.
    """
    oldest = least or newest
    agreed = min(newest, own[1])
    if agreed < max(oldest, own[0]):
        older = who if newest < own[0] else "this server"
        raise NoCommonProtocol(
            f"{who} supports {_version_range(oldest, newest)} of the agent protocol, and this "
            f"server {_version_range(*own)}; update {older}"
        )
    return agreed


def _version_range(oldest: int, newest: int) -> str:
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


# Redirection. A standby names the leader in the reason of its Goodbye. The text is part of the
# protocol.

_ASK = "not the leader; ask "


def not_leader_reason(address: str) -> str:
    """Return the reason with the leader's address for agents, if that is known."""
    return f"{_ASK}{address}" if address else "not the leader, and it knows of no other yet"


def leader_in_reason(reason: str) -> str:
    """Return the leader's address in a reason; empty if there is none."""
    return reason.removeprefix(_ASK) if reason.startswith(_ASK) else ""
