"""API tokens: creation, rights, expiry and revocation."""

import hashlib
import os
import pwd
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.auth.tokens import PREFIX
from gpu_scheduler.control.messages import MakeToken
from gpu_scheduler.model.identity import Caller, Role, Token
from tests.unit.api.lab import ApiLab, Reply

NOBODY = pwd.getpwnam("nobody")
ANN = Caller(user="nobody", uid=NOBODY.pw_uid, gid=NOBODY.pw_gid)
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose server has users")


class ByHeader:
    """The account `nobody`, where a header says so; as a stand-in for its processes."""

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        name = headers.get(b"x-test-user", b"").decode()
        people = {"nobody": ANN, "boss": replace(ANN, user="boss", role=Role.ADMIN)}
        return people.get(name)


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()], server_uid=0) as lab:
        for tenant in ("vision", "audio"):
            lab.post("/tenants", {"id": tenant, "name": tenant})
        yield lab


AS_NOBODY = {"X-Test-User": "nobody"}


def create(lab: ApiLab, **asked: Any) -> Any:
    reply = lab.post("/tokens", {"user": "nobody", "tenant_id": "vision", **asked})
    assert reply.status == 201, reply.body
    return reply.json


def call_with(
    lab: ApiLab, secret: str, method: str = "GET", path: str = "/me", body: Any = None
) -> Reply:
    return lab.call(method, path, body, headers={"Authorization": f"Bearer {secret}"}, unix=False)


# --- storage and display


def test_secret_is_returned_once_and_only_hash_is_stored(lab: ApiLab) -> None:
    made = create(lab, name="ci")
    secret = made["token"]
    assert secret.startswith(PREFIX)
    assert len(secret) >= len(PREFIX) + 43
    (kept,) = [token for token in lab.store.tokens() if token.id == made["id"]]
    assert kept.secret_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret.encode() not in lab.get("/tokens").body
    assert secret not in repr(lab.store.tokens())
    assert secret not in repr(lab.store.events(0)) + repr(lab.store.audit)


def test_token_acts_for_its_user_in_its_tenant(lab: ApiLab) -> None:
    me = call_with(lab, create(lab)["token"]).json
    assert (me["user"], me["uid"], me["role"]) == ("nobody", NOBODY.pw_uid, "user")
    assert (me["tenant_id"], me["tenants"], me["administers"]) == ("vision", ["vision"], [])


def test_token_sees_and_revokes_only_tokens_of_its_tenant(lab: ApiLab) -> None:
    here, there = create(lab), create(lab, tenant_id="audio")
    seen = {
        token["tenant_id"] for token in call_with(lab, here["token"], path="/tokens").json["tokens"]
    }
    assert seen == {"vision"}
    refused = call_with(lab, here["token"], "DELETE", f"/tokens/{there['id']}")
    assert (refused.status, refused.code) == (404, "not_found")
    assert call_with(lab, there["token"]).status == 200
    assert call_with(lab, here["token"], "DELETE", f"/tokens/{here['id']}").status == 200


def test_jobs_submitted_with_token_run_as_its_user(lab: ApiLab) -> None:
    secret = create(lab)["token"]
    job = call_with(lab, secret, "POST", "/jobs", {"command": ["id"], "hold": True}).json["job_id"]
    launch = lab.store.launch(job)
    assert launch is not None
    assert (launch.uid, launch.gid, launch.user) == (NOBODY.pw_uid, NOBODY.pw_gid, "nobody")
    assert lab.get(f"/jobs/{job}").json["tenant_id"] == "vision"


def test_last_use_of_token_is_recorded(lab: ApiLab) -> None:
    made = create(lab)
    call_with(lab, made["token"])
    until = time.monotonic() + 60
    while time.monotonic() < until:
        listed = {token["id"]: token for token in lab.get("/tokens").json["tokens"]}
        if listed[made["id"]]["last_used_at"]:
            return
        time.sleep(0.01)
    raise AssertionError("its use was never noted")


