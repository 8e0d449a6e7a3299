"""The client over a real socket, and its error messages."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import gpu_scheduler
from gpu_scheduler import AsyncClient, Client, JobFailed, NoServer, TimedOut
from gpu_scheduler.client import connection, requests
from gpu_scheduler.client.address import Address, candidates
from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.requests import MOMENTS
from gpu_scheduler.client.waiting import EventStream
from gpu_scheduler.client.websocket import Frames
from gpu_scheduler.model.errors import (
    ClusterError,
    Forbidden,
    InvalidInput,
    InvalidRequest,
    OutcomeUnknown,
    QuotaTooSmall,
    StoreUnavailable,
    UnknownThing,
    WrongState,
)
from tests.unit.client.fake_server import FakeServer, a_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with a_server() as running:
        yield running


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.directory) as connected:
        yield connected


def test_job_is_submitted_with_environment_of_caller(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("MY_SECRET", "x")
    job = client.submit(["python", "train.py"], gpus=2, name="train", tenant="vision", hold=None)
    assert job.id == "job-1"
    body = server.bodies[0]
    assert body["command"] == ["python", "train.py"]
    assert (body["gpu_count"], body["tenant_id"], body["name"]) == (2, "vision", "train")
    assert body["working_directory"] == str(Path.cwd())
    assert body["captured_environment"]["MY_SECRET"] == "x"
    assert "CUDA_VISIBLE_DEVICES" not in body["captured_environment"]
    assert "hold" not in body
    assert body["umask"] == os.umask(body["umask"])


def test_string_command_runs_in_shell(server: FakeServer, client: Client) -> None:
    client.submit("echo $HOME", capture=False)
    assert server.bodies == [{"command": ["/bin/sh", "-c", "echo $HOME"]}]


WRONG_COMMANDS: list[tuple[Any, str]] = [
    (["echo", None], r"command\[1\] is None, of type NoneType; write a string"),
    (["echo", "x", 1.5], r"command\[2\] is 1\.5, of type float"),
    (["echo", 3], r"command\[1\] is 3, of type int"),
    ("", "command is empty"),
    (" \n", "command is empty"),
    (["", "x"], r"command\[0\], the program, is an empty string"),
    (b"echo x", "write a list of strings, or one string"),
    (5, "write a list of strings, or one string"),
]


@pytest.mark.parametrize(("command", "message"), WRONG_COMMANDS)
def test_non_text_command_is_rejected(
    server: FakeServer, client: Client, command: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.submit(command)
    with pytest.raises(InvalidRequest, match=message):
        client.submit_many([{"command": command}])

    async def submit() -> None:
        async with AsyncClient(server.directory) as waiting:
            await waiting.submit(command)

    with pytest.raises(InvalidRequest, match=message):
        asyncio.run(submit())
    assert server.bodies == []


def test_path_is_accepted_in_command(server: FakeServer, client: Client) -> None:
    client.submit([Path("/usr/bin/env"), "true"])
    assert server.bodies[0]["command"] == ["/usr/bin/env", "true"]
    client.submit_many([{"command": "echo $HOME"}])
    assert server.bodies[1]["command"] == ["/bin/sh", "-c", "echo $HOME"]


def test_datetime_is_accepted_as_time(server: FakeServer, client: Client) -> None:
    aware = datetime(2030, 1, 1, 18, tzinfo=timezone(timedelta(hours=2)))
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - by the own clock
    client.submit(["true"], deadline=aware, begin_at=naive)
    client.submit_many([{"command": ["true"], "deadline": naive}])
    changed = client.update(1, deadline=aware, begin_at=None)

    async def submit() -> None:
        async with AsyncClient(server.directory) as waiting:
            await waiting.submit(["true"], begin_at=aware)
            await waiting.update(1, begin_at=naive)

    asyncio.run(submit())
    sixteen = datetime(2030, 1, 1, 16, tzinfo=UTC).timestamp()
    midnight = time.mktime((2030, 1, 1, 0, 0, 0, 0, 0, -1))
    said = [{name: body[name] for name in MOMENTS if name in body} for body in server.bodies]
    assert said == [
        {"deadline": sixteen, "begin_at": midnight},
        {"deadline": midnight},
        {"begin_at": sixteen},
    ]
    assert (changed["deadline"], changed["begin_at"]) == (sixteen, None)
    assert server.jobs["job-1"]["begin_at"] == midnight


RECURSIVE: dict[str, Any] = {}
RECURSIVE["again"] = RECURSIVE
UNSAYABLE: list[tuple[dict[str, Any], str]] = [
    (
        {"name": datetime(2030, 1, 1, tzinfo=UTC)},
        r"^name is datetime.datetime\(2030.*of type datet",
    ),
    (
        {"deadline": date(2030, 1, 1)},
        r"^deadline is datetime.date\(2030, 1, 1\), of type date, which",
    ),
    ({"deadline": datetime(1, 1, 1)}, r"^deadline is "),  # noqa: DTZ001
    ({"environment": {"A": Path("/x")}}, r"^environment.A is PosixPath\('/x'\), of type PosixPath"),
    (
        {"nodes": {"n0"}},
        r"^nodes is \{'n0'\}, of type set, which JSON cannot represent; write a string",
    ),
    ({"node_labels": {(1, 2): "x"}}, r"^a name in node_labels "),
    ({"args": ["a", b"b"]}, r"^args\[1\] is b'b', of type bytes"),
    ({"gpus": float("nan")}, r"^gpu_count is nan; write a number"),
    ({"name": "bad\udcff"}, r"^name: 'bad\\udcff' contains bytes that are not UTF-8"),
    ({"environment": {"A\udcff": "x"}}, r"^a name in environment: 'A\\udcff'"),
    ({"node_labels": RECURSIVE}, "nested too deeply"),
]


@pytest.mark.parametrize(("fields", "message"), UNSAYABLE)
def test_value_that_json_cannot_express_is_rejected_by_field(
    server: FakeServer, client: Client, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.submit(["true"], capture=False, **fields)

    async def submit() -> None:
        async with AsyncClient(server.directory) as waiting:
            await waiting.submit(["true"], capture=False, **fields)

    with pytest.raises(InvalidRequest, match=message):
        asyncio.run(submit())
    assert server.bodies == []


def test_times_may_be_written_as_on_the_command_line(server: FakeServer, client: Client) -> None:
    job = client.submit(["x"], time="2h", estimate="90 min")
    body = server.bodies[0]
    assert (body["max_runtime_seconds"], body["estimate_seconds"]) == (7200, 5400)
    client.submit(["x"], time=30)
    assert server.bodies[1]["max_runtime_seconds"] == 30
    assert requests.changes({"time": "1d"}) == {"max_runtime_seconds": 86_400}
    assert job.id == "job-1"
    with pytest.raises(InvalidRequest, match="time is 'soon'; write a time such as 90m"):
        client.submit(["x"], time="soon")


def test_unknown_keyword_is_answered_with_the_nearest_one(
    server: FakeServer, client: Client
) -> None:
    with pytest.raises(InvalidRequest, match="a job has no field 'gpu'; did you mean 'gpus'"):
        client.submit(["x"], gpu=2)  # type: ignore[call-arg]
    for tried, field in (("env", "environment"), ("cwd", "working_directory")):
        with pytest.raises(InvalidRequest, match=f"no field '{tried}'; did you mean '{field}'"):
            requests.submission(["true"], {tried: "x"})
    with pytest.raises(InvalidRequest, match=r"gpus is 'two'; write a number such as 2 or 0\.5"):
        requests.submission(["true"], {"gpus": "two"})
    with pytest.raises(InvalidRequest, match="gpus is -1; write a number"):
        requests.submission(["true"], {"gpus": -1})
    with pytest.raises(InvalidRequest, match=r"jobs\[1\] is \['true'\]; write a dictionary"):
        client.submit_many([{"command": ["true"]}, ["true"]])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="no field 'prority'; did you mean 'priority'"):
        client.submit_many([{"command": ["x"], "prority": 2}])
    assert server.bodies == []


def test_handle_explains_and_retries(server: FakeServer, client: Client) -> None:
    job = client.submit(["x"])
    assert job.explain() == client.explain(job.id)
    server.end(job.id, exit_code=1)
    assert job.retry() == {**client.retry(job.id), **job.retry()}

    async def ask() -> Any:
        asynchronous = AsyncClient(server.directory)
        handle = asynchronous.job(job.id)
        return await handle.explain(), await handle.retry()

    explained, retried = asyncio.run(ask())
    assert explained["job_id"] == job.id
    assert retried == job.retry()


def test_many_jobs_are_one_request(server: FakeServer, client: Client) -> None:
    jobs = client.submit_many({"command": ["true"], "gpus": n} for n in range(3))
    assert [job.id for job in jobs] == ["job-1", "job-2", "job-3"]
    assert server.requests == ["POST /api/v1/jobs/bulk"]
    assert client.submit_many([]) == []


def test_job_result_is_awaited(server: FakeServer, client: Client) -> None:
    job = client.submit(["true"])
    threading.Timer(0.05, server.end, [job.id]).start()
    assert job.result(timeout=60) == 0
    assert job.state() == "completed"


def test_wait_works_without_event_stream(server: FakeServer, client: Client) -> None:
    server.has_events = False
    job = client.submit(["true"])
    threading.Timer(0.05, server.end, [job.id]).start()
    assert job.wait(timeout=60)["state"] == "completed"


def test_wait_times_out(client: Client) -> None:
    job = client.submit(["sleep", "9"])
    with pytest.raises(TimedOut, match="job-1 has not ended"):
        job.wait(timeout=0.05)


def test_failed_job_raises_with_code_and_reason(server: FakeServer, client: Client) -> None:
    job = client.submit(["false"])
    server.end(job.id, 3, reason="exit code 3")
    with pytest.raises(JobFailed, match="job-1 failed with exit code 3: exit code 3") as caught:
        job.result()
    assert caught.value.job["exit_code"] == 3
    server.end(job.id, 0, signal=9)
    with pytest.raises(JobFailed, match="by signal 9"):
        job.result()


def test_logs_are_followed_until_end(server: FakeServer, client: Client) -> None:
    job = client.submit(["x"])
    server.write(job.id, "grüße\n".encode()[:3])
    pieces = job.logs(follow=True)
    first = next(pieces)
    server.write(job.id, "grüße\n".encode()[3:])
    server.end(job.id)
    assert first + "".join(pieces) == "grüße\n"
    assert "".join(job.logs()) == "grüße\n"


def test_events_arrive_in_order_and_can_be_resumed(server: FakeServer, client: Client) -> None:
    job = client.submit(["x"])
    server.change(job.id, name="a")
    server.change(job.id, name="b")
    events = client.events(after=0)
    assert [next(events)["sequence"], next(events)["sequence"]] == [1, 2]
    server.change(job.id, name="c")
    assert next(events)["sequence"] == 3
    events.close()
    server.has_events = False
    with pytest.raises(Unreadable):
        next(client.events())


def test_jobs_are_listed_page_by_page(server: FakeServer, client: Client) -> None:
    client.submit_many({"command": ["true"]} for _ in range(5))
    assert [job["number"] for job in client.list(limit=2)] == [1, 2, 3, 4, 5]
    assert list(client.list(state=["running", "failed"])) == []


def test_job_commands_reach_server(server: FakeServer, client: Client) -> None:
    job = client.submit(["x"])
    assert client.hold(1)["hold"] is True
    assert client.release("1")["hold"] is False
    assert client.update("job-1", priority=900)["priority"] == 900
    assert client.explain(1)["code"] == "resources"
    assert client.attempts(1) == {"attempts": []}
    assert client.tasks(1) == {"tasks": []}
    assert client.job(1).info()["id"] == "job-1"
    assert job.cancel()["status"] == "cancelled"
    assert client.retry(1)["state"] == "pending"
    assert client.resubmit(1).id == client.job(1).resubmit().id == "job-99"
    assert client.correct_usage(1, 1, 60, "wrong clock")["run_seconds"] == 60
    assert client.cancel(1, tasks="1-3")["status"] == "cancelled"
    assert server.requests[-1] == "DELETE /api/v1/jobs/job-1?tasks=1-3"
    assert repr(job) == "JobHandle('job-1')"


def test_cluster_can_be_queried(client: Client) -> None:
    assert client.tenants()[0]["id"] == "default"
    assert client.gpus()[1]["index"] == 1
    assert client.nodes()[0]["id"] == "box"
    assert client.status()["total_gpus"] == 2
    assert client.health()["status"] == "healthy"
    assert client.usage()["usage"][0]["gpu_hours"] == 1.5
    assert "queue_size" in client.text("/metrics")


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (404, "not_found", UnknownThing, 4),
        (403, "quota_exceeded", QuotaTooSmall, 5),
        (403, "forbidden", Forbidden, 5),
        (401, "unauthenticated", Forbidden, 5),
        (409, "wrong_state", WrongState, 2),
        (400, "invalid_input", InvalidInput, 2),
        (503, "brand_new", ClusterError, 1),
    ],
)
def test_errors_become_exceptions_of_model(
    server: FakeServer,
    client: Client,
    status: int,
    code: str,
    kind: type[Exception],
    exit_code: int,
) -> None:
    server.refusal = (status, {"error": "no: because", "code": code, "details": {"index": 3}})
    with pytest.raises(kind, match="no: because") as caught:
        client.submit(["x"])
    assert caught.value.exit_code == exit_code
    assert caught.value.code == code
    assert caught.value.details == {"index": 3}


BETWEEN_LEADERS = [
    {"error": "this server is not sure that it still leads", "code": "not_leader"},
    {"error": "this server lost the lead while it worked", "code": "outcome_unknown"},
]


@pytest.mark.parametrize("refusal", BETWEEN_LEADERS, ids=lambda refusal: refusal["code"])
def test_single_server_without_leader_is_retried(
    server: FakeServer, client: Client, refusal: dict[str, str]
) -> None:
    server.refusal = (503, refusal)
    server.refused_until = 2
    assert client.submit(["x"]).id == "job-1"
    assert server.requests == ["POST /api/v1/jobs"] * 3
    assert len(set(server.keys)) == 1, "all of them are one and the same request"


def test_request_with_unknown_outcome_is_resent_only_with_key(
    server: FakeServer, client: Client
) -> None:
    server.refusal = (503, BETWEEN_LEADERS[1])
    with pytest.raises(OutcomeUnknown, match="lost the lead"):
        client.call("POST", "/api/v1/jobs", {"command": ["x"]}, once=False)
    assert server.requests == ["POST /api/v1/jobs"]


def test_single_server_with_full_disk_is_not_retried(server: FakeServer, client: Client) -> None:
    server.refusal = (503, {"error": "the disk is full", "code": "unavailable"})
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        client.submit(["x"])
    assert server.requests == ["POST /api/v1/jobs"]


def test_non_json_answer_is_error(server: FakeServer, client: Client) -> None:
    server.refusal = (200, b"<html>")  # type: ignore[assignment]
    with pytest.raises(Unreadable, match="not JSON"):
        client.status()
    server.refusal = (502, b"<html>")  # type: ignore[assignment]
    with pytest.raises(ClusterError, match="status 502"):
        client.status()


def test_missing_remote_server_error_does_not_suggest_local_start() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(NoServer, match="check that 'tgpu server' runs there") as raised:
            Client(address).status()
    assert "tgpu up" not in str(raised.value)


def test_missing_server_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match=r"no scheduler answers at unix:.*start one with 'tgpu up'"):
        Client(str(tmp_path)).status()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "server.sock"))
    dead.close()
    with pytest.raises(NoServer, match="Connection refused"):
        Client(str(tmp_path)).status()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_socket_of_another_user_is_not_trusted(server: FakeServer, client: Client) -> None:
    os.chown(server.path, 12345, 12345)
    with pytest.raises(NoServer, match="uid 12345, neither root nor you"):
        client.submit(["x"])
    assert server.requests == []


def test_closed_keep_alive_connection_is_reopened(server: FakeServer, client: Client) -> None:
    client.status()
    assert client.connection._socket is not None
    client.connection._socket.shutdown(socket.SHUT_RDWR)
    assert client.status()["total_gpus"] == 2
    client.connection._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(Unreadable):
        client.call("POST", "/api/v1/jobs/job-1/hold", once=False)


def test_importing_package_loads_no_client() -> None:
    script = "import sys, gpu_scheduler; print(*[m for m in sys.modules if 'client' in m])"
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == ""
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        _ = gpu_scheduler.Cleint


def test_broken_connection_is_reported(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    path = tempfile.mkdtemp(prefix="tgpu-")
    listener.bind(f"{path}/server.sock")
    listener.listen()

    def answer_half() -> None:
        taken, _ = listener.accept()
        taken.recv(65_536)
        taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        taken.close()

    thread = threading.Thread(target=answer_half)
    thread.start()
    try:
        with pytest.raises(Unreadable, match="was lost"):
            Client(path).status()
    finally:
        thread.join()
        listener.close()
        shutil.rmtree(path)


def test_unresponsive_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.client.connection.REPLY_TIMEOUT_S", 0.05)
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, pytest.raises(TimedOut, match="took too long"):
        Client(f"http://127.0.0.1:{listener.getsockname()[1]}").status()


def test_close_after_ping_is_lost_connection() -> None:
    ours, theirs = socket.socketpair()
    stream = EventStream(ours, Frames(b""))
    theirs.sendall(b"\x89\x00")
    theirs.close()
    with pytest.raises(Unreadable, match="was lost"):
        stream.next(5)
    ours.close()


def test_server_without_tls_is_skipped_among_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []

    def open_one(address: Address) -> socket.socket:
        opened.append(str(address))
        if len(opened) == 1:
            raise NoServer(f"the TLS handshake with {address} timed out")
        return socket.socket()

    monkeypatch.setattr(connection, "_open", open_one)
    servers = candidates("https://a:1,https://b:2")
    address, held = connection.connect(servers)
    held.close()
    assert str(address) == opened[1] == "https://b:2"
    opened.clear()
    with pytest.raises(NoServer, match=r"^the TLS handshake with https://a:1 timed out"):
        connection.connect(servers[:1])


def test_hanging_tls_handshake_has_its_own_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        (address,) = candidates(f"https://127.0.0.1:{frozen.getsockname()[1]}")
        with pytest.raises(
            NoServer, match=r"TLS handshake with the server at .* failed: .*timed out"
        ):
            connection.connect([address])
