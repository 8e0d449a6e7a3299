"""A standby forwards requests to the leader: once, with the caller's identity, with a timeout."""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.ha import proxy
from gpu_scheduler.api.ha.forwarded_identity import IdentityVerifier, SignedRequest, sign_identity
from gpu_scheduler.api.ha.proxy import LeaderProxy
from gpu_scheduler.api.http.app import build
from gpu_scheduler.api.interfaces import ApiSettings
from gpu_scheduler.client.keepalive import IDLE_S
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.identity import LeaderLease, ServerMember
from gpu_scheduler.model.job import JobState
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import JobRow, Write
from tests.builders import a_core, a_job

SECRET = b"s" * 32
NOW_MS = 1_000
ME = "http://127.0.0.1:2"
BODY = b'{"command": ["id"]}'
JOBS = "/api/v1/jobs"
NODES = "/api/v1/nodes"
SOMEBODY = Peer(uid=12345, gid=12345, unix=True, host="unix")
SOMEBODY_ELSE = Peer(uid=12346, gid=12346, unix=True, host="unix")
ROOT = Peer(uid=0, gid=0, host="127.0.0.1")
"""The peer credentials of a server that forwards over loopback."""


class StandbyRole:
    """A standby that knows the leader."""

    def __init__(self, address: str, *, holder: str = "leader") -> None:
        self.me = ServerMember(name="standby", address=ME)
        self.term = 0
        self.is_held = False
        self.is_late = False
        self.is_leaving = False
        self.trouble = ""
        self.lead = LeaderLease(term=5, holder=holder, address=address, left_s=5)

    def database_ms(self) -> int:
        return NOW_MS

    async def changed(self) -> None:
        await asyncio.Event().wait()


class Leader:
    """Keeps the heads of incoming requests, and answers with what the test says."""

    def __init__(self, *answers: bytes) -> None:
        self.heads: list[bytes] = []
        self._answers = list(answers)
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._answers.pop(0) if self._answers else said(200, {}))
        await writer.drain()
        writer.close()

    def header(self, name: str, request: int = 0) -> bytes:
        """The value of a header of a request; empty if it had none."""
        for line in self.heads[request].split(b"\r\n")[1:]:
            found, _, value = line.partition(b": ")
            if found.lower() == name.encode():
                return value
        return b""


def said(status: int, form: Any) -> bytes:
    body = json.dumps(form).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


NOT_LEADER = said(503, {"error": "not any more", "code": "not_leader"})
BROKEN_OFF = b""


