"""Sessions of browsers: an opaque cookie stands for a token, and for no more than that."""

import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.auth.sessions import MOST_OF_USER, MOST_SESSIONS, VALID_S, Sessions
from tests.unit.api.lab import ApiLab, Reply

DAEMON = pwd.getpwnam("daemon")
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


def test_cookie_that_reached_another_user_of_the_machine_is_worth_nothing(lab: ApiLab) -> None:
    # Browsers send it to every port of the host, so to a server that the other user runs there.
    cookie = log_in(lab, a_token(lab)["token"])
    ask_me = ["curl", "-s", "--noproxy", "*", f"http://127.0.0.1:{lab.port}/api/v1/me"]
    of_daemon = subprocess.run(
        [*ask_me, "-H", f"Cookie: {cookie}"],
        capture_output=True,
        check=True,
        user=DAEMON.pw_uid,
        group=DAEMON.pw_gid,
        cwd="/",
    )
    assert json.loads(of_daemon.stdout)["user"] == "daemon"
    assert ask(lab, cookie).json["user"] == "nobody"


FROM_AFAR = Peer(uid=None, host="192.0.2.7")


class Browser:
    """Sessions of some users, from another machine unless a test says otherwise."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sessions = Sessions(lambda: self.now)

    def begin(self, user: str = "ann", peer: Peer = FROM_AFAR) -> dict[bytes, bytes]:
        cookie = self.sessions.begin(b"Bearer x", user, peer, secure=True)
        assert cookie.endswith(b"; Secure")
        return {b"cookie": b"other=1; " + cookie.split(b";")[0]}

    def is_open(self, headers: dict[bytes, bytes], peer: Peer = FROM_AFAR) -> bool:
        return self.sessions.authorization(headers, peer) == b"Bearer x"


def test_sessions_expire_and_guessed_cookies_are_worth_nothing() -> None:
    browser = Browser()
    first = browser.begin()
    assert browser.is_open(first)
    assert not browser.is_open({b"cookie": b"tgpu_session=guessed"})
    browser.now = VALID_S
    assert not browser.is_open(first)


def test_number_of_sessions_is_bounded() -> None:
    browser = Browser()
    oldest = browser.begin("user0")
    for number in range(1, MOST_SESSIONS + 1):
        browser.begin(f"user{number}")
    assert not browser.is_open(oldest)


def test_user_who_opens_very_many_sessions_ends_none_of_others() -> None:
    browser = Browser()
    of_ann = browser.begin("ann")
    of_bob = [browser.begin("bob") for _ in range(MOST_SESSIONS + 1)]
    assert browser.is_open(of_ann)
    assert [browser.is_open(one) for one in of_bob[-MOST_OF_USER:]] == [True] * MOST_OF_USER
    assert not browser.is_open(of_bob[-MOST_OF_USER - 1])


def test_session_of_another_machine_is_not_valid_on_this_one() -> None:
    browser, here = Browser(), Peer(uid=1000, host="127.0.0.1")
    assert not browser.is_open(browser.begin(), here)
    assert not browser.is_open(browser.begin(peer=here))
    assert browser.is_open(browser.begin(peer=here), here)
