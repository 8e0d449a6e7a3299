"""Account look-ups with a directory service that is slow, hangs or knows no such user."""

import asyncio
import os
import pwd
import threading
from collections.abc import Iterator

import pytest

from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.machine import (
    CACHE_TTL_S,
    Account,
    AccountCache,
    AccountLookupTimeout,
    look_up_account,
)

ANN, BOB = 4201, 4202
TIMEOUT_S = 1.0
"""Enough for look-ups that succeed, also on a busy machine."""


class Service:
    """A directory service that does not answer for some users, and counts queries."""

    def __init__(self) -> None:
        self.hangs_for: set[int] = set()
        self.asked: list[int] = []
        self.now_s = 0.0
        self._answers = threading.Event()

    def look_up(self, uid: int) -> Account:
        self.asked.append(uid)
        if uid in self.hangs_for:
            self._answers.wait(60)
        return Account(name=f"user-{uid}", home=f"/home/{uid}")

    def answer(self) -> None:
        self.hangs_for.clear()
        self._answers.set()

    def accounts(self) -> AccountCache:
        return AccountCache(self.look_up, timeout_s=TIMEOUT_S, clock=lambda: self.now_s)


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.answer()


def test_account_is_looked_up_once_and_cached(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        assert accounts.cached(ANN) is None
        both = await asyncio.gather(accounts.get(ANN), accounts.get(ANN))
        assert [account.home for account in both] == ["/home/4201"] * 2
        assert accounts.cached(ANN) == both[0]
        assert service.asked == [ANN]
        service.now_s = CACHE_TTL_S + 1
        assert accounts.cached(ANN) is None
        await accounts.get(ANN)
        assert service.asked == [ANN, ANN]

    asyncio.run(scenario())


def test_hanging_lookup_affects_one_user_and_uses_one_thread(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        service.hangs_for = {ANN}
        for _ in range(3):
            with pytest.raises(
                AccountLookupTimeout, match=r"uid 4201 could not be looked up within 1 s"
            ):
                await accounts.get(ANN)
        assert (await accounts.get(BOB)).name == "user-4202"
        assert service.asked == [ANN, BOB]
        service.answer()
        for thread in threading.enumerate():
            if thread.name == "account":
                thread.join(60)
        assert (await accounts.get(ANN)).name == "user-4201"

    asyncio.run(scenario())


def test_expired_entry_is_used_while_the_service_hangs(service: Service) -> None:
    async def scenario() -> None:
        accounts = service.accounts()
        before = await accounts.get(ANN)
        service.now_s = 10 * CACHE_TTL_S
        service.hangs_for = {ANN}
        assert await accounts.get(ANN) == before

    asyncio.run(scenario())


def test_failed_lookup_is_a_timeout() -> None:
    def fails(uid: int) -> Account:
        raise OSError(f"no way to {uid}")

    async def scenario() -> None:
        with pytest.raises(AccountLookupTimeout):
            await AccountCache(fails, timeout_s=20).get(ANN)

    asyncio.run(scenario())


def test_unknown_uid_has_an_account_without_a_name() -> None:
    mine = pwd.getpwuid(os.geteuid())
    assert (look_up_account(os.geteuid()).name, look_up_account(os.geteuid()).home) == (
        mine[0],
        mine[5],
    )
    assert look_up_account(3_999_999_999) == Account(name="", home="/", shell="/bin/sh")


def test_process_user_is_the_uid_while_the_lookup_hangs(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device reading names the users of processes, and must not wait for lookups."""
    monkeypatch.setattr("gpu_scheduler.agent.devices.host._names", {})
    real = pwd.getpwuid
    service.hangs_for = {os.geteuid()}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: (service.look_up(uid), real(uid))[1])
    assert Host().process(os.getpid())[0] == str(os.geteuid())
    service.answer()
    for thread in threading.enumerate():
        if thread.name == "stat":
            thread.join(60)
    assert Host().process(os.getpid())[0] == real(os.geteuid()).pw_name
