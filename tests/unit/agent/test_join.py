"""A joining machine uses one key over all attempts."""

import asyncio
import http.server
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.agent import enrollment as join
from gpu_scheduler.agent.enrollment import Identity, NotJoined, load_or_join
from gpu_scheduler.wire import nodes_pb2 as nodes
from gpu_scheduler.wire.handshake import JoinText, not_leader_reason


class Servers:
    """Fake servers; each answer is lost while `are_away`."""

    def __init__(self) -> None:
        self.are_away = True
        self.is_final = True
        self.shown: list[str] = []

    async def join(
        self, node: str, _: Any, token: str, *, key: ec.EllipticCurvePrivateKey, client: Any
    ) -> Identity:
        assert client is None
        text = join._key_text(key)
        self.shown.append(text)
        if self.are_away:
            raise NotJoined("the answer was lost", is_final=self.is_final)
        return Identity(
            node=node,
            key=text,
            certificate="",
            authority="",
            expires_ms=1,
            issued_ms=0,
            token=join.secret_hash(token),
        )


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr(join, "join", servers.join)
    return servers


def ask(directory: Path, token: str = "token") -> Identity:
    return asyncio.run(load_or_join("n0", ["server:9090"], directory, token))


def test_machine_restarted_during_join_presents_same_key(servers: Servers, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(NotJoined):
            ask(tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o077 == 0, "others could read the key"
    servers.are_away = False
    identity = ask(tmp_path)
    assert set(servers.shown) == {identity.key}
    assert Identity.read(tmp_path) == identity


def test_machine_with_key_does_not_join_again(servers: Servers, tmp_path: Path) -> None:
    servers.are_away = False
    first = ask(tmp_path)
    servers.are_away = True
    assert ask(tmp_path, "another token") == first
    assert ask(tmp_path, "") == first
    assert len(servers.shown) == 1


def test_join_retries_after_configured_delay(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.is_final = False
    waits: list[float] = []

    async def slept(wait_s: float) -> None:
        waits.append(wait_s)
        servers.are_away = len(waits) < 4

    monkeypatch.setattr(join.asyncio, "sleep", slept)
    monkeypatch.setattr(join.random, "uniform", lambda _, most: most)
    asked = load_or_join("n0", ["server:9090"], tmp_path, "token", waits_s=(2, 5))
    assert asyncio.run(asked).node == "n0"
    assert waits == [2, 4, 5, 5]


def test_partially_written_key_is_replaced(servers: Servers, tmp_path: Path) -> None:
    servers.are_away = False
    (tmp_path / join.JOINING_FILE).write_text("-----BEGIN")
    assert ask(tmp_path).key == servers.shown[0]


class Cluster:
    """Servers by address, and the answer of each."""

    def __init__(self, **says: str) -> None:
        self.says = says
        self.asked: list[str] = []

    async def ask(self, place: str) -> nodes.JoinAnswer:
        self.asked.append(place)
        said = self.says.get(place, "away")
        if said:
            raise NotJoined(said, is_final=said.startswith("no,"))
        return nodes.JoinAnswer(node="n0")

    def answer(self, *targets: str) -> nodes.JoinAnswer:
        return asyncio.run(join._first_answer(targets, self.ask))


def test_machine_that_knows_only_standby_follows_to_leader() -> None:
    cluster = Cluster(standby=not_leader_reason("leader"), leader="")
    assert cluster.answer("standby").node == "n0"
    assert cluster.asked == ["standby", "leader"]


def test_leader_rejection_is_final_although_standby_redirects() -> None:
    cluster = Cluster(standby=not_leader_reason("leader"), leader="no, it is used up")
    with pytest.raises(NotJoined, match="leader: no, it is used up") as refused:
        cluster.answer("standby", "leader")
    assert refused.value.is_final
    assert cluster.asked == ["standby", "leader"]


def test_redirects_between_servers_are_bounded() -> None:
    cluster = Cluster(a=not_leader_reason("b"), b=not_leader_reason("c"), c=not_leader_reason("a"))
    with pytest.raises(NotJoined) as refused:
        cluster.answer("a")
    assert cluster.asked == ["a", "b"]
    assert not refused.value.is_final, "one of them will lead"


@pytest.mark.parametrize(
    ("plain", "target", "may"),
    [
        (False, "10.0.0.1:9090", True),
        (False, "unix:/tmp/socket", False),
        (True, "10.0.0.1:9090", False),
        (True, "127.0.0.1:1", True),
    ],
)
def test_key_without_tls_is_not_sent_to_other_machines(plain: bool, target: str, may: bool) -> None:
    identity = Identity(
        node="n0", key="", certificate="", authority="", expires_ms=1, issued_ms=0, plain=plain
    )
    assert identity.may_redirect_to(target) is may


class SpeaksHttp(http.server.BaseHTTPRequestHandler):
    """Answers as the HTTP API does."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_agent_at_api_port_is_told_the_right_port() -> None:
    token = JoinText("a" * 43, "b" * 43, plain=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SpeaksHttp) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{api.server_address[1]}"
        try:
            with pytest.raises(NotJoined, match=r"HTTP is spoken there.*api\.grpc_port, 9090"):
                asyncio.run(join.join("n1", [target], str(token)))
        finally:
            api.shutdown()
