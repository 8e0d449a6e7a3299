"""The agent between server and launcher: no server message may stop it."""

import asyncio
import os
import pwd
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from gpu_scheduler.agent import machine
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.agent.jobs.log_reader import CHUNK
from gpu_scheduler.agent.jobs.mps import Mps
from gpu_scheduler.agent.jobs.orders import OrderTranslator
from gpu_scheduler.agent.launcher_client import Held, Launcher
from gpu_scheduler.agent.launcher_protocol import Began, Report, Saved, Work
from gpu_scheduler.agent.machine import Account, LocalMachine, Machine
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import SESSION_METHOD

LOST_USER = 4201


class QuietLauncher:
    """Takes every order, and reports what a test puts in `says`."""

    def __init__(self) -> None:
        self.capabilities: dict[str, Any] = {"runners": ["process"]}
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.leased: dict[str, int] = {}
        self.forgotten: asyncio.Queue[str] = asyncio.Queue()
        self.asked = asyncio.Event()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.renewed: asyncio.Queue[int] = asyncio.Queue()
        self.is_outdated = False
        self.keeps_leases = True
        self.says: asyncio.Queue[Report] = asyncio.Queue()

    async def renew(self, asked_ms: int) -> None:
        self.renewed.put_nowait(asked_ms)

    async def start(self, work: Work) -> None:
        self.asked.set()
        await self.may_start.wait()
        self.leased[work.allocation_id] = work.leased_ms
        self.started.put_nowait(work.allocation_id)

    async def forget(self, allocation_id: str, _: int) -> None:
        self.forgotten.put_nowait(allocation_id)

    async def held(self) -> list[Held]:
        return []

    async def reports(self) -> AsyncIterator[Report]:
        while True:
            yield await self.says.get()


class OneServer:
    """The server side of the stream: received messages are kept, those in `says` are sent."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[pb.ServerMessage] = asyncio.Queue()
        self.heard: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        self._facts: list[pb.Fact] = []

    async def session(
        self, requests: AsyncIterator[pb.AgentMessage], _: Any
    ) -> AsyncIterator[pb.ServerMessage]:
        listening = asyncio.create_task(self._listen(requests))
        try:
            while True:
                yield await self.says.get()
        finally:
            listening.cancel()

    async def _listen(self, requests: AsyncIterator[pb.AgentMessage]) -> None:
        async for message in requests:
            self.heard.put_nowait(message)

    async def next_chunk(self) -> tuple[int, int, bool]:
        """Its request, its length, and whether it is the last."""
        while True:
            message = await asyncio.wait_for(self.heard.get(), 20)
            if message.WhichOneof("message") == "log_chunk":
                chunk = message.log_chunk
                return chunk.request_id, len(chunk.data), chunk.end

    async def next_hello(self) -> pb.Hello:
        while True:
            message = await asyncio.wait_for(self.heard.get(), 20)
            if message.WhichOneof("message") == "hello":
                return message.hello

    async def next_fact_of(self, kind: str) -> pb.Fact:
        while not self._facts:
            message = await asyncio.wait_for(self.heard.get(), 20)
            self._facts += [f for f in message.facts.facts if f.WhichOneof("fact") == kind]
        return self._facts.pop(0)

    async def next_fact(self) -> pb.Fact:
        while True:
            message = await asyncio.wait_for(self.heard.get(), 20)
            if message.WhichOneof("message") == "facts":
                return message.facts.facts[0]


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tgpu-"))
    yield path
    shutil.rmtree(path)


def a_config(directory: Path) -> AgentConfig:
    return AgentConfig(
        node="n0",
        targets=(f"unix:{directory}/s",),
        dir=str(directory),
        logs_dir=str(directory),
        scratch_dir=str(directory),
    )


async def serving(directory: Path, server: OneServer) -> grpc.aio.Server:
    listening = grpc.aio.server()
    service, method = SESSION_METHOD.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(
        server.session,
        request_deserializer=pb.AgentMessage.FromString,
        response_serializer=pb.ServerMessage.SerializeToString,
    )
    listening.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    listening.add_insecure_port(f"unix:{directory}/s")
    await listening.start()
    return listening


def with_agent(directory: Path, test: Any, machine: Machine | None = None, **settings: Any) -> None:
    """Run a test against a connected agent."""

    async def run() -> None:
        server, launcher = OneServer(), QuietLauncher()
        listening = await serving(directory, server)
        found = NodeInventory(cpu_milli=1000, memory_mb=1000, devices=())
        config = replace(a_config(directory), **settings)
        agent = Agent(config, cast(Launcher, launcher), found, None, machine=machine)
        running = asyncio.create_task(agent.run())
        try:
            await test(server, launcher)
            assert not running.done(), "the agent lives"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await listening.stop(None)

    asyncio.run(run())


def a_start(name: str, **environment: str) -> pb.ServerMessage:
    start = pb.Start(job_id=name, attempt=1, argv=["true"], environment=environment)
    order = pb.Order(allocation_id=f"{name}.1", start=start)
    return pb.ServerMessage(orders=pb.Orders(orders=[order]))


def test_order_that_cannot_be_prepared_fails_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = OrderTranslator.translate

    def work(self: OrderTranslator, order: pb.Order, login: Account) -> Work:
        if order.allocation_id == "job-1.1":
            raise OSError("no room for that")
        return prepare(self, order, login)

    monkeypatch.setattr(OrderTranslator, "translate", work)

    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        server.says.put_nowait(a_start("job-1"))
        fact = await server.next_fact()
        assert (fact.allocation_id, fact.over.ran) == ("job-1.1", False)
        assert "no room for that" in fact.over.detail
        server.says.put_nowait(a_start("job-2"))
        assert await asyncio.wait_for(launcher.started.get(), 20) == "job-2.1"

    with_agent(directory, test)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A directory service that does not answer for one user until this is set."""
    real, answers = pwd.getpwuid, threading.Event()

    def hangs(uid: int) -> pwd.struct_passwd:
        if uid == LOST_USER:
            answers.wait(60)
        return real(os.geteuid())

    monkeypatch.setattr(pwd, "getpwuid", hangs)
    yield answers
    answers.set()


