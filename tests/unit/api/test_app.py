"""The HTTP application: host and origin checks, authentication, authorisation, error format."""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.model.identity import Caller, Role
from tests.unit.api.lab import ApiLab


class ByHeader:
    """Trusts a header, as a stand-in for tokens."""

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        name = headers.get(b"x-test-user", b"").decode()
        if not name:
            return None
        role = Role.ADMIN if name == "boss" else Role.USER
        return Caller(user=name, uid=5000 + len(name), gid=5000, role=role)


class Nobody:
    """Authenticates no caller."""

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        return None


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()], server_uid=0) as lab:
        yield lab


def as_user(name: str) -> dict[str, str]:
    return {"X-Test-User": name}


# --- host and origin


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8080", 403),
        ("", 403),
    ],
)
def test_server_accepts_only_its_own_host_names(lab: ApiLab, host: str, status: int) -> None:
    reply = lab.get("/cluster/status", headers={"Host": host}, unix=False)
    assert reply.status == status
    if status == 403:
        assert reply.code == "forbidden"


def test_host_name_is_not_checked_on_unix_socket(lab: ApiLab) -> None:
    assert lab.get("/cluster/status", headers={"Host": "anything"}).status == 200


@pytest.mark.parametrize("unix", [True, False])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "file://", "localhost"]
)
def test_cross_origin_request_is_rejected(lab: ApiLab, origin: str, unix: bool) -> None:
    headers = {"Origin": origin, "Host": f"localhost:{lab.port}"}
    reply = lab.post("/jobs", {"command": ["a"]}, headers=headers, unix=unix)
    assert (reply.status, reply.code) == (403, "forbidden")


def test_same_origin_request_is_accepted(lab: ApiLab) -> None:
    here = f"127.0.0.1:{lab.port}"
    headers = {"Origin": f"http://{here}", "Host": here}
    assert lab.get("/jobs", headers=headers, unix=False).status == 200


def test_websocket_origin_is_checked(lab: ApiLab) -> None:
    address = f"ws://127.0.0.1:{lab.port}/api/v1/events"
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus) as refused:
            connect(address, additional_headers=headers)
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as missing:
        connect(f"ws://127.0.0.1:{lab.port}/api/v1/jobs")
    assert missing.value.response.status_code == 404
    for path in ("events", "jobs/job-1/terminal"):
        with pytest.raises(InvalidStatus) as elsewhere:
            connect(f"ws://127.0.0.1:{lab.sockets.metrics_port}/api/v1/{path}")
        assert elsewhere.value.response.status_code == 404
    with pytest.raises(InvalidStatus) as bad:
        connect(f"{address}?after=x")
    assert bad.value.response.status_code == 400


# --- who


def test_unauthenticated_caller_reaches_only_health(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.applications.main, "_authenticators", (Nobody(),))
    for path in ("/jobs", "/tenants", "/cluster/status", "/gpus", "/events"):
        reply = lab.get(path)
        assert (reply.status, reply.code) == (401, "unauthenticated")
    assert lab.get("/health").status == 200
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{lab.port}/api/v1/events")
    assert refused.value.response.status_code == 401


def test_admin_does_not_see_environment_values_of_others(lab: ApiLab) -> None:
    job = {"command": ["a"], "environment": {"PLAIN": "seen-by-owner"}}
    job_id = lab.post("/jobs", job, headers=as_user("ada")).json["job_id"]
    path = f"/jobs/{job_id}"
    assert lab.get(path, headers=as_user("ada")).json["environment"]["PLAIN"] == "seen-by-owner"
    assert lab.get(path, headers=as_user("boss")).json["environment"]["PLAIN"] == "***"


def test_sweeps_and_snapshots_belong_to_owner(lab: ApiLab) -> None:
    shot = {"path": "/home/ada/s", "source": "/home/ada/p", "tree": "abc", "dirty": True}
    job = {"command": ["a"], "sweep": "grid", "params": {"lr": "0.1"}, "snapshot": shot}
    job_id = lab.post("/jobs", job, headers=as_user("ada")).json["job_id"]
    (sweep,) = lab.get("/sweeps", headers=as_user("ada")).json["sweeps"]
    assert (sweep["name"], sweep["jobs"], sweep["first_job_id"]) == ("grid", 1, job_id)
    for other in ("bob", "boss"):
        assert lab.get("/sweeps", headers=as_user(other)).json["sweeps"] == []
    found = lab.get("/jobs?sweep=grid", headers=as_user("ada")).json["jobs"]
    assert [one["params"] for one in found] == [{"lr": "0.1"}]
    assert found[0]["snapshot"] == shot | {"commit": ""}
    assert lab.get("/jobs?sweep=grid", headers=as_user("bob")).json["jobs"] == []
    seen = lab.get(f"/jobs/{job_id}", headers=as_user("boss")).json
    assert (seen["sweep"], seen["params"], seen["snapshot"]) == ("", {}, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sweep": "a\nb"},
        {"sweep": "x" * 200},
        {"params": {"a\x1b": "1"}},
        {"params": {f"p{n}": "1" for n in range(65)}},
        {"snapshot": {"path": "relative", "source": "/a", "tree": "t"}},
        {"snapshot": {"path": "/a", "source": "/a", "tree": "t", "uid": 0}},
    ],
)
def test_invalid_sweep_or_snapshot_is_rejected(lab: ApiLab, wrong: dict[str, Any]) -> None:
    reply = lab.post("/jobs", {"command": ["a"]} | wrong, headers=as_user("ada"))
    assert reply.status in (400, 422)


