"""What nodes show and servers check: join tokens, proofs of a key, and the bytes that are signed.

A join token is `tgpn_SECRET.PIN`, where PIN is the hash of the authority's certificate; so whoever
has the token knows the right servers without having anything else. `.plain` behind it says that
they do not speak TLS, which is only believed for addresses of the same machine.
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
"""What servers are called in the certificates that agents check, wherever they are."""
CHALLENGE = "tgpu-challenge-bin"
JOIN_METHOD = "/gpu_scheduler.v1.NodeService/Join"
RENEW_METHOD = "/gpu_scheduler.v1.NodeService/Renew"
SIGNED_BY = ec.ECDSA(hashes.SHA256())
_TOKEN = re.compile(r"tgpn_([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{43})(\.plain)?")


@dataclass(frozen=True, slots=True)
class JoinText:
    """A join token, taken apart."""

    secret: str
    pin: str
    plain: bool = False

    def __str__(self) -> str:
        """As people carry it."""
        return f"{PREFIX}{self.secret}.{self.pin}{'.' + PLAIN if self.plain else ''}"

    @classmethod
    def read(cls, text: str) -> JoinText:
        """Take a token apart."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise InvalidRequest(
                f"the join token cannot be read: {_why_no_token(text.strip())}; copy it whole, or "
                "make another with 'tgpu node token create' on the server"
            )
        return cls(match[1], match[2], bool(match[3]))


def _why_no_token(text: str) -> str:
    """What is wrong with a token, without showing it."""
    if not text.startswith(PREFIX):
        return f"it has {len(text)} characters and does not begin with '{PREFIX}'"
    whole = len(str(JoinText("x" * 43, "x" * 43)))
    if len(text) < whole:
        return f"it has {len(text)} characters and a whole one has {whole} or more"
    return f"it begins with '{PREFIX}' and has other characters or parts than a token has"


def secret_hash(secret: str) -> str:
    """What is kept of a secret. It has 256 bits of chance, so that a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def pin_of(certificate: bytes) -> str:
    """The pin of an authority, by its certificate (DER)."""
    return encoded(hashlib.sha256(certificate).digest())


def fingerprint_of(key: ec.EllipticCurvePublicKey) -> str:
    """The name of a public key."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def session_text(challenge: bytes, node: str, instance: str) -> bytes:
    """What a node signs to open a session."""
    return b"\n".join((b"gpu-scheduler session 1", challenge, node.encode(), instance.encode()))


def renewal_text(at_ms: int, request: bytes) -> bytes:
    """What a node signs to renew its key."""
    return b"gpu-scheduler renewal 1\n" + str(at_ms).encode() + b"\n" + request


def written_proof(certificate: bytes, signature: bytes) -> str:
    """A certificate and a signature by its key, as Hello.token has them."""
    return f"{encoded(certificate)}.{encoded(signature)}"


def read_proof(text: str) -> tuple[bytes, bytes] | None:
    """Certificate and signature; None if it is nothing like that."""
    certificate, dot, signature = text.partition(".")
    try:
        return (_decoded(certificate), _decoded(signature)) if dot else None
    except (ValueError, binascii.Error):
        return None


def encoded(data: bytes) -> str:
    """Bytes as text that passes everywhere."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


# --- Which version of the agents' protocol two sides speak: the newest that both know.
#
# A side that was made before the other learns of nothing that it does not know: fields and messages
# that are new are passed over. A version is raised only when the same message means something else.

PROTOCOL = 1
"""The newest version that is spoken here."""
LEAST_PROTOCOL = 1
"""The oldest version that is still spoken here."""
TERMINALS = "terminals"
"""An ability that an agent names: it brings terminals of jobs to the server.

What is new and must be answered is an ability: who does not name it is not asked for it.
"""
TRUSTS = "trusts"
"""An ability that an agent names: its readings say which orders to trust a device were followed."""


class NoCommonProtocol(WrongState):
    """Two sides cannot talk to each other."""

    code = "no_common_protocol"


def agreed_protocol(
    newest: int, least: int, *, who: str, own: tuple[int, int] = (LEAST_PROTOCOL, PROTOCOL)
) -> int:
    """The version to speak with somebody who knows `least` (0: just `newest`) to `newest`.

    `own` are the oldest and the newest version of this side.
    """
    oldest = least or newest
    agreed = min(newest, own[1])
    if agreed < max(oldest, own[0]):
        older = who if newest < own[0] else "this server"
        raise NoCommonProtocol(
            f"{who} speaks {_span(oldest, newest)} of the agents' protocol and this server "
            f"{_span(*own)}; update {older}"
        )
    return agreed


def _span(oldest: int, newest: int) -> str:
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


# --- How a standby tells an agent where the leader is: in the reason for which it sends it away.

_ASK = "not the leader; ask "


def not_the_leader(address: str) -> str:
    """The reason, with the leader's address for agents; without, if that is not known."""
    return f"{_ASK}{address}" if address else "not the leader, and it knows of no other yet"


def leader_named(reason: str) -> str:
    """The address in a reason; empty if there is none."""
    return reason.removeprefix(_ASK) if reason.startswith(_ASK) else ""
