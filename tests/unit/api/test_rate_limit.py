"""Rate limits per caller."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.http.errors import TooFast, TooMany
from gpu_scheduler.api.http.rate_limit import (
    CALLER,
    MOST_BUCKETS,
    ConcurrencyLimit,
    FairThreads,
    RateLimit,
)
from gpu_scheduler.api.interfaces import Bounds
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.notify.delivery import Senders
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.interface import JobQuery
from tests.unit.api.lab import ApiLab, Reply


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_burst_is_allowed_and_then_rate_applies() -> None:
    clock = Clock()
    pace = RateLimit(2.0, 3, clock=clock)
    for _ in range(3):
        pace.take("ann")
    with pytest.raises(TooFast) as refused:
        pace.take("ann")
    assert refused.value.retry_after_s == 1
    pace.take("ben")
    clock.now = 0.5
    pace.take("ann")
    with pytest.raises(TooFast):
        pace.take("ann")


def test_bucket_holds_no_more_than_burst() -> None:
    clock = Clock()
    pace = RateLimit(100.0, 2, clock=clock)
    clock.now = 1000.0
    pace.take("ann")
    pace.take("ann")
    with pytest.raises(TooFast):
        pace.take("ann")


def test_rate_of_zero_is_unlimited() -> None:
    pace = RateLimit(0.0, 1)
    for _ in range(100):
        pace.take("ann")


def test_idle_callers_are_forgotten() -> None:
    clock = Clock()
    pace = RateLimit(1.0, 5, clock=clock)
    for number in range(MOST_BUCKETS):
        pace.take(f"user-{number}")
    clock.now = 100.0
    pace.take("one more")
    assert len(pace._buckets) == 1


class ByHeader:
    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller | None:
        name = headers.get(b"x-test-user", b"").decode()
        role = Role.ADMIN if name == "boss" else Role.USER
        return Caller(user=name, uid=5000, gid=5000, role=role) if name else None


def test_limited_caller_gets_retry_after_and_admins_are_unlimited() -> None:
    bounds = Bounds(requests_per_second=0.001, requests_burst=5)
    with ApiLab(authenticators=[ByHeader()], server_uid=0, bounds=bounds) as lab:
        statuses = [lab.get("/jobs", headers={"X-Test-User": "ann"}).status for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        reply = lab.get("/jobs", headers={"X-Test-User": "ann"})
        assert (reply.code, int(reply.headers["retry-after"]) > 100) == ("too_fast", True)
        assert lab.get("/jobs", headers={"X-Test-User": "ben"}).status == 200
        assert {lab.get("/jobs", headers={"X-Test-User": "boss"}).status for _ in range(9)} == {200}


def test_token_guessing_is_rate_limited() -> None:
    bounds = Bounds(requests_per_second=0.001, requests_burst=3)
    with ApiLab(server_uid=0, bounds=bounds) as lab:
        wrong = {"Authorization": "Bearer tgpu_wrong"}
        statuses = [lab.get("/me", headers=wrong, unix=False).status for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]


def test_reads_of_one_caller_leave_threads_for_others() -> None:
    gate, started = threading.Event(), threading.Semaphore(0)

    def slow() -> str:
        started.release()
        assert gate.wait(60)
        return "slow"

    async def read(caller: str, call: Callable[[], str]) -> str:
        CALLER.set(caller)
        return await asyncio.to_thread(call)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(FairThreads(threads=4, most=2))
        slow_ones = [asyncio.create_task(read("ann", slow)) for _ in range(20)]
        for _ in range(2):
            await asyncio.to_thread(started.acquire)
        slow_ones.pop().cancel()
        async with asyncio.timeout(60):
            assert await read("bob", lambda: "quick") == "quick"
            assert await read("", lambda: "quick") == "quick"
        assert not started.acquire(blocking=False)
        gate.set()
        assert await asyncio.gather(*slow_ones) == ["slow"] * 19
        with pytest.raises(ValueError, match="of ann"):
            await read("ann", lambda: str(int("of ann")))
        assert await read("ann", lambda: "again") == "again"

    asyncio.run(run())


def test_slow_reads_of_one_user_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiLab(authenticators=[ByHeader()], server_uid=0) as lab:
        gate, started = threading.Event(), threading.Event()
        find_jobs = lab.store.find_jobs

        def slow_for_ada(query: JobQuery) -> Any:
            if query.user == "ada":
                started.set()
                assert gate.wait(60)
            return find_jobs(query)

        monkeypatch.setattr(lab.store, "find_jobs", slow_for_ada)
        headers = {"X-Test-User": "ada"}
        readers = [
            threading.Thread(target=lab.get, args=("/jobs?user=ada",), kwargs={"headers": headers})
            for _ in range(60)
        ]
        try:
            for reader in readers:
                reader.start()
            assert started.wait(60)
            reply = lab.get("/jobs", headers={"X-Test-User": "bob"})
            assert (reply.status, gate.is_set()) == (200, False)
        finally:
            gate.set()
            for reader in readers:
                reader.join()


def test_user_cannot_fill_the_database_with_large_bodies() -> None:
    bounds = Bounds(body_mb_per_hour=1, bulk_bytes=1_000_000)
    with ApiLab(authenticators=[ByHeader()], server_uid=0, bounds=bounds) as lab:

        def submit(user: str) -> Reply:
            job = {"script": "#!/bin/sh\n#" + "x" * 400_000, "hold": True}
            return lab.post("/jobs", job, headers={"X-Test-User": user})

        assert [submit("ann").status for _ in range(4)] == [201, 201, 429, 429]
        reply = submit("ann")
        assert "sends more than 1 MB an hour (api.body_mb_per_hour)" in reply.error
        assert int(reply.headers["retry-after"]) > 60
        assert submit("bob").status == 201
        assert [submit("boss").status for _ in range(4)] == [201] * 4
        assert lab.get("/jobs", headers={"X-Test-User": "ann"}).status == 200


def test_followed_logs_of_large_gangs_are_limited_by_their_members() -> None:
    logs = ConcurrencyLimit(10, "logs")
    with logs.hold("ann", 400):
        with pytest.raises(TooMany, match="400 logs open, and the limit is 10"), logs.hold("ann"):
            pass
        with logs.hold("bob", 6), logs.hold("bob", 4), pytest.raises(TooMany), logs.hold("bob"):
            pass
    with logs.hold("ann", 400):
        pass


def test_user_cannot_fill_the_database_with_very_many_changes() -> None:
    bounds = Bounds(body_mb_per_hour=0.02, bulk_bytes=20_000)
    with ApiLab(authenticators=[ByHeader()], server_uid=0, bounds=bounds) as lab:
        headers = {"X-Test-User": "ann"}
        job_id = lab.post("/jobs", {"command": ["true"], "hold": True}, headers=headers).json[
            "job_id"
        ]
        paths = [f"/jobs/{job_id}/{change}" for change in ("release", "hold")] * 20
        statuses = [lab.post(path, {}, headers=headers).status for path in paths]
        assert (statuses[0], statuses[-1]) == (200, 429)
        assert lab.get(f"/jobs/{job_id}", headers=headers).status == 200


class ProgramTarget:
    """A target that is a program of the site, which jobs may use."""

    settings = NotificationSettings(
        targets={"pager": Target(kind="command", command=("/bin/true",), for_jobs=True)}
    )
    lanes: ClassVar[dict[str, Any]] = {}

    async def test(self, target: str, user: str) -> str:
        await Senders(self.settings).send(target, {"user": user}, 0)
        return ""


def test_user_cannot_start_programs_of_the_site_without_end_by_test_notifications() -> None:
    with ApiLab(authenticators=[ByHeader()], server_uid=0, notifications=ProgramTarget()) as lab:

        def tested(user: str) -> int:
            headers = {"X-Test-User": user}
            return lab.post("/notifications/pager/test", {}, headers=headers).status

        assert [tested("ann") for _ in range(7)] == [200] * 5 + [429] * 2
        assert tested("bob") == 200
        assert [tested("boss") for _ in range(7)] == [200] * 7


def test_logs_that_follow_no_member_may_end_in_any_order() -> None:
    limit = ConcurrencyLimit(2, "logs of members")
    first, second = limit.hold("ada", 0), limit.hold("ada", 0)
    with ExitStack() as later, first:
        later.enter_context(second)
    with limit.hold("ada", 2), pytest.raises(TooMany), limit.hold("ada"):
        pass
