"""Reservations over REST."""

from collections.abc import Iterator

import pytest

from tests.unit.api.lab import ApiLab
from tests.unit.api.test_app import ByHeader

BODY = {"gpus": 2, "tenant_id": "default", "duration_minutes": 60, "name": "course"}


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()]) as lab:
        yield lab


def test_reservation_is_created_listed_shown_and_cancelled(lab: ApiLab) -> None:
    made = lab.post("/reservations", BODY)
    assert made.status == 201
    assert (made.json["id"], made.json["state"], made.json["gpus"]) == ("res-1", "active", 2)
    assert made.json["places"][0]["gpu_ids"] == [0, 1]
    assert lab.get("/reservations").json["reservations"] == [made.json]
    assert lab.get("/reservations/res-1").json == made.json
    gone = lab.call("DELETE", "/reservations/res-1")
    assert (gone.status, gone.json["state"]) == (200, "cancelled")
    assert lab.get("/reservations").json["reservations"] == []
    assert len(lab.get("/reservations?all=true").json["reservations"]) == 1
    assert lab.call("DELETE", "/reservations/res-1").status == 409
    assert lab.call("DELETE", "/reservations/res-2").status == 404
    assert lab.get("/reservations/res-2").status == 404


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"gpus": 0}, 400, "gpus"),
        ({"gpus": 99}, 409, "ask for 8 or fewer"),
        ({"tenant_id": "nobody"}, 404, "nobody"),
        ({"start": "soon"}, 400, "start"),
        ({"start": "2001-01-01T00:00:00Z"}, 400, "has passed"),
        ({"end": "2031-01-01T00:00:00Z"}, 400, "either the end or duration_minutes"),
        ({"node": "elsewhere"}, 404, "elsewhere"),
        ({"gpu_ids": [1]}, 400, "name at least as many"),
        ({"gpu_model": "H900"}, 409, "of 0 that match"),
        ({"colour": "red"}, 400, "colour"),
        ({"name": "a\nb"}, 400, "control character"),
    ],
)
def test_invalid_reservation_is_rejected_with_reason(
    lab: ApiLab, changes: dict[str, object], status: int, says: str
) -> None:
    reply = lab.post("/reservations", BODY | changes)
    assert reply.status == status, reply.json
    assert says in reply.json["error"]
    assert lab.get("/reservations").json["reservations"] == []


def test_everyone_sees_reservations_and_only_admins_create_them(lab: ApiLab) -> None:
    lab.post("/reservations", BODY)
    ben = {"X-Test-User": "ben"}
    assert len(lab.get("/reservations", headers=ben).json["reservations"]) == 1
    refused = lab.post("/reservations", BODY, headers=ben)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert lab.call("DELETE", "/reservations/res-1", headers=ben).status == 403


def test_waiting_job_names_reservation_and_starts_after_it(lab: ApiLab) -> None:
    lab.post("/reservations", BODY | {"gpus": 8})
    lab.post("/tenants", {"name": "other"})
    job_id = lab.submit(tenant_id="other", gpu_count=1)
    told = lab.get(f"/jobs/{job_id}/explain").json
    assert told["code"] == "window"
    assert told["reason"].startswith("8 GPUs are reserved for default until ")
    assert told["expected_start"] is not None
    assert told["details"]["reservation"] == "res-1"
