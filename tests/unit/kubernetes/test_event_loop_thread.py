"""While the main loop computes, the lease is renewed; when it hangs, the lease is given up."""

import asyncio
import time
from collections.abc import Callable

import pytest

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.event_loop_thread import EventLoopThread
from gpu_scheduler.kubernetes.leader_election import ElectionSettings, LeaderElector
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.transport import FakeTransport

DEADLINE_SECONDS = 120.0
SETTINGS = ElectionSettings(retry_period_seconds=0.02)


class Candidate:
    """A candidate in a thread; `holder` and `renewals` are what the API server was told."""

    def __init__(self, *, longest_silence_seconds: float) -> None:
        self.api = FakeApi()
        self.elector: LeaderElector | None = None
        self.thread = EventLoopThread(self.work, longest_silence_seconds=longest_silence_seconds)

    async def work(self) -> None:
        self.elector = LeaderElector(
            ApiClient(FakeTransport(self.api)),
            name="gpu-scheduler",
            namespace="kube-system",
            identity="a",
            on_elected=lambda _: None,
            on_lost=lambda: None,
            may_lead=self.thread.main_responds,
            settings=SETTINGS,
        )
        await self.elector.run()

    def leads(self) -> bool:
        return self.elector is not None and self.elector.is_leader

    def version(self) -> str:
        lease = self.elector._lease if self.elector is not None else None
        return "" if lease is None else lease.metadata.resource_version


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the thread has no event to wait for
            await asyncio.sleep(0.01)


def block_until(condition: Callable[[], bool]) -> None:
    """Keep the main loop busy, as a long cycle does."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_lease_is_renewed_while_the_main_loop_is_busy() -> None:
    async def scenario() -> None:
        one = Candidate(longest_silence_seconds=DEADLINE_SECONDS)
        running = asyncio.create_task(one.thread.run())
        await until(one.leads)
        for _ in range(3):
            known = one.version()
            block_until(lambda known=known: one.version() != known)  # type: ignore[misc]
        assert one.leads()
        running.cancel()
        await asyncio.wait([running])
        assert not one.leads()

    asyncio.run(scenario())


def test_leader_whose_main_loop_hangs_gives_the_lease_up_and_stands_again_afterwards() -> None:
    async def scenario() -> None:
        one = Candidate(longest_silence_seconds=0.2)
        running = asyncio.create_task(one.thread.run())
        await until(one.leads)
        assert one.elector is not None
        first = one.elector.term
        block_until(lambda: not one.leads())
        await until(one.leads)
        assert one.elector.term > first
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())


def test_failure_in_the_thread_is_raised_in_the_main_loop() -> None:
    async def fail() -> None:
        raise OSError("the port is taken")

    async def scenario() -> None:
        with pytest.raises(OSError, match="the port is taken"):
            await EventLoopThread(fail).run()

    asyncio.run(scenario())
