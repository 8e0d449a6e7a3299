"""A machine that joins asks with one key, whatever happens between two tries."""

import asyncio
import http.server
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.agent import join
from gpu_scheduler.agent.join import Identity, NotJoined, identity_of
from gpu_scheduler.wire.node_proof import JoinText


class Servers:
    """Stand for those that are asked; each answer gets lost for as long as `are_away`."""

    def __init__(self) -> None:
        self.are_away = True
        self.shown: list[str] = []

    async def join(
        self, node: str, _: Any, token: str, *, key: ec.EllipticCurvePrivateKey, client: Any
    ) -> Identity:
        assert client is None
        text = join._key_text(key)
        self.shown.append(text)
        if self.are_away:
            raise NotJoined("the answer was lost", is_final=True)
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
    return asyncio.run(identity_of("n0", ["server:9090"], directory, token))


def test_a_machine_that_was_restarted_while_it_joined_shows_the_same_key(
    servers: Servers, tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(NotJoined):
            ask(tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o077 == 0, "others could read the key"
    servers.are_away = False
    identity = ask(tmp_path)
    assert set(servers.shown) == {identity.key}
    assert Identity.read(tmp_path) == identity


def test_a_machine_that_has_a_key_asks_nobody_whatever_the_token_is(
    servers: Servers, tmp_path: Path
) -> None:
    servers.are_away = False
    first = ask(tmp_path)
    servers.are_away = True
    assert ask(tmp_path, "another token") == first
    assert ask(tmp_path, "") == first
    assert len(servers.shown) == 1


def test_a_key_that_was_only_half_written_is_made_anew(servers: Servers, tmp_path: Path) -> None:
    servers.are_away = False
    (tmp_path / join.JOINING_FILE).write_text("-----BEGIN")
    assert ask(tmp_path).key == servers.shown[0]


class SpeaksHttp(http.server.BaseHTTPRequestHandler):
    """Answers as the API does."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_an_agent_at_the_port_of_the_api_is_told_which_one_it_should_go_to() -> None:
    token = JoinText("a" * 43, "b" * 43, plain=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SpeaksHttp) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{api.server_address[1]}"
        try:
            with pytest.raises(NotJoined, match=r"HTTP is spoken there.*api\.grpc_port, 9090"):
                asyncio.run(join.join("n1", [target], str(token)))
        finally:
            api.shutdown()
