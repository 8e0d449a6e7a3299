"""Accounts of a machine whose directory service is slow, hangs, or knows nobody."""

import asyncio
import os
import pwd
import threading
from collections.abc import Iterator

import pytest

from gpu_scheduler.agent.accounts import FRESH_S, Login, Logins, NoAnswer, login_of
from gpu_scheduler.agent.devices.host import Host

ANN, BOB = 4201, 4202
PATIENCE_S = 1.0
"""Enough for those who are answered, also on a busy machine."""


class Service:
    """A directory service that does not answer for some, and counts who is asked for."""

    def __init__(self) -> None:
        self.hangs_for: set[int] = set()
        self.asked: list[int] = []
        self.now_s = 0.0
        self._answers = threading.Event()

    def look_up(self, uid: int) -> Login:
        self.asked.append(uid)
        if uid in self.hangs_for:
            self._answers.wait(60)
        return Login(name=f"user-{uid}", home=f"/home/{uid}")

    def answer(self) -> None:
        self.hangs_for.clear()
        self._answers.set()

    def logins(self) -> Logins:
        return Logins(self.look_up, patience_s=PATIENCE_S, clock=lambda: self.now_s)


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.answer()


def test_an_account_is_looked_up_once_and_then_known_for_a_while(service: Service) -> None:
    async def scenario() -> None:
        logins = service.logins()
        assert logins.known(ANN) is None
        both = await asyncio.gather(logins.of(ANN), logins.of(ANN))
        assert [login.home for login in both] == ["/home/4201"] * 2
        assert logins.known(ANN) == both[0]
        assert service.asked == [ANN]
        service.now_s = FRESH_S + 1
        assert logins.known(ANN) is None
        await logins.of(ANN)
        assert service.asked == [ANN, ANN]

    asyncio.run(scenario())


def test_a_service_that_hangs_for_one_costs_only_that_one_and_one_thread(service: Service) -> None:
    async def scenario() -> None:
        logins = service.logins()
        service.hangs_for = {ANN}
        for _ in range(3):
            with pytest.raises(NoAnswer, match=r"uid 4201 could not be looked up within 1 s"):
                await logins.of(ANN)
        assert (await logins.of(BOB)).name == "user-4202"
        assert service.asked == [ANN, BOB]
        service.answer()
        for thread in threading.enumerate():
            if thread.name == "login":
                thread.join(60)
        assert (await logins.of(ANN)).name == "user-4201"

    asyncio.run(scenario())


def test_what_was_known_is_used_while_nobody_answers(service: Service) -> None:
    async def scenario() -> None:
        logins = service.logins()
        before = await logins.of(ANN)
        service.now_s = 10 * FRESH_S
        service.hangs_for = {ANN}
        assert await logins.of(ANN) == before

    asyncio.run(scenario())


def test_a_look_up_that_fails_is_no_answer() -> None:
    def fails(uid: int) -> Login:
        raise OSError(f"no way to {uid}")

    async def scenario() -> None:
        with pytest.raises(NoAnswer):
            await Logins(fails, patience_s=20).of(ANN)

    asyncio.run(scenario())


def test_accounts_are_those_of_the_system_and_a_number_without_one_has_no_home() -> None:
    mine = pwd.getpwuid(os.geteuid())
    assert (login_of(os.geteuid()).name, login_of(os.geteuid()).home) == (mine[0], mine[5])
    assert login_of(3_999_999_999) == Login(name="", home="/", shell="/bin/sh")


def test_the_user_of_a_process_is_a_number_while_nobody_says(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading of the devices names the users of their processes, and must not wait for it."""
    monkeypatch.setattr("gpu_scheduler.agent.devices.host._names", {})
    real = pwd.getpwuid
    service.hangs_for = {os.geteuid()}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: (service.look_up(uid), real(uid))[1])
    assert Host().process(os.getpid())[0] == str(os.geteuid())
    service.answer()
    for thread in threading.enumerate():
        if thread.name == "look":
            thread.join(60)
    assert Host().process(os.getpid())[0] == real(os.geteuid()).pw_name
