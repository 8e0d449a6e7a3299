"""The audit log of every change and every rejected attempt: actor, origin, action, outcome."""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.http import rejected_requests_audit
from gpu_scheduler.api.http.rejected_requests_audit import MOST_KINDS, AuditLog, is_audited
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.store.interface import AuditQuery
from gpu_scheduler.store.rows import AuditRow
from tests.unit.api.lab import ApiLab

PEOPLE = {
    "ann": Caller(user="ann", uid=5000, gid=5000, origin="unix"),
    "ben": Caller(user="ben", uid=5001, gid=5001, origin="192.0.2.7", via="token tok-1"),
    "boss": Caller(user="boss", uid=5002, gid=5002, role=Role.ADMIN, origin="unix"),
}


class ByHeader:
    """Trusts a header, as a stand-in for accounts."""

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        return PEOPLE.get(headers.get(b"x-test-user", b"").decode())


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with (
        pytest.MonkeyPatch.context() as patch,
        ApiLab(authenticators=[ByHeader()], server_uid=0) as lab,
    ):
        patch.setattr(rejected_requests_audit, "FLUSH_S", 0.05)
        yield lab


def as_user(name: str) -> dict[str, str]:
    return {"X-Test-User": name}


def records(lab: ApiLab, query: str = "") -> list[dict[str, Any]]:
    return list(lab.get(f"/audit{query}", headers=as_user("boss")).json["records"])


def wait_for(lab: ApiLab, **wanted: Any) -> dict[str, Any]:
    """The newest record with these values; rejections come a moment later."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for record in records(lab):
            if {name: record[name] for name in wanted} == wanted:
                return record
        time.sleep(0.02)
    raise AssertionError(f"there is no record {wanted} in {records(lab)}")


def test_change_is_audited_in_same_commit(lab: ApiLab) -> None:
    job = lab.post("/jobs", {"command": ["x"], "hold": True}, headers=as_user("ben")).json["job_id"]
    newest = records(lab)[0]
    assert (newest["user"], newest["origin"], newest["via"]) == ("ben", "192.0.2.7", "token tok-1")
    assert (newest["action"], newest["target"], newest["outcome"]) == ("submit", job, "done")
    lab.call("PATCH", f"/jobs/{job}", {"name": "n", "priority": 5}, headers=as_user("ben"))
    assert (records(lab)[0]["action"], records(lab)[0]["detail"]) == ("update", "name, priority")
    lab.call("DELETE", f"/jobs/{job}", headers=as_user("ben"))
    assert (records(lab)[0]["action"], records(lab)[0]["target"]) == ("cancel", job)


def test_bulk_submission_is_one_audit_record(lab: ApiLab) -> None:
    body = [{"command": ["x"], "hold": True}] * 3
    ids = lab.post("/jobs", body, headers=as_user("ann")).json["job_ids"]
    newest = records(lab)[0]
    assert (newest["count"], newest["target"]) == (3, f"{ids[0]} to {ids[-1]}")


@pytest.mark.parametrize(
    ("method", "path", "body", "action", "target"),
    [
        ("POST", "/tenants", {"id": "audited", "name": "audited"}, "set_tenant", "audited"),
        ("POST", "/gpus/0/pause", None, "pause_device", "n0/0"),
        ("POST", "/gpus/0/resume", None, "resume_device", "n0/0"),
        ("DELETE", "/tenants/audited", None, "remove_tenant", "audited"),
    ],
)
def test_admin_actions_are_audited(
    lab: ApiLab, method: str, path: str, body: Any, action: str, target: str
) -> None:
    assert lab.call(method, path, body, headers=as_user("boss")).status < 300
    newest = records(lab)[0]
    assert (newest["user"], newest["action"], newest["target"]) == ("boss", action, target)


def test_rejected_attempts_are_audited_with_code(lab: ApiLab) -> None:
    lab.post("/tenants", {"name": "mine"}, headers=as_user("ann"))
    record = wait_for(lab, action="create_tenant", outcome="refused")
    assert (record["user"], record["code"], record["target"]) == (
        "ann",
        "forbidden",
        "/api/v1/tenants",
    )
    lab.get("/me", headers={"Authorization": "Bearer tgpu_wrong"})
    record = wait_for(lab, action="who_am_i")
    assert (record["user"], record["origin"], record["code"]) == ("", "unix", "token_unknown")


def test_repeated_rejection_is_one_audit_record(lab: ApiLab) -> None:
    for _ in range(20):
        lab.get("/audit", headers=as_user("ben"))
    until = time.monotonic() + 60
    found: list[dict[str, Any]] = []
    while sum(record["count"] for record in found) < 20 and time.monotonic() < until:
        found = list(records(lab, "?user=ben&outcome=refused"))
        found = [record for record in found if record["action"] == "list_audit"]
        time.sleep(0.02)
    assert sum(record["count"] for record in found) == 20
    assert len(found) < 20


def test_request_cannot_inject_line_into_audit_log(lab: ApiLab) -> None:
    lab.call("DELETE", "/jobs/%0a%1b[2Jroot%20did%20it", headers=as_user("ann"))
    record = wait_for(lab, user="ann", action="cancel_job", outcome="refused")
    assert record["target"].isprintable()
    assert record["detail"].isprintable()


def test_only_admins_read_audit_log(lab: ApiLab) -> None:
    reply = lab.get("/audit", headers=as_user("ann"))
    assert (reply.status, reply.code) == (403, "forbidden")


def test_audit_log_can_be_filtered_and_paged(lab: ApiLab) -> None:
    first = lab.get("/audit?limit=2", headers=as_user("boss")).json
    rest = lab.get(f"/audit?before={first['next_before']}", headers=as_user("boss")).json
    assert len(first["records"]) == 2
    numbers = [record["number"] for record in first["records"] + rest["records"]]
    assert numbers == sorted(set(numbers), reverse=True)
    assert {record["user"] for record in records(lab, "?user=ann")} == {"ann"}
    assert records(lab, "?since=2099-01-01T00:00:00Z") == []


def test_reads_are_not_audited(lab: ApiLab) -> None:
    assert not is_audited("GET", 404, "not_found")
    assert not is_audited("GET", 400, "invalid_request")
    assert is_audited("GET", 403, "forbidden")
    assert is_audited("POST", 422, "never_fits")
    assert is_audited("POST", 503, "queue_full")
    assert not is_audited("POST", 503, "unavailable")


def test_audit_records_per_caller_are_limited(lab: ApiLab) -> None:
    class Service:
        def __init__(self) -> None:
            self.rows: list[AuditRow] = []

        def now_ms(self) -> int:
            return 1

        def note(self, row: AuditRow) -> None:
            self.rows.append(row)

    service = Service()

    async def flood() -> None:
        gathered = AuditLog(service)  # type: ignore[arg-type]
        for number in range(10 * MOST_KINDS):
            gathered.add(
                who=("eve", "unix", ""),
                action="cancel_job",
                target=f"job-{number}",
                why=("forbidden", "no"),
            )
        gathered.flush()

    lab.run(flood())
    assert len(service.rows) == MOST_KINDS + 1
    assert sum(row.times for row in service.rows) == 10 * MOST_KINDS


def test_long_audit_log_is_read_without_blocking(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_are_served = threading.Event()
    read = lab.store.audit

    def slow(query: AuditQuery) -> list[tuple[int, AuditRow]]:
        assert others_are_served.wait(60)
        return read(query)

    monkeypatch.setattr(lab.store, "audit", slow)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(records, lab)
        assert lab.get("/jobs", headers=as_user("boss")).status == 200
        others_are_served.set()
        assert asked.result(timeout=60) is not None