# --- rejected tokens


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (f"Bearer {PREFIX}{'x' * 43}", "token_unknown"),
        ("Bearer something-else", "token_unknown"),
        ("Bearer ", "token_unreadable"),
        ("Basic cm9vdDpyb290", "token_unreadable"),
        ("Bearer tgpu_\xe9", "token_unreadable"),
        (f"Bearer {'x' * 20_000}", "token_unreadable"),
    ],
)
def test_invalid_token_is_rejected_even_with_valid_peer_credentials(
    lab: ApiLab, header: str, code: str
) -> None:
    for unix in (True, False):
        reply = lab.get("/me", headers={"Authorization": header}, unix=unix)
        assert (reply.status, reply.code) == (401, code)
        assert reply.headers["www-authenticate"].startswith("Bearer")


def test_revoked_token_is_rejected(lab: ApiLab) -> None:
    made = create(lab)
    assert call_with(lab, made["token"]).status == 200
    assert lab.call("DELETE", f"/tokens/{made['id']}").json["status"] == "revoked"
    reply = call_with(lab, made["token"])
    assert (reply.status, reply.code) == (401, "token_revoked")
    assert lab.call("DELETE", f"/tokens/{made['id']}").status == 409
    assert lab.call("DELETE", "/tokens/tok-none").status == 404


def test_expired_token_is_rejected(lab: ApiLab) -> None:
    secret = f"{PREFIX}expired"
    token = Token(
        id="tok-old",
        secret_hash=hashlib.sha256(secret.encode()).hexdigest(),
        user="nobody",
        uid=NOBODY.pw_uid,
        tenant="vision",
        created_by="root",
        created_ms=1,
        expires_ms=2,
    )
    lab.run(lab.loop.apply(MakeToken(token)))
    reply = call_with(lab, secret)
    assert (reply.status, reply.code) == (401, "token_expired")


@pytest.mark.parametrize(
    ("user", "uid"), [("nobody-has-this-name", 1), ("nobody", NOBODY.pw_uid - 1)]
)
def test_token_of_deleted_account_is_rejected(lab: ApiLab, user: str, uid: int) -> None:
    secret = f"{PREFIX}{user}{uid}"
    token = Token(
        id=f"tok-{user}-{uid}",
        secret_hash=hashlib.sha256(secret.encode()).hexdigest(),
        user=user,
        uid=uid,
        tenant="vision",
        created_by="root",
        created_ms=1,
        expires_ms=1 << 42,
    )
    lab.run(lab.loop.apply(MakeToken(token)))
    reply = call_with(lab, secret)
    assert (reply.status, reply.code) == (401, "token_without_user")


def test_token_of_deleted_tenant_is_rejected(lab: ApiLab) -> None:
    lab.post("/tenants", {"id": "short-lived", "name": "short-lived"})
    secret = create(lab, tenant_id="short-lived")["token"]
    lab.call("DELETE", "/tenants/short-lived")
    reply = call_with(lab, secret)
    assert (reply.status, reply.code) == (403, "wrong_tenant")


# --- who may create tokens


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"user": "root", "tenant_id": "default"}, "only root can make a token of root"),
        ({"user": "daemon", "tenant_id": "default"}, "asked for a token of 'daemon'"),
        ({"tenant_id": "vision"}, "does not belong to tenant 'vision'"),
        ({"role": "admin"}, "may have user in tenant 'default'"),
        ({"role": "tenant-admin"}, "may have user in tenant 'default'"),
    ],
)
def test_token_cannot_exceed_rights_of_creator(lab: ApiLab, asked: Any, said: str) -> None:
    reply = lab.post("/tokens", asked, headers=AS_NOBODY)
    assert (reply.status, reply.code) == (403, "forbidden")
    assert said in reply.error


def test_users_create_own_tokens_and_see_no_others(lab: ApiLab) -> None:
    created = lab.post("/tokens", {"role": "viewer"}, headers=AS_NOBODY)
    assert (created.status, created.json["tenant_id"]) == (201, "default")
    theirs = create(lab, user="daemon")
    listed = {token["id"] for token in lab.get("/tokens", headers=AS_NOBODY).json["tokens"]}
    assert created.json["id"] in listed
    assert theirs["id"] not in listed
    assert lab.call("DELETE", f"/tokens/{theirs['id']}", headers=AS_NOBODY).status == 404


