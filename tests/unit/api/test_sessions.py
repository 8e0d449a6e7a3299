"""Sessions of browsers: an opaque cookie stands for a token, and for no more than that."""

import os
import pwd
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.api.auth.sessions import MOST_SESSIONS, VALID_S, Sessions
from tests.unit.api.lab import ApiLab, Reply

NOBODY = pwd.getpwnam("nobody")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose server has users")


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab(server_uid=0) as lab:
        yield lab


def a_token(lab: ApiLab, **asked: Any) -> Any:
    return lab.post("/tokens", {"user": "nobody", "role": "viewer", **asked}).json


def log_in(lab: ApiLab, token: str) -> str:
    headers = {"Authorization": f"Bearer {token}"}
    reply = lab.call("POST", "/session", None, headers=headers, unix=False)
    assert reply.status == 201, reply.body
    cookie, *attributes = reply.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/api/v1"} <= set(attributes)
    assert token not in cookie
    return cookie


def ask(lab: ApiLab, cookie: str, method: str = "GET", path: str = "/me", **more: str) -> Reply:
    return lab.call(method, path, None, headers={"Cookie": cookie, **more}, unix=False)


def test_cookie_gives_the_rights_of_its_token_and_no_more(lab: ApiLab) -> None:
    cookie = log_in(lab, a_token(lab)["token"])
    me = ask(lab, cookie).json
    assert (me["user"], me["role"]) == ("nobody", "viewer")
    assert ask(lab, cookie, "POST", "/gpus/0/pause").status == 403
    assert ask(lab, cookie, path="/audit").status == 403
    assert ask(lab, cookie, path="/settings").status == 403


def test_other_origins_are_rejected_with_a_cookie_too(lab: ApiLab) -> None:
    cookie = log_in(lab, a_token(lab)["token"])
    assert ask(lab, cookie, Origin="http://evil.example").status == 403


def test_revoked_token_ends_its_session_and_removes_the_cookie(lab: ApiLab) -> None:
    made = a_token(lab)
    cookie = log_in(lab, made["token"])
    assert lab.call("DELETE", f"/tokens/{made['id']}").status == 200
    reply = ask(lab, cookie)
    assert (reply.status, reply.code) == (401, "token_revoked")
    assert reply.headers["set-cookie"].startswith("tgpu_session=; Max-Age=0")


def test_log_out_ends_the_session(lab: ApiLab) -> None:
    cookie = log_in(lab, a_token(lab)["token"])
    assert ask(lab, cookie, "DELETE", "/session").status == 200
    assert ask(lab, cookie).json["user"] != "nobody"


def test_session_needs_a_token(lab: ApiLab) -> None:
    assert lab.call("POST", "/session", None, unix=False).status == 400


def test_sessions_expire_and_their_number_is_bounded() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])

    def begin() -> dict[bytes, bytes]:
        cookie = sessions.begin(b"Bearer x", secure=True)
        assert cookie.endswith(b"; Secure")
        return {b"cookie": b"other=1; " + cookie.split(b";")[0]}

    first = begin()
    assert sessions.authorization(first) == b"Bearer x"
    assert sessions.authorization({b"cookie": b"tgpu_session=guessed"}) is None
    now[0] = VALID_S
    assert sessions.authorization(first) is None
    oldest = begin()
    for _ in range(MOST_SESSIONS):
        begin()
    assert sessions.authorization(oldest) is None
