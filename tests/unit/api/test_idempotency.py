"""A change repeated with the same idempotency key is made once."""

import time
from collections.abc import Iterator

import pytest

from tests.unit.api.lab import ApiLab


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


def submitted(lab: ApiLab) -> str:
    return str(lab.post("/jobs", {"command": ["a"], "hold": True}).json["job_id"])


def test_repeated_retry_does_not_run_job_again(lab: ApiLab) -> None:
    job = submitted(lab)
    lab.call("DELETE", f"/jobs/{job}")
    key = {"Idempotency-Key": "retry-1"}
    assert lab.call("POST", f"/jobs/{job}/retry", headers=key).status == 200
    assert lab.get(f"/jobs/{job}").json["state"] != "cancelled"
    lab.call("DELETE", f"/jobs/{job}")
    again = lab.call("POST", f"/jobs/{job}/retry", headers=key)
    assert (again.status, again.headers["Idempotency-Replayed"]) == (200, "true")
    assert lab.get(f"/jobs/{job}").json["state"] == "cancelled", "it was put back once"


def test_repeated_removal_is_answered_after_resource_is_gone(lab: ApiLab) -> None:
    tenant = lab.post("/tenants", {"name": "short-lived"}).json["id"]
    key = {"Idempotency-Key": "remove-1"}
    assert lab.call("DELETE", f"/tenants/{tenant}", headers=key).status == 200
    assert lab.call("DELETE", f"/tenants/{tenant}", headers=key).status == 200
    assert lab.call("DELETE", f"/tenants/{tenant}").status == 404


def test_repeated_removal_is_answered_while_resource_is_being_removed(lab: ApiLab) -> None:
    service = lab.post("/services", {"name": "web", "command": ["serve"], "replicas": 1}).json
    until = time.monotonic() + 60
    while not (members := lab.get(f"/services/{service['id']}").json["members"]):
        assert time.monotonic() < until, "it has no replica"
    lab.start(members[0]["job_id"])
    window = lab.post("/reservations", {"gpus": 1, "tenant_id": "default", "duration_minutes": 9})
    for number, path in enumerate(
        (f"/services/{service['id']}", f"/reservations/{window.json['id']}")
    ):
        key = {"Idempotency-Key": f"going-{number}"}
        first = lab.call("DELETE", path, headers=key)
        again = lab.call("DELETE", path, headers=key)
        assert (first.status, again.status) == (200, 200), again.body
        assert (again.json["id"], again.json["state"]) == (first.json["id"], first.json["state"])
        assert again.headers["Idempotency-Replayed"] == "true"


def test_rejected_change_leaves_key_unused(lab: ApiLab) -> None:
    job = submitted(lab)
    key = {"Idempotency-Key": "release-1"}
    assert lab.call("POST", f"/jobs/{job}/retry", headers=key).status == 409
    lab.call("DELETE", f"/jobs/{job}")
    assert lab.call("POST", f"/jobs/{job}/retry", headers=key).status == 200


def test_key_is_bound_to_one_change(lab: ApiLab) -> None:
    one, other = submitted(lab), submitted(lab)
    key = {"Idempotency-Key": "cancel-1"}
    assert lab.call("DELETE", f"/jobs/{one}", headers=key).status == 200
    reply = lab.call("DELETE", f"/jobs/{other}", headers=key)
    assert (reply.status, reply.code) == (422, "key_reused")


def test_new_token_is_never_returned_twice(lab: ApiLab) -> None:
    key = {"Idempotency-Key": "token-1"}
    body = {"name": "ci", "user": "nobody", "role": "viewer"}
    first = lab.post("/tokens", body, headers=key)
    again = lab.post("/tokens", body, headers=key)
    assert (first.status, again.status) == (201, 201), first.body
    assert first.json["token"] != again.json["token"]