def a_start_of_lost_user(name: str) -> pb.ServerMessage:
    message = a_start(name)
    message.orders.orders[0].start.uid = LOST_USER
    return message


def test_failed_user_lookup_fails_only_jobs_of_that_user(
    directory: Path, answers: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "LOOKUP_TIMEOUT_S", 1.0)

    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        server.says.put_nowait(a_start_of_lost_user("job-1"))
        server.says.put_nowait(a_start_of_lost_user("job-1"))
        server.says.put_nowait(a_start("job-2"))
        # The event loop continues meanwhile: others start, and the repeated order is executed once.
        assert await asyncio.wait_for(launcher.started.get(), 20) == "job-2.1"
        fact = await server.next_fact()
        assert (fact.allocation_id, fact.over.ran) == ("job-1.1", False)
        assert fact.over.stopped_by == "not_begun"
        assert "could not be looked up within 1 s" in fact.over.detail
        answers.set()
        server.says.put_nowait(a_start_of_lost_user("job-3"))
        assert await asyncio.wait_for(launcher.started.get(), 20) == "job-3.1"

    with_agent(directory, test)


class SlowToTell(LocalMachine):
    """Its lookups complete at some moment, and their waiters run later."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.tells = asyncio.Event()
        self.is_known = False

    def cached_account(self, uid: int) -> Account | None:
        return Account() if self.is_known or uid != LOST_USER else None

    async def account(self, uid: int) -> Account:
        self.asked.set()
        await self.tells.wait()
        return await super().login(uid)


def test_starts_of_one_user_keep_their_order(directory: Path) -> None:
    """Also an order that arrives at the moment the account is known; earlier ones go first."""
    machine = SlowToTell()

    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        async def next_started() -> str:
            return await asyncio.wait_for(launcher.started.get(), 20)

        for number in range(1, 4):
            server.says.put_nowait(a_start_of_lost_user(f"job-{number}"))
        server.says.put_nowait(a_start("job-4"))
        await asyncio.wait_for(machine.asked.wait(), 20)
        assert await next_started() == "job-4.1"
        machine.is_known = True
        server.says.put_nowait(a_start_of_lost_user("job-5"))
        assert [await next_started() for _ in range(4)] == [f"job-{n}.1" for n in (1, 2, 3, 5)]
        machine.tells.set()
        server.says.put_nowait(a_start_of_lost_user("job-6"))
        assert await next_started() == "job-6.1"

    with_agent(directory, test, machine)


def test_job_forgotten_during_user_lookup_is_not_started(
    directory: Path, answers: threading.Event
) -> None:

    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        server.says.put_nowait(a_start_of_lost_user("job-1"))
        server.says.put_nowait(a_forget("job-1"))
        server.says.put_nowait(a_start("job-2"))
        assert await asyncio.wait_for(launcher.started.get(), 20) == "job-2.1"
        answers.set()
        server.says.put_nowait(a_start_of_lost_user("job-3"))
        assert await asyncio.wait_for(launcher.started.get(), 20) == "job-3.1"

    with_agent(directory, test)


def a_forget(name: str) -> pb.ServerMessage:
    order = pb.Order(allocation_id=f"{name}.1", forget=pb.Forget())
    return pb.ServerMessage(orders=pb.Orders(orders=[order]))


def test_repeated_waiting_order_is_executed_once(directory: Path) -> None:
    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        launcher.may_start.clear()
        for name in ("job-1", "job-2", "job-2"):
            server.says.put_nowait(a_start(name))
        # The last message is processed last: then all the others have been.
        server.says.put_nowait(a_forget("job-9"))
        await asyncio.wait_for(launcher.forgotten.get(), 20)
        await asyncio.wait_for(launcher.asked.wait(), 20)
        launcher.may_start.set()
        server.says.put_nowait(a_start("job-3"))
        found = [await asyncio.wait_for(launcher.started.get(), 20) for _ in range(3)]
        assert sorted(found) == ["job-1.1", "job-2.1", "job-3.1"]

    with_agent(directory, test, most_starts=1)


def test_job_forgotten_while_start_waits_never_starts(directory: Path) -> None:
    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        launcher.may_start.clear()
        server.says.put_nowait(a_start("job-1"))
        await asyncio.wait_for(launcher.asked.wait(), 20)
        for said in (a_start("job-2"), a_forget("job-2"), a_start("job-3")):
            server.says.put_nowait(said)
        assert await asyncio.wait_for(launcher.forgotten.get(), 20) == "job-2.1"
        launcher.may_start.set()
        found = [await asyncio.wait_for(launcher.started.get(), 20) for _ in range(2)]
        assert found == ["job-1.1", "job-3.1"]

    with_agent(directory, test, most_starts=1)


def a_leased_start(name: str) -> pb.ServerMessage:
    said = a_start(name)
    said.orders.orders[0].start.lease_ms = 60_000
    return said


def test_waiting_start_keeps_lease_of_order_time(directory: Path) -> None:
    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        launcher.may_start.clear()
        renewals = [pb.ServerMessage(renewal=pb.Renewal(boot_ms=ms)) for ms in (1_000, 500_000)]
        starts = [a_leased_start(name) for name in ("job-1", "job-2")]
        for said in (renewals[0], *starts, renewals[1]):
            server.says.put_nowait(said)
        assert [await asyncio.wait_for(launcher.renewed.get(), 20) for _ in range(2)] == [
            1_000,
            500_000,
        ]
        launcher.may_start.set()
        for _ in range(2):
            await asyncio.wait_for(launcher.started.get(), 20)
        assert launcher.leased == {"job-1.1": 1_000, "job-2.1": 1_000}

    with_agent(directory, test, most_starts=1)


def test_waiting_start_is_reported_to_reconnected_server(directory: Path) -> None:
    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        assert not (await server.next_hello()).held
        launcher.may_start.clear()
        for name in ("job-1", "job-2"):
            server.says.put_nowait(a_start(name))
        server.says.put_nowait(pb.ServerMessage(goodbye=pb.Goodbye(reason="restart")))
        held = (await server.next_hello()).held
        assert [work.allocation_id for work in held] == ["job-1.1", "job-2.1"]

    with_agent(directory, test, most_starts=1, retry_interval_s=0.01)


def test_last_checkpoint_is_reported_with_age_to_reconnected_server(directory: Path) -> None:
    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        await server.next_hello()
        now_ms = time.time_ns() // 1_000_000
        what: dict[str, Any] = {"allocation_id": "job-1.1", "member": 0}
        launcher.says.put_nowait(Began(**what, pid=7, at_ms=now_ms))
        await server.next_fact_of("began")  # so that each checkpoint is reported when it is made
        for ago_ms in (90_000, 60_000):
            launcher.says.put_nowait(Saved(**what, at_ms=now_ms - ago_ms))
        facts = [await server.next_fact_of("saved") for _ in range(2)]
        assert [fact.saved.ago_ms // 10_000 for fact in facts] == [9, 6]
        server.says.put_nowait(pb.ServerMessage(goodbye=pb.Goodbye(reason="restart")))
        await server.next_hello()
        again = await server.next_fact_of("saved")
        assert 60_000 <= again.saved.ago_ms < 90_000

    with_agent(directory, test, retry_interval_s=0.01)


def test_home_that_cannot_be_looked_up_is_empty(directory: Path) -> None:
    orders = OrderTranslator(
        a_config(directory), NodeInventory(cpu_milli=1, memory_mb=1, devices=())
    )
    order = a_start("job-1", HOME="/" + "a" * 300).orders.orders[0]
    assert orders.translate(order).workdir == "/"


def a_log(directory: Path, name: str, size: int) -> None:
    (directory / name).mkdir()
    (directory / name / f"{name}.1.0.log").write_bytes(b"x" * size)


def a_log_request(number: int, name: str, chunks: int) -> pb.ServerMessage:
    request = pb.LogRequest(
        request_id=number, job_id=name, allocation_id=f"{name}.1", chunks=chunks
    )
    return pb.ServerMessage(log_request=request)


def test_log_follower_may_arrive_before_start_order(directory: Path) -> None:
    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        follow = a_log_request(1, "job-1", 9)
        follow.log_request.follow = True
        server.says.put_nowait(follow)
        server.says.put_nowait(a_start("job-1"))
        assert await asyncio.wait_for(launcher.started.get(), 20) == "job-1.1"
        a_log(directory, "job-1", 7)
        assert await server.next_chunk() == (1, 7, False)

    with_agent(directory, test)


def test_log_data_is_sent_only_within_credit(directory: Path) -> None:
    a_log(directory, "job-1", 4 * CHUNK)
    a_log(directory, "job-2", 1)

    async def test(server: OneServer, _: QuietLauncher) -> None:
        server.says.put_nowait(a_log_request(1, "job-1", 2))
        assert [await server.next_chunk() for _ in range(2)] == [(1, CHUNK, False)] * 2
        server.says.put_nowait(a_log_request(2, "job-2", 2))
        assert await server.next_chunk() == (2, 1, False), "other readers are not held up"
        assert await server.next_chunk() == (2, 0, True)
        server.says.put_nowait(pb.ServerMessage(log_credit=pb.LogCredit(request_id=1, chunks=9)))
        assert [await server.next_chunk() for _ in range(2)] == [(1, CHUNK, False)] * 2
        assert await server.next_chunk() == (1, 0, True)
        server.says.put_nowait(pb.ServerMessage(log_credit=pb.LogCredit(request_id=1, chunks=1)))
        server.says.put_nowait(a_log_request(3, "job-2", 0))
        assert await server.next_chunk() == (3, 1, False), "credit that comes too late harms nobody"

    with_agent(directory, test)


def test_rejected_job_leaves_its_mps_daemon(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[tuple[str, int]] = []

    async def leave(key: tuple[str, int]) -> None:
        left.append(key)

    async def run() -> None:
        found = NodeInventory(cpu_milli=1000, memory_mb=1000, devices=())
        agent = Agent(a_config(directory), cast(Launcher, QuietLauncher()), found, None)
        monkeypatch.setattr(agent._mps, "is_used_by", lambda key: key == ("job-1.1", 0))
        monkeypatch.setattr(agent._mps, "detach", leave)
        agent._report_not_started(("job-1.1", 0), "bad order")
        agent._report_not_started(("job-2.1", 0), "bad order")
        await asyncio.sleep(0)

    asyncio.run(run())
    assert left == [("job-1.1", 0)]


def test_job_forgotten_while_joining_daemon_never_starts_and_leaves_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_join = asyncio.Event(), asyncio.Event()
    left: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def join(_: Mps, work: Work) -> Work:
        if work.allocation_id == "job-1.1":
            asked.set()
            await may_join.wait()
        return work

    async def leave(_: Mps, key: tuple[str, int]) -> None:
        left.put_nowait(key)

    async def test(server: OneServer, launcher: QuietLauncher) -> None:
        server.says.put_nowait(a_start("job-1"))
        await asyncio.wait_for(asked.wait(), 20)
        server.says.put_nowait(a_forget("job-1"))
        assert await asyncio.wait_for(launcher.forgotten.get(), 20) == "job-1.1"
        may_join.set()
        assert await asyncio.wait_for(left.get(), 20) == ("job-1.1", 0)
        server.says.put_nowait(a_start("job-2"))
        assert await asyncio.wait_for(launcher.started.get(), 20) == "job-2.1"

    monkeypatch.setattr(Mps, "attach", join)
    monkeypatch.setattr(Mps, "detach", leave)
    with_agent(directory, test)
