"""A valid key takes precedence over tokens; a rejected key is replaced with a new token."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.agent import enrollment as join
from gpu_scheduler.agent.enrollment import REJOINED, Identity, KeyRenewer, NotJoined
from gpu_scheduler.agent.server_link import ServerConnector
from gpu_scheduler.api.grpc.certificate_authority import NodeAuthority, new_authority
from gpu_scheduler.wire import nodes_pb2 as nodes
from gpu_scheduler.wire.handshake import JoinText, certificate_pin, secret_hash

FAR_MS = 10**15
REVOKED = "the key of node 'n0' was revoked"


def an_identity(authority: NodeAuthority, *, expires_ms: int = FAR_MS, token: str = "") -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, _ = authority.sign_node(join._request(key, "n0"), "n0", 0, timedelta(days=1))
    answer = nodes.JoinAnswer(
        node="n0", certificate=certificate, authority=authority.certificate, expires_ms=expires_ms
    )
    identity = join.identity_from(answer, key, plain=False)
    return replace(identity, token=secret_hash(token.strip()))


class Site:
    """One cluster, a node that has joined it with `used`, and its requests to the servers."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.authority = NodeAuthority(new_authority(0))
        self.directory = directory
        self.token_file = directory / "join.token"
        self.used = self.token("A")
        self.identity = an_identity(self.authority, token=self.used)
        self.asked: list[str] = []
        self.refusal: NotJoined | None = None
        monkeypatch.setattr(join, "join", self._join)

    def token(self, letter: str, authority: NodeAuthority | None = None) -> str:
        pin = certificate_pin((authority or self.authority).certificate)
        return str(JoinText(letter * 43, pin))

    def write(self, text: str, mode: int = 0o600) -> None:
        self.token_file.write_text(f"{text}\n")
        self.token_file.chmod(mode)

    async def _join(self, node: str, _: Any, token: str, **more: Any) -> Identity:
        assert node == "n0"
        assert join._key_text(more["key"]) != self.identity.key, "a refused key is not used again"
        JoinText.read(token)
        self.asked.append(token)
        if self.refusal is not None:
            raise self.refusal
        return an_identity(self.authority, token=token)

    def keeper(self, token: str = "") -> KeyRenewer:
        file = str(self.token_file)
        return KeyRenewer(self.identity, self.directory, ["a:1"], token=token, token_file=file)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def told(kept: KeyRenewer, code: grpc.StatusCode, words: str = REVOKED) -> str:
    """The agent's log for a stream that has ended like this."""
    none = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(code, none, none, words)
    return asyncio.run(ServerConnector(["a:1"], kept).handle_failure(error))


def test_agent_with_rejected_key_reads_new_token_from_file(
    site: Site,
) -> None:
    site.write(site.used)
    kept = site.keeper(token=site.used)
    said = told(kept, grpc.StatusCode.UNAUTHENTICATED)
    assert said == (
        f"{REVOKED}; to let it in again, run 'tgpu node token create -q --node n0' on the server "
        f"and write what it prints to {site.token_file} (mode 600) here; this agent reads "
        "that file at each try"
    )
    assert (site.asked, kept.identity) == ([], site.identity), "its own token is good only once"
    site.write(site.token("B"))
    assert told(kept, grpc.StatusCode.UNAUTHENTICATED) == f"{REVOKED}; {REJOINED}"
    assert site.asked == [site.token("B")]
    assert kept.identity.key != site.identity.key
    assert Identity.read(site.directory) == kept.identity


@pytest.mark.parametrize("more", ["", " ", "\r"])
def test_no_token_is_sent_twice_despite_repeated_revocation(site: Site, more: str) -> None:
    site.write(site.token("B"))
    kept = site.keeper(token=f"{site.token('C')}{more}")
    for _ in range(4):
        told(kept, grpc.StatusCode.UNAUTHENTICATED)
    assert [asked.strip() for asked in site.asked] == [site.token("C"), site.token("B")]
    # Also after a restart of the agent, which reads its identity from its files.
    site.identity = Identity.read(site.directory) or site.identity
    told(site.keeper(token=f"{site.token('C')}{more}"), grpc.StatusCode.UNAUTHENTICATED)
    assert len(site.asked) == 2