def test_self_made_token_ends_with_tenant_membership(lab: ApiLab) -> None:
    secret = lab.post("/tokens", {}, headers=AS_NOBODY).json["token"]
    assert call_with(lab, secret).json["tenants"] == ["default"]
    lab.call("PATCH", "/tenants/audio", {"users": ["nobody"]})
    try:
        reply = call_with(lab, secret)
        assert (reply.status, reply.code) == (403, "wrong_tenant")
    finally:
        lab.call("PATCH", "/tenants/audio", {"users": []})


def test_root_must_name_user_of_token(lab: ApiLab) -> None:
    reply = lab.post("/tokens", {})
    assert (reply.status, "--user" in reply.error) == (400, True)
    assert lab.post("/tokens", {"user": "root"}).status == 201


def test_non_root_admin_cannot_create_root_token(lab: ApiLab) -> None:
    reply = lab.post("/tokens", {"user": "root"}, headers={"X-Test-User": "boss"})
    assert (reply.status, reply.error) == (403, "only root can make a token of root")


def test_token_cannot_create_another_token(lab: ApiLab) -> None:
    secret = create(lab, role="admin")["token"]
    reply = call_with(lab, secret, "POST", "/tokens", {"user": "daemon"})
    assert (reply.status, reply.code) == (403, "forbidden")


@pytest.mark.parametrize(
    "asked",
    [
        {"expires_in_seconds": 366 * 86_400},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": -1},
        {"role": "root"},
        {"name": "a\nb"},
        {"user": "nobody-has-this-name"},
        {"user": 0},
        {"uid": 0},
    ],
)
def test_invalid_token_request_is_rejected(lab: ApiLab, asked: Any) -> None:
    reply = lab.post("/tokens", {"user": "nobody", **asked})
    assert (reply.status, reply.code) == (400, "invalid_request")


# --- rights of tokens


def test_viewer_token_changes_nothing(lab: ApiLab) -> None:
    secret = create(lab, role="viewer")["token"]
    assert call_with(lab, secret, path="/jobs").status == 200
    for method, path, body in (
        ("POST", "/jobs", {"command": ["x"]}),
        ("DELETE", "/jobs/1", None),
        ("POST", "/tenants", {"name": "x"}),
        ("DELETE", "/tokens/tok-1", None),
    ):
        reply = call_with(lab, secret, method, path, body)
        assert (reply.status, reply.code) == (403, "forbidden"), path


def test_token_does_not_see_jobs_of_user_in_other_tenants(lab: ApiLab) -> None:
    vision, audio = create(lab)["token"], create(lab, tenant_id="audio")["token"]
    body = {"command": ["secret-word"], "hold": True}
    job = call_with(lab, vision, "POST", "/jobs", body).json["job_id"]
    assert call_with(lab, audio, path=f"/jobs/{job}").json["redacted"] is True
    assert call_with(lab, audio, "DELETE", f"/jobs/{job}").status == 403
    assert b"secret-word" not in call_with(lab, audio, path="/jobs?user=@me").body
    assert call_with(lab, vision, path=f"/jobs/{job}").json["command"] == ["secret-word"]
    refused = call_with(lab, audio, "POST", "/jobs", {"command": ["x"], "tenant_id": "vision"})
    assert (refused.status, refused.code) == (403, "forbidden")


def test_same_key_in_two_tenants_submits_two_jobs(lab: ApiLab) -> None:
    jobs = set()
    for tenant in ("vision", "audio"):
        headers = {
            "Authorization": f"Bearer {create(lab, tenant_id=tenant)['token']}",
            "Idempotency-Key": "the-same",
        }
        reply = lab.post("/jobs", {"command": ["x"], "hold": True}, headers=headers)
        jobs.add(reply.json["job_id"])
    assert len(jobs) == 2


def test_tenant_admin_token_manages_jobs_of_tenant(lab: ApiLab) -> None:
    user = create(lab)["token"]
    chief = create(lab, user="daemon", role="tenant-admin")["token"]
    job = call_with(lab, user, "POST", "/jobs", {"command": ["x"], "hold": True}).json["job_id"]
    assert call_with(lab, chief, "DELETE", f"/jobs/{job}").status == 200


def test_tokens_survive_restart(lab: ApiLab) -> None:
    secret = create(lab)["token"]
    lab.loop.core = lab.loop._read_core(lab.loop.now_ms())
    assert call_with(lab, secret).status == 200
