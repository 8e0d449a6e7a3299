"""A server answers as leader only while it holds the lease."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from gpu_scheduler.api.ha.leadership_gate import FORWARDED_HEADER, LeaderGate, SwitchableApp
from gpu_scheduler.model.identity import LeaderLease, ServerMember


class FakeLeadership:
    """Leadership that a test can take away."""

    def __init__(self) -> None:
        self.me = ServerMember(name="a", address="http://a:1")
        self.term = 3
        self.is_held = True
        self.is_late = False
        self.is_leaving = False
        self.lead = LeaderLease()
        self.trouble = ""

    def database_ms(self) -> int:
        return 0

    async def changed(self) -> None:
        """The role does not change by itself."""


Headers = Sequence[tuple[bytes, bytes]]


class SentMessages:
    """What was sent to the client."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def code(self) -> str:
        return str(json.loads(self.sent[1]["body"])["code"])


async def receive() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


def asked(
    gate: Any, method: str = "GET", path: str = "/api/v1/jobs", headers: Headers = ()
) -> SentMessages:
    line = SentMessages()
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(gate(scope, receive, line.send))
    return line


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def test_leader_response_carries_role_and_term() -> None:
    line = asked(LeaderGate(answering, FakeLeadership(), 3))
    assert line.status == 200
    assert dict(line.sent[0]["headers"]) == {b"x-tgpu-role": b"leader", b"x-tgpu-term": b"3"}


def test_health_of_uncertain_leader_does_not_claim_leadership() -> None:
    standing = FakeLeadership()
    standing.is_held = False
    line = asked(LeaderGate(answering, standing, 3), path="/api/v1/health")
    assert line.status == 200
    assert dict(line.sent[0]["headers"])[b"x-tgpu-role"] == b"unsure"


def test_uncertain_leader_does_not_start_request() -> None:
    standing = FakeLeadership()
    begun = []

    async def working(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope)
        await answering(scope, receive, send)

    gate = LeaderGate(working, standing, 3)
    standing.is_held = False
    line = asked(gate, "POST")
    assert (line.status, line.code, begun) == (503, "not_leader", [])
    standing.is_held, standing.term = True, 4
    assert asked(gate).status == 503, "an answer of term 3 is none of term 4"


def test_leader_uncertain_due_to_database_says_so() -> None:
    standing = FakeLeadership()
    standing.is_held, standing.trouble = False, "the database does not say who leads: refused"
    line = asked(LeaderGate(answering, standing, 3), "POST")
    assert (line.status, line.code) == (503, "unavailable"), "who is alone is not asked again"
    assert json.loads(line.sent[1]["body"])["error"].startswith(standing.trouble)
    passed = asked(LeaderGate(answering, standing, 3), "POST", headers=[(FORWARDED_HEADER, b"1")])
    assert passed.code == "not_leader", "a standby may reach the database, and waits"
    standing.term = 4
    assert asked(LeaderGate(answering, standing, 3)).code == "not_leader", "that is of another term"


def test_response_computed_before_leadership_loss_is_withheld() -> None:
    standing = FakeLeadership()

    async def frozen_meanwhile(scope: Any, receive: Any, send: Any) -> None:
        standing.is_held = False
        await answering(scope, receive, send)

    read = asked(LeaderGate(frozen_meanwhile, standing, 3))
    assert (read.status, read.code) == (503, "not_leader")
    standing.is_held = True
    change = asked(LeaderGate(frozen_meanwhile, standing, 3), "POST")
    assert (change.status, change.code) == (503, "outcome_unknown"), "it may have been done"


def test_stream_ends_with_leadership() -> None:
    standing = FakeLeadership()

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        standing.is_held = False
        await send({"type": "http.response.body", "body": b"two", "more_body": True})

    line = asked(LeaderGate(streaming, standing, 3))
    assert [message.get("body") for message in line.sent] == [None, b"one"]


def test_health_is_answered_by_every_server() -> None:
    standing = FakeLeadership()
    standing.is_held = False
    assert asked(LeaderGate(answering, standing, 3), path="/api/v1/health").status == 200


def test_starting_server_says_so() -> None:
    assert asked(SwitchableApp()).status == 503


def test_handover_waits_for_responses_to_changes() -> None:
    async def play() -> list[str]:
        told = []
        go = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            await answering(scope, receive, send)
            told.append("answered")

        gate = LeaderGate(slow, FakeLeadership(), 3)
        line = SentMessages()
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        request = asyncio.create_task(gate(scope, receive, line.send))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(gate.finish_changes(10))
        await asyncio.sleep(0)
        go.set()
        await waiting
        told.append("finished")
        await request
        return told

    assert asyncio.run(play()) == ["answered", "finished"]