def test_valid_key_is_kept_whatever_token_file_holds(site: Site) -> None:
    for text in (site.token("B"), "no token at all"):
        site.write(text)
        assert told(site.keeper(), grpc.StatusCode.UNAVAILABLE, "away") == "away"
    assert site.asked == []


def test_agent_that_cannot_rejoin_keeps_its_key_and_says_why(site: Site) -> None:
    site.write(site.token("B"))
    site.refusal = NotJoined("there is a node 'n0' already", is_final=True)
    kept = site.keeper()
    said = told(kept, grpc.StatusCode.UNAUTHENTICATED)
    assert f"with the token in {site.token_file} it cannot join again: there is a node 'n0'" in said
    assert kept.identity == site.identity


def test_each_unused_token_is_tried(site: Site) -> None:
    site.write(site.token("C"))
    kept = site.keeper(token=site.token("B"))
    site.refusal = NotJoined("used up", is_final=True)
    told(kept, grpc.StatusCode.UNAUTHENTICATED)
    assert site.asked == [site.token("B"), site.token("C")]


def test_agent_without_token_file_must_be_restarted_with_new_token(site: Site) -> None:
    kept = KeyRenewer(site.identity, site.directory, ["a:1"])
    said = told(kept, grpc.StatusCode.UNAUTHENTICATED)
    assert "--node n0' on the server and start this agent again with --token" in said


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [("tgpn_", 0o600, "the join token cannot be read"), ("tgpn_", 0o644, "all users may read")],
)
def test_unusable_token_is_reported_and_agent_continues(
    site: Site, text: str, mode: int, why: str
) -> None:
    site.write(text, mode)
    said = told(site.keeper(), grpc.StatusCode.UNAUTHENTICATED)
    assert why in said
    assert "to let it in again" in said


def test_node_moved_to_another_cluster_joins_there(site: Site) -> None:
    """Its servers cannot reject the key, because the agent does not trust them."""
    site.write(site.token("B", NodeAuthority(new_authority(0))))
    kept = site.keeper()
    said = told(kept, grpc.StatusCode.UNAVAILABLE, "not the right authority")
    assert said.endswith(REJOINED)
    site.refusal = NotJoined("cannot be reached")
    kept = site.keeper()
    assert told(kept, grpc.StatusCode.UNAVAILABLE, "away") == "away", "the old one may come back"


def test_expired_key_is_replaced_without_server_rejection(site: Site) -> None:
    site.write(site.token("B"))
    site.identity = replace(site.identity, expires_ms=1)
    assert told(site.keeper(), grpc.StatusCode.UNAVAILABLE, "away").endswith(REJOINED)


def test_late_renewal_answer_does_not_undo_join(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write(site.token("B"))
    kept = site.keeper()

    async def late(*_: Any) -> nodes.JoinAnswer:
        await kept.rejoin(is_refused=True)
        return nodes.JoinAnswer()

    monkeypatch.setattr(join, "request_renewal", late)
    asyncio.run(kept.renew())
    assert kept.identity.token.split()[-1] == secret_hash(site.token("B"))


def test_agent_that_cannot_store_new_key_keeps_old_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def run() -> None:
        authority = NodeAuthority(new_authority(0))
        tried = asyncio.Queue[bool]()

        async def signed(_: Any, __: Any, key: ec.EllipticCurvePrivateKey) -> nodes.JoinAnswer:
            asked = join._request(key, "n0")
            certificate, _ = authority.sign_node(asked, "n0", 0, timedelta(days=1))
            tried.put_nowait(True)
            return nodes.JoinAnswer(
                node="n0",
                certificate=certificate,
                authority=authority.certificate,
                expires_ms=FAR_MS,
            )

        old = an_identity(authority, expires_ms=1)
        kept = KeyRenewer(old, tmp_path / "no such directory", [])
        monkeypatch.setattr(join, "request_renewal", signed)
        monkeypatch.setattr(join, "RENEWAL_RETRY_S", 0.01)
        running = asyncio.create_task(kept.run())
        for _ in range(2):
            await asyncio.wait_for(tried.get(), 60)
        assert kept.identity == old
        (tmp_path / "no such directory").mkdir()
        await asyncio.wait_for(tried.get(), 60)
        async with asyncio.timeout(60):
            while kept.identity == old:  # noqa: ASYNC110 - it is seen from outside
                await asyncio.sleep(0.005)
        assert Identity.read(tmp_path / "no such directory") == kept.identity
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