class Asking:
    """Sends requests to a standby as its listener would."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(
        self, method: str = "POST", path: str = JOBS, *, peer: Peer = SOMEBODY, **headers: bytes
    ) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": BODY, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        shown = {"host": b"127.0.0.1:2", "content-type": b"application/json", **headers}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.replace("_", "-").encode(), text) for name, text in shown.items()],
            "state": {"peer": peer},
        }
        await self._application(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])


@asynccontextmanager
async def a_standby(standing: StandbyRole, *later: Write) -> AsyncIterator[Asking]:
    """A standby whose cluster state is a minute old; `later` was committed since."""
    store = MemoryStore()
    loop = Loop(store, a_core, lambda: NOW_MS)
    loop.start()
    if later:
        store.commit(list(later))
    forwarder = LeaderProxy(
        leadership=standing,
        secret=SECRET,
        tls=lambda: pytest.fail("no TLS"),
        age_s=lambda: 60.0,
    )
    settings = ApiSettings(server_uid=os.getuid(), auth=True)
    yield Asking(build(loop, settings, proxy=forwarder).main)
    await loop.close()


@asynccontextmanager
async def listening(leader: Leader) -> AsyncIterator[Leader]:
    server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
    async with server:
        leader.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield leader


def play(
    leader: Leader,
    work: Callable[[Asking], Awaitable[Any]],
    standing: Callable[[str], StandbyRole] = StandbyRole,
    *later: Write,
) -> Any:
    """Send a request to a standby of this leader."""

    async def run() -> Any:
        async with listening(leader), a_standby(standing(leader.address), *later) as ask:
            return await work(ask)

    return asyncio.run(run())


def a_forwarded_identity(method: bytes = b"POST") -> bytes:
    """A forwarded identity signed by another server."""
    asked = SignedRequest(method=method, target=JOBS.encode(), body=BODY)
    return sign_identity(SECRET, SOMEBODY, "12345", asked, server="other", term=4, at_ms=NOW_MS)


def test_standby_forwards_identity_verified_by_kernel() -> None:
    leader = Leader()
    assert play(leader, lambda ask: ask())[0] == 200
    voucher = IdentityVerifier(SECRET, 5).read(leader.header("x-tgpu-vouched"))
    assert (voucher.uid, voucher.user) == (SOMEBODY.uid, "12345")
    assert (voucher.server, voucher.term) == ("standby", 5)


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_forwarding_server_is_not_taken_for_caller(
    method: str,
) -> None:
    leader = Leader()
    voucher = a_forwarded_identity(method.encode())
    status, told = play(leader, lambda ask: ask(method, peer=ROOT, x_tgpu_vouched=voucher))
    assert (status, told["code"], leader.heads) == (503, "not_leader", [])


def test_forwarded_request_is_marked_and_not_forwarded_again() -> None:
    leader = Leader()

    async def twice(ask: Asking) -> tuple[int, Any]:
        await ask()
        return await ask(x_tgpu_passed_on=leader.header("x-tgpu-passed-on"))

    status, told = play(leader, twice)
    assert leader.header("x-tgpu-passed-on") == b"1"
    assert (status, told["code"], len(leader.heads)) == (503, "not_leader", 1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "WAIT_FOR_LEADER_S", 0.05)
    monkeypatch.setattr(proxy, "RETRY_S", 0.06)


def response_without_leader(standing: StandbyRole) -> Any:
    """The response of a standby that cannot reach the leader."""

    async def run() -> tuple[int, Any]:
        async with a_standby(standing) as ask:
            return await asyncio.wait_for(ask(), 60)

    status, told = asyncio.run(run())
    assert (status, told["code"]) == (503, "not_leader")
    return told["error"]


@pytest.mark.usefixtures("impatient")
def test_unreachable_leader_times_out() -> None:
    told = response_without_leader(StandbyRole("http://127.0.0.1:1"))
    assert "leader 'leader' at http://127.0.0.1:1 did not take the request" in told
    assert "server.address" in told, "on another machine that is no address of the leader"


@pytest.mark.usefixtures("impatient")
def test_former_leader_is_not_asked_for_ever() -> None:
    status, told = play(Leader(*[NOT_LEADER] * 9), lambda ask: ask())
    assert (status, told["code"]) == (503, "not_leader")


@pytest.mark.usefixtures("impatient")
def test_request_is_not_forwarded_to_own_address() -> None:
    told = response_without_leader(StandbyRole(ME))
    assert f"gives the address {ME}, which is that of this server" in told
    assert "server.address" in told


class Stopping(StandbyRole):
    """A former leader that stops: `heard` is what it learns while a request waits there."""

    def __init__(self, heard: Callable[[Any], None]) -> None:
        super().__init__(ME, holder="standby")
        self._heard = heard

    async def changed(self) -> None:
        await asyncio.sleep(0)
        self._heard(self)


def test_stopping_server_does_not_forward_to_itself() -> None:
    def nothing(standing: Any) -> None:
        standing.is_leaving = True

    told = response_without_leader(Stopping(nothing))
    assert "this server is shutting down" in told


def test_stopping_server_forwards_to_next_leader() -> None:
    leader = Leader()

    def the_next_one(standing: Any) -> None:
        standing.is_leaving = True
        standing.lead = LeaderLease(term=6, holder="leader", address=leader.address, left_s=5)

    assert play(leader, lambda ask: ask(), lambda _: Stopping(the_next_one))[0] == 200
    assert IdentityVerifier(SECRET, 6).read(leader.header("x-tgpu-vouched")).term == 6


def test_standby_shows_change_made_through_it() -> None:
    leader = Leader(said(201, {}), said(200, {"nodes": ["n1"]}))

    async def change_and_read(ask: Asking) -> tuple[Any, Any]:
        await ask()
        own = await ask("GET", NODES)
        return own, await ask("GET", NODES, peer=SOMEBODY_ELSE)

    own, other = play(leader, change_and_read)
    assert own == (200, {"nodes": ["n1"]}), "the leader's word"
    assert other == (200, {"nodes": []}), "for others the cluster state is not too old"
    assert len(leader.heads) == 2


def test_leader_answers_what_standby_does_not_know_yet() -> None:
    leader = Leader(said(200, {"id": "job-1", "allocation": ["n1"]}))
    started = JobRow(job=a_job(id="job-1", user="12345"), state=JobState.RUNNING, attempt=1)
    told = play(leader, lambda ask: ask("GET", f"{JOBS}/job-1"), StandbyRole, started)
    assert told == (200, {"id": "job-1", "allocation": ["n1"]})


@pytest.mark.parametrize("answer", [NOT_LEADER, BROKEN_OFF])
def test_reads_work_without_leader(answer: bytes) -> None:
    started = JobRow(job=a_job(id="job-1", user="12345"), state=JobState.RUNNING, attempt=1)

    def nobody(address: str) -> StandbyRole:
        return StandbyRole(address, holder="" if answer is NOT_LEADER else "leader")

    leader = Leader(answer)
    status, told = play(leader, lambda ask: ask("GET", f"{JOBS}/job-1"), nobody, started)
    assert (status, told["state"], told["allocation"]) == (200, "running", [])


def test_request_rejected_by_former_leader_is_resent() -> None:
    leader = Leader(NOT_LEADER)
    assert play(leader, lambda ask: ask())[0] == 200
    assert leader.header("x-tgpu-vouched", 0) != leader.header("x-tgpu-vouched", 1)


def test_forwarded_identity_is_signed_for_term_of_target_leader() -> None:
    class Changing(StandbyRole):
        """Another server leads as soon as the role was read once."""

        lead = property(lambda self: self.leads.pop(0), lambda self, first: self.begin(first))

        def begin(self, first: LeaderLease) -> None:
            later = LeaderLease(term=6, holder="other", address="http://127.0.0.1:1", left_s=5)
            self.leads = [first, *[later] * 9]

    leader = Leader()
    assert play(leader, lambda ask: ask(), Changing)[0] == 200
    assert IdentityVerifier(SECRET, 5).read(leader.header("x-tgpu-vouched")).term == 5


def test_change_is_resent_after_broken_connection_only_with_idempotency_key() -> None:
    for path, key, status, times in (
        (JOBS, {"idempotency_key": b"k"}, 200, 2),
        (f"{JOBS}/job-1/retry", {"idempotency_key": b"k"}, 200, 2),
        (JOBS, {}, 503, 1),
        ("/api/v1/tokens", {"idempotency_key": b"k"}, 503, 1),
    ):
        leader = Leader(BROKEN_OFF)
        told = play(leader, lambda ask, path=path, key=key: ask("POST", path, **key))
        assert (told[0], len(leader.heads)) == (status, times), path


def test_tcp_keepalive_detects_vanished_leader() -> None:
    async def run() -> None:
        async with listening(Leader()) as leader:
            standing: Any = StandbyRole(leader.address)
            passes = LeaderProxy(leadership=standing, secret=SECRET, tls=ssl.create_default_context)
            reader, writer = await passes._connect(standing.lead)
            connection = writer.get_extra_info("socket")
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == IDLE_S
            writer.write(b"\r\n\r\n")
            assert await reader.read()
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())