def test_usage_by_others_is_visible_without_details(lab: ApiLab) -> None:
    job = {"command": ["secret-command"], "gpu_count": 1, "name": "secret-name"}
    job_id = lab.post("/jobs", job, headers=as_user("ada")).json["job_id"]
    lab.start(job_id)
    gpus = lab.get("/gpus", headers=as_user("bob"))
    assert any(gpu["users"] == ["ada"] for gpu in gpus.json["gpus"])
    status = lab.get("/cluster/status", headers=as_user("bob"))
    assert status.json["users"]["ada"] == 1
    assert b"secret" not in gpus.body + status.body


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/tenants", {"name": "x"}),
        ("PATCH", "/tenants/default", {"max_gpus": 1}),
        ("DELETE", "/tenants/default", None),
        ("PUT", "/quota", {"online_percent": 1}),
        ("POST", "/gpus/0/pause", None),
        ("POST", "/gpus/n0/0/resume", None),
    ],
)
def test_admin_operations_are_rejected_for_others(
    lab: ApiLab, method: str, path: str, body: object
) -> None:
    reply = lab.call(method, path, body, headers=as_user("ada"))
    assert (reply.status, reply.code) == (403, "forbidden")


def test_unprivileged_server_accepts_jobs_only_from_own_user() -> None:
    with ApiLab(authenticators=[ByHeader()], server_uid=5003) as lab:
        refused = lab.post("/jobs", {"command": ["a"]}, headers=as_user("bobby"))
        assert (refused.status, refused.code) == (403, "forbidden")
        assert "does not run as root" in refused.error
        assert lab.post("/jobs", {"command": ["a"]}, headers=as_user("ada")).status == 201


# --- error responses


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/jobs/", 404, "not_found"),
        ("GET", "/jobs/1/nothing", 404, "not_found"),
        ("PUT", "/jobs", 405, "method_not_allowed"),
        ("DELETE", "/cluster/status", 405, "method_not_allowed"),
        ("OPTIONS", "/jobs", 405, "method_not_allowed"),
    ],
)
def test_unknown_path_or_method_is_answered_in_json(
    lab: ApiLab, method: str, path: str, status: int, code: str
) -> None:
    reply = lab.call(method, path)
    assert (reply.status, reply.code) == (status, code)
    assert set(reply.json) == {"error", "code", "details"}
    if status == 405:
        assert reply.headers["allow"].split(", ") == reply.json["details"]["allowed"]


def test_head_is_get_without_body(lab: ApiLab) -> None:
    reply = lab.call("HEAD", "/cluster/status")
    assert (reply.status, reply.body) == (200, b"")


def test_internal_error_shows_no_traceback(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(lab.store, "count_states", broken)
    reply = lab.get("/cluster/status")
    assert (reply.status, reply.code) == (500, "internal_error")
    assert b"secret detail" not in reply.body
    assert b"Traceback" not in reply.body
    assert reply.json["details"]["request_id"] == reply.headers["x-request-id"]


def raw(lab: ApiLab, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", lab.port), timeout=10) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                answer += piece
    return answer


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
    ],
)
def test_malformed_or_oversized_request_is_rejected_in_json(
    lab: ApiLab, request_text: bytes, status: bytes
) -> None:
    answer = raw(lab, request_text)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert b"application/json" in head
    assert b'"code"' in body


def test_no_header_changes_identity(lab: ApiLab) -> None:
    headers = {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-User": "root", "Forwarded": "for=1.1.1.1"}
    job_id = lab.post("/jobs", {"command": ["a"]}, headers=headers, unix=False).json["job_id"]
    launch = lab.store.launch(job_id)
    assert launch is not None
    assert launch.uid == os.getuid()


def test_duplicate_parameter_is_rejected(lab: ApiLab) -> None:
    reply = lab.get("/jobs?user=ann&user=boss", headers=as_user("ann"))
    assert (reply.status, reply.error) == (
        400,
        "parameter 'user' is given twice; give it once",
    )
