"""One user or tenant cannot fill the queue for others."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.server.from_settings import limits_of
from gpu_scheduler.settings.schema import Settings
from tests.unit.api.lab import ApiLab, Reply
from tests.unit.api.test_app import ByHeader

LIMITS = limits_of(Settings())
"""The defaults of a server."""
PLACES = 1_000_000


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()], nodes=0, server_uid=0, limits=LIMITS) as lab:
        yield lab


def submit(lab: ApiLab, user: str, tasks: int, **more: Any) -> Reply:
    array = {"array": f"1-{tasks}"} if tasks > 1 else {}
    return lab.post("/jobs", {"command": ["x"], **array, **more}, headers={"X-Test-User": user})


def test_flood_of_one_user_leaves_room_for_others(lab: ApiLab) -> None:
    reply = submit(lab, "mallory", 999_901)
    assert (reply.status, reply.code) == (429, "too_many_jobs")
    assert "user 'mallory' may have 495000 jobs waiting" in reply.error
    assert "and has 0, so 999901 more do not fit; submit 495000 or fewer" in reply.error
    assert "limits.user_queue_percent" in reply.error
    assert submit(lab, "mallory", 495_000).status == 201
    assert submit(lab, "mallory", 1).code == "too_many_jobs"
    assert submit(lab, "ben", 1).status == 201
    assert submit(lab, "boss", 1).status == 201


def test_users_who_take_all_they_may_leave_room_for_next_one(lab: ApiLab) -> None:
    free = PLACES * 99 // 100
    for number in range(8):
        share = (free + 1) // 2
        free -= share
        assert submit(lab, f"mallory{number}", share).status == 201
        assert submit(lab, f"mallory{number}", 2).code == "too_many_jobs"
    assert submit(lab, "ben", 1_000).status == 201


def test_admins_may_fill_whole_queue_and_keep_some_of_it(lab: ApiLab) -> None:
    assert submit(lab, "boss", 990_000).status == 201
    reply = submit(lab, "ben", 1)
    assert (reply.status, reply.code) == (503, "queue_full")
    assert "kept for admins" in reply.error
    assert submit(lab, "boss", 10_000).status == 201
    assert submit(lab, "boss", 1).code == "queue_full"


def test_bulk_submission_dry_run_and_retry_are_within_share(lab: ApiLab) -> None:
    mallory = {"X-Test-User": "mallory"}
    halves = [{"command": ["x"], "array": "1-300000"}] * 2
    assert lab.post("/jobs/bulk", halves, headers=mallory).code == "too_many_jobs"
    assert lab.post("/jobs/validate", halves, headers=mallory).code == "too_many_jobs"
    job_id = submit(lab, "mallory", 300_000).json["job_id"]
    assert lab.call("DELETE", f"/jobs/{job_id}", headers=mallory).status == 200
    assert submit(lab, "mallory", 300_000).status == 201
    retry = lab.post(f"/jobs/{job_id}/retry", {"cancelled": True}, headers=mallory)
    assert retry.code == "too_many_jobs"


def test_services_are_within_share(lab: ApiLab) -> None:
    assert submit(lab, "mallory", 494_990).status == 201
    service = {"name": "web", "command": ["x"], "replicas": 11}
    reply = lab.post("/services", service, headers={"X-Test-User": "mallory"})
    assert reply.code == "too_many_jobs", reply.body
    few = lab.post("/services", {**service, "replicas": 5}, headers={"X-Test-User": "mallory"})
    assert few.status == 201, few.body
    service_id = few.json["id"]
    more = lab.post(
        f"/services/{service_id}/scale", {"replicas": 50}, headers={"X-Test-User": "mallory"}
    )
    assert more.code == "too_many_jobs", more.body


def test_tenant_leaves_room_for_other_tenants(lab: ApiLab) -> None:
    assert submit(lab, "ann", 495_000).status == 201
    lab.post("/tenants", {"name": "vision", "id": "vision", "users": ["ben"]})
    assert submit(lab, "cleo", 247_500).status == 201
    reply = submit(lab, "dan", 1)
    assert "tenant 'default' may have 742500 jobs waiting" in reply.error
    assert "other tenants leave" in reply.error


def test_limit_set_by_admin_replaces_share(lab: ApiLab) -> None:
    lab.call(
        "PATCH", "/tenants/default", {"user_max_pending_jobs": 800_000, "max_pending_jobs": 900_000}
    )
    lab.post("/tenants", {"name": "vision", "id": "vision"})
    assert submit(lab, "ann", 800_001).code == "too_many_jobs"
    assert submit(lab, "ann", 800_000).status == 201
