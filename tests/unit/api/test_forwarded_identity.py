"""Only a server of the cluster can forward a caller's identity."""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpu_scheduler.api.auth.accounts import Account, Accounts, Key
from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.ha.forwarded_identity import (
    ForwardedIdentityMiddleware,
    IdentityVerifier,
    NotVouched,
    SignedRequest,
    sign_identity,
)
from gpu_scheduler.model.errors import NotLeader

SECRET = b"k" * 32
ME = Peer(uid=os.getuid(), gid=os.getgid(), unix=True, host="unix")
ASKED = SignedRequest(method=b"POST", target=b"/api/v1/jobs", body=b"{}", key=b"key-1")
NOW_MS = 1_000_000
ME_NAMED = "ann"
PATIENCE_S = 20.0


def header(secret: bytes = SECRET, *, term: int = 3, at_ms: int = NOW_MS, peer: Peer = ME) -> bytes:
    return sign_identity(secret, peer, ME_NAMED, ASKED, server="b", term=term, at_ms=at_ms)


def accepted_caller(
    text: bytes, asked: SignedRequest = ASKED, *, leader: IdentityVerifier | None = None
) -> Peer:
    leader = leader or IdentityVerifier(SECRET, 3)
    return leader.peer(leader.read(text), asked, NOW_MS)


def test_leader_accepts_identity_verified_by_other_server() -> None:
    peer = accepted_caller(header())
    assert (peer.uid, peer.gid, peer.host) == (ME.uid, ME.gid, "unix of b")


def test_wrongly_signed_or_altered_identity_is_rejected() -> None:
    for text in (header(b"x" * 32), header()[1:], header() + b"0", b"", b"."):
        with pytest.raises(NotVouched, match="no server of this cluster"):
            accepted_caller(text)


@pytest.mark.parametrize(
    "asked",
    [
        SignedRequest(method=b"DELETE", target=ASKED.target, body=ASKED.body, key=ASKED.key),
        SignedRequest(method=b"POST", target=b"/api/v1/jobs?all=1", body=ASKED.body, key=ASKED.key),
        SignedRequest(method=b"POST", target=ASKED.target, body=b'{"a":1}', key=ASKED.key),
        SignedRequest(method=b"POST", target=ASKED.target, body=ASKED.body, key=b"key-2"),
        SignedRequest(method=b"POST", target=ASKED.target + b"k", body=ASKED.body, key=b"ey-1"),
    ],
)
def test_signature_is_valid_for_one_request(asked: SignedRequest) -> None:
    with pytest.raises(NotVouched, match="another request"):
        accepted_caller(header(), asked)


def test_replayed_request_is_rejected() -> None:
    leader, text = IdentityVerifier(SECRET, 3), header()
    accepted_caller(text, leader=leader)
    with pytest.raises(NotVouched, match="sent before"):
        accepted_caller(text, leader=leader)


@pytest.mark.parametrize("at_ms", [NOW_MS - 31_000, NOW_MS + 31_000])
def test_signature_expires(at_ms: int) -> None:
    with pytest.raises(NotVouched, match="too old"):
        accepted_caller(header(at_ms=at_ms))


def test_signature_ends_with_its_term_and_can_be_renewed() -> None:
    with pytest.raises(NotLeader, match="term 2"):
        accepted_caller(header(term=2))


class FixedLeadership:
    """A leader with a fixed clock."""

    def database_ms(self) -> int:
        return NOW_MS


class Application:
    """Keeps the callers."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.peers.append(scope["state"]["peer"])


def forwarded(
    account: Callable[[Key], Account | None], timeout_s: float = PATIENCE_S
) -> tuple[list[Peer], list[Any]]:
    """The callers that a leader with these accounts sees, and its own responses."""
    application, sent = Application(), list[Any]()
    standing: Any = FixedLeadership()
    accounts = Accounts(account, timeout_s=timeout_s)
    leader = ForwardedIdentityMiddleware(
        application, IdentityVerifier(SECRET, 3), standing, 1000, accounts
    )
    scope = {
        "type": "http",
        "method": ASKED.method.decode(),
        "path": ASKED.target.decode(),
        "query_string": b"",
        "headers": [(b"x-tgpu-vouched", header()), (b"idempotency-key", ASKED.key)],
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": ASKED.body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(leader(scope, receive, send))
    return application.peers, sent


def test_leader_looks_up_forwarded_account_and_compares_it() -> None:
    peers, sent = forwarded(lambda _: Account(ME_NAMED, os.getuid(), 0, ()))
    assert [peer.uid for peer in peers] == [ME.uid]
    assert sent == []


def test_account_with_different_uid_on_leader_is_rejected() -> None:
    peers, sent = forwarded(lambda _: Account("somebody-else", os.getuid(), 0, ()))
    assert (peers, sent[0]["status"]) == ([], 403)
    assert b"same uids on all servers" in sent[1]["body"]


def test_account_lookup_timeout_on_leader_is_retryable_error() -> None:
    answers = threading.Event()
    try:
        peers, sent = forwarded(lambda _: answers.wait(60) and None, 0.05)
    finally:
        answers.set()
    assert (peers, sent[0]["status"]) == ([], 503)
    assert json.loads(sent[1]["body"])["code"] == "cluster_error"


def test_caller_without_kernel_credentials_is_not_forwarded() -> None:
    with pytest.raises(NotVouched):
        header(peer=Peer(uid=None, host="10.0.0.9"))
