"""Limits of users and tenants over REST."""

from collections.abc import Iterator

import pytest

from tests.unit.api.lab import ApiLab
from tests.unit.api.test_app import ByHeader


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()]) as lab:
        lab.post(
            "/tenants",
            {
                "name": "vision",
                "id": "vision",
                "max_gpus": 8,
                "user_max_gpus": 2,
                "user_max_pending_jobs": 1,
                "user_max_gpu_hours": 100,
                "budget_period": "month",
            },
        )
        yield lab


def test_tenant_shows_and_updates_user_limits(lab: ApiLab) -> None:
    tenant = lab.get("/tenants/vision").json
    assert (tenant["user_max_gpus"], tenant["budget_period"]) == (2, "month")
    changed = lab.call("PATCH", "/tenants/vision", {"user_max_gpus": None, "user_max_jobs": 3})
    assert (changed.json["user_max_gpus"], changed.json["user_max_jobs"]) == (None, 3)
    assert changed.json["user_max_gpu_hours"] == 100
    refused = lab.call("PATCH", "/tenants/vision", {"budget_period": "fortnight"})
    assert refused.status == 400


def test_limits_show_used_and_remaining(lab: ApiLab) -> None:
    job_id = lab.submit(tenant_id="vision", gpu_count=1, max_runtime_minutes=60)
    lab.start(job_id)
    found = {
        (limit["user"] is None, limit["resource"]): (limit["limit"], limit["used"], limit["left"])
        for limit in lab.get("/limits?tenant_id=vision").json["limits"]
    }
    assert found == {
        (False, "GPUs"): (2, 1, 1),
        (False, "waiting jobs"): (1, 0, 1),
        (False, "GPU-hours"): (100, 1, 99),
        (True, "GPUs"): (8, 1, 7),
    }
    hours = lab.get("/limits?tenant_id=vision").json["limits"][2]
    assert hours["period"] == "month"
    assert hours["turns_at"] is not None


def test_limits_of_a_user_are_those_of_the_tenant_of_that_user(lab: ApiLab) -> None:
    assert lab.call("PATCH", "/tenants/vision", {"users": ["nobody"]}).status == 200
    limits = lab.get("/limits?user=nobody").json["limits"]
    assert {limit["tenant_id"] for limit in limits} == {"vision"}
    assert {limit["user"] for limit in limits} == {"nobody", None}
    unknown = lab.get("/limits?user=no-such-user")
    assert (unknown.status, unknown.code) == (404, "not_found")
    assert lab.get("/limits?user=no-such-user&tenant_id=vision").status == 200


def test_request_over_limit_is_rejected_with_numbers(lab: ApiLab) -> None:
    wide = lab.post(
        "/jobs",
        {
            "command": ["true"],
            "tenant_id": "vision",
            "gpu_count": 3,
            "max_runtime_minutes": 60,
        },
    )
    assert (wide.status, wide.code) == (403, "quota_exceeded")
    assert "ask for 2 or fewer" in wide.json["error"]
    body = {"command": ["true"], "tenant_id": "vision", "hold": True, "max_runtime_minutes": 5}
    assert lab.post("/jobs", body).status == 201
    many = lab.post("/jobs", body)
    assert (many.status, many.code) == (429, "too_many_jobs")
    assert "may have 1 jobs waiting and has 1" in many.json["error"]


def test_users_see_only_their_own_limits(lab: ApiLab) -> None:
    ben = {"X-Test-User": "ben"}
    assert lab.get("/limits", headers=ben).status == 200
    assert lab.get("/limits?user=ann", headers=ben).status == 403
