"""The stream of GPUs: all of them first, then what changes, the same for every client."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.errors import BadToken
from gpu_scheduler.api.interfaces import Bounds
from gpu_scheduler.api.routes import gpu_stream
from gpu_scheduler.model.identity import Caller
from tests.unit.api.lab import ApiLab
from tests.unit.api.test_events import ByHeader


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()], server_uid=0) as lab:
        yield lab


def stream(lab: ApiLab, user: str = "ada", **headers: str) -> ClientConnection:
    address = f"ws://127.0.0.1:{lab.port}/api/v1/gpus/stream"
    return connect(address, additional_headers={"X-Test-User": user, **headers})


def revoked(self: object, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
    if b"x-test-user" in headers:
        raise BadToken("this token is revoked", code="token_revoked")
    return None


def received(socket: ClientConnection) -> dict[str, Any]:
    message = json.loads(socket.recv(timeout=60))
    assert isinstance(message, dict)
    return message


def test_every_client_gets_all_gpus_and_then_only_what_changes(lab: ApiLab) -> None:
    with stream(lab) as one, stream(lab, "bob") as other:
        first = received(one)
        assert first["whole"] is True
        assert first == received(other)
        listed = lab.get("/gpus").json["gpus"]
        assert [(gpu["node"], gpu["index"]) for gpu in first["gpus"]] == [
            (gpu["node"], gpu["index"]) for gpu in listed
        ]
        assert "processes" not in first["gpus"][0]
        job = lab.submit(gpu_count=1)
        change = received(one)
        assert change == received(other)
    assert "whole" not in change
    (gpu,) = change["gpus"]
    assert set(gpu) == {
        *("node", "index", "state", "allocated_share", "allocated_memory_mb", "jobs", "users")
    }
    assert gpu["jobs"] == [job]


def test_late_client_gets_the_present_state(lab: ApiLab) -> None:
    with stream(lab) as one:
        received(one)
        job = lab.submit(gpu_count=1)
        received(one)
        with stream(lab) as late:
            whole = received(late)
    assert whole["whole"] is True
    assert [gpu["jobs"] for gpu in whole["gpus"] if gpu["jobs"]] == [[job]]
    with stream(lab) as again:
        assert received(again) == whole


def test_stream_ends_when_the_caller_is_no_longer_known(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_stream, "RECHECK_S", 0.0)
    with stream(lab) as socket:
        received(socket)
        monkeypatch.setattr(ByHeader, "caller", revoked)
        lab.submit(gpu_count=1)
        with pytest.raises(ConnectionClosed) as closed:
            received(socket)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "token_revoked")


def test_stream_that_sends_data_is_closed(lab: ApiLab) -> None:
    with stream(lab) as socket:
        received(socket)
        socket.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            received(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003


def test_page_of_another_site_gets_no_stream(lab: ApiLab) -> None:
    with pytest.raises(InvalidStatus) as refused:
        stream(lab, Origin="http://evil.example")
    assert refused.value.response.status_code == 403


def test_streams_per_user_are_limited() -> None:
    bounds = Bounds(sockets_per_user=1)
    with (
        ApiLab(authenticators=[ByHeader()], server_uid=0, bounds=bounds) as lab,
        stream(lab) as socket,
    ):
        received(socket)
        with pytest.raises(InvalidStatus) as refused:
            stream(lab)
        assert refused.value.response.status_code == 429


def test_failed_comparison_ends_every_stream_and_the_next_client_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_stream, "PERIOD_S", 0.0)
    is_broken = False

    def forms(*_: object) -> tuple[()]:
        if is_broken:
            raise RuntimeError("broken")
        return ()

    monkeypatch.setattr(gpu_stream, "gpu_forms", forms)

    async def main() -> None:
        nonlocal is_broken
        changes = gpu_stream.GpuChanges(cast(Context, None))
        first = changes.messages()
        await anext(first)
        is_broken = True
        while changes._task is not None:  # noqa: ASYNC110
            # The client is still sending, so it does not wait for the next step.
            await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await anext(first)
        with pytest.raises(RuntimeError, match="broken"):
            await anext(changes.messages())
        assert changes._clients == 0
        is_broken = False
        again = changes.messages()
        assert json.loads(await anext(again))["whole"] is True
        await again.aclose()
        assert changes._task is None

    asyncio.run(main())
