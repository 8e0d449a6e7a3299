"""Event streams: no gap, no repetition, only visible events."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect, unix_connect

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.interfaces import ApiSettings, Bounds
from gpu_scheduler.api.routes.events import EventFilter
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.store.rows import EventRow
from tests.unit.api.lab import ApiLab


class ByHeader:
    """Trusts a header, as a stand-in for tokens."""

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        name = headers.get(b"x-test-user", b"").decode()
        return Caller(user=name, uid=5000, gid=5000) if name else None


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()], server_uid=0) as lab:
        yield lab


def stream(lab: ApiLab, query: str = "", user: str = "") -> ClientConnection:
    return connect(
        f"ws://127.0.0.1:{lab.port}/api/v1/events{query}",
        additional_headers={"X-Test-User": user} if user else {},
    )


def take(socket: ClientConnection, kinds: int) -> list[dict[str, Any]]:
    return [json.loads(socket.recv(timeout=60)) for _ in range(kinds)]


def test_stream_replays_old_events_then_new_ones_without_gap(lab: ApiLab) -> None:
    first = lab.submit(hold=True)
    with stream(lab, "?after=0") as socket:
        second = lab.submit(hold=True)
        seen: list[dict[str, Any]] = []
        while not any(event["job_id"] == second for event in seen):
            seen += take(socket, 1)
    numbers = [event["sequence"] for event in seen]
    assert numbers == list(range(1, len(numbers) + 1))
    assert any(event["job_id"] == first and event["kind"] == "submitted" for event in seen)
    assert set(seen[0]) == {"sequence", "at", "kind", "job_id", "task", "data", "user"}


def test_stream_resumes_after_any_event_number(lab: ApiLab) -> None:
    for _ in range(3):
        lab.submit(hold=True)
    page = lab.get("/events?after=0&limit=1000").json
    middle = page["events"][1]["sequence"]
    with stream(lab, f"?after={middle}") as socket:
        assert take(socket, 1)[0] == page["events"][2]


def test_stream_without_number_starts_now(lab: ApiLab) -> None:
    lab.submit(hold=True)
    with unix_connect(str(lab.directory / "server.sock"), "ws://localhost/api/v1/events") as socket:
        second = lab.submit(hold=True)
        assert take(socket, 1)[0]["job_id"] == second


def test_users_get_events_of_their_own_jobs_only(lab: ApiLab) -> None:
    lab.submit(name="not yours", hold=True)
    job = {"command": ["a"], "hold": True}
    mine = lab.post("/jobs", job, headers={"X-Test-User": "ada"}).json["job_id"]
    with stream(lab, "?after=0", "ada") as socket:
        seen = take(socket, 1)
        while seen[-1]["job_id"] is None:
            seen += take(socket, 1)
        assert {event["job_id"] for event in seen} <= {None, mine}
    page = lab.get("/events", headers={"X-Test-User": "ada"}).json
    assert {event["job_id"] for event in page["events"]} <= {None, mine}
    assert page["last"] == lab.store.last_event()


def test_event_visibility_needs_no_store_query(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [EventRow(at_ms=0, kind="running", job_id=f"job-{n}", user="bob") for n in range(3_000)]
    lab.store.commit(list(rows))
    lab.store.commit([EventRow(at_ms=0, kind="running", job_id="job-9000", user="ada")])
    pages: list[int] = []
    read = lab.store.events

    def events(after: int, limit: int) -> list[tuple[int, EventRow]]:
        pages.append(limit)
        return read(after, limit)

    monkeypatch.setattr(lab.store, "job", None)
    monkeypatch.setattr(lab.store, "events", events)
    page = lab.get("/events?limit=1", headers={"X-Test-User": "ada"}).json["events"]
    while page[-1]["job_id"] is None:
        last = page[-1]["sequence"]
        page = lab.get(f"/events?limit=1&after={last}", headers={"X-Test-User": "ada"}).json[
            "events"
        ]
    assert page[0]["job_id"] == "job-9000"
    assert min(pages) >= 1_000


def test_history_pages_are_contiguous(lab: ApiLab) -> None:
    for _ in range(5):
        lab.submit(hold=True)
    whole = lab.get("/events?limit=1000").json["events"]
    parts: list[Any] = []
    last = 0
    while page := lab.get(f"/events?after={last}&limit=2").json["events"]:
        parts += page
        last = page[-1]["sequence"]
    assert parts == whole


def test_newest_events_of_a_gpu_come_first(lab: ApiLab) -> None:
    rows = [
        EventRow(at_ms=number, kind=kind, data=(("node", "n0"), ("gpu", gpu), ("xid", number)))
        for number, (kind, gpu) in enumerate(
            [("gpu_unhealthy", 1), ("gpu_unhealthy", 2), ("gpu_cool", 1), ("gpu_unhealthy", 1)]
        )
    ]
    lab.store.commit(rows)
    query = "newest=true&node=n0&gpu=1&kind=gpu_unhealthy,gpu_healthy"
    page = lab.get(f"/events?{query}").json
    assert [event["data"]["xid"] for event in page["events"]] == [3, 0]
    assert lab.get(f"/events?{query}&limit=1").json["events"] == page["events"][:1]


def test_stream_that_sends_data_is_closed(lab: ApiLab) -> None:
    with stream(lab) as socket:
        socket.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003


def test_slow_reader_is_disconnected_with_resume_position() -> None:
    bounds = Bounds(send_seconds=0.2)
    with ApiLab(bounds=bounds, nodes=0) as lab:
        data = (("filler", "x" * 10_000),)
        rows = [EventRow(at_ms=0, kind="noise", data=data) for _ in range(1_500)]
        lab.store.commit(list(rows))
        # The client reads nothing until the server has disconnected it.
        with connect(
            f"ws://127.0.0.1:{lab.port}/api/v1/events?after=0", max_queue=1, compression=None
        ) as socket:
            until = time.monotonic() + 60
            while not lab.applications.main.event_sockets.cut_off and time.monotonic() < until:
                time.sleep(0.02)
            seen = []
            with contextlib.suppress(ConnectionClosed):
                while True:
                    seen.append(json.loads(socket.recv(timeout=60))["sequence"])
            closed = socket.protocol.close_rcvd
            assert closed is not None
            assert closed.code == 1013
            assert closed.reason == f"resume with after={seen[-1]}"


def test_streams_per_user_are_limited() -> None:
    with ApiLab(bounds=Bounds(sockets_per_user=1)) as lab, stream(lab):
        with pytest.raises(InvalidStatus) as refused:
            stream(lab)
        assert refused.value.response.status_code == 429


def test_events_that_need_no_look_up_cost_streams_no_thread(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(asyncio, "to_thread", lambda *_: looked_up.append("a job"))
    context = Context(lab.loop, ApiSettings(server_uid=0))
    sees = EventFilter(context, Caller(user="ada", uid=5000, gid=5000))

    async def asked() -> list[bool]:
        users = ("ada", "bob", "ada")
        events = [EventRow(at_ms=0, kind="started", job_id="job-1", user=user) for user in users]
        return [await sees.asked(event) for event in events]

    assert asyncio.run(asked()) == [True, False, True]
    assert looked_up == []
