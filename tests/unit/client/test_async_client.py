"""The asynchronous client behaves like the synchronous one."""

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_scheduler import AsyncClient, JobFailed, NoServer, TimedOut
from gpu_scheduler.client.connection import check_owner
from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.model.errors import UnknownThing
from tests.certificates import make_certificate
from tests.unit.client.fake_server import FakeServer, a_server

Story = Callable[[FakeServer, AsyncClient], Awaitable[None]]


def play(story: Story) -> None:
    async def told() -> None:
        with a_server() as server:
            async with AsyncClient(f"unix:{server.path}") as client:
                await story(server, client)

    asyncio.run(told())


async def gathered(source: AsyncIterator[str]) -> str:
    return "".join([piece async for piece in source])


def test_job_is_submitted_awaited_and_read() -> None:
    async def story(server: FakeServer, client: AsyncClient) -> None:
        job = await client.submit(["true"], gpus=1)
        assert await job.state() == "pending"
        ended = asyncio.create_task(job.result(timeout=60))
        await asyncio.sleep(0.02)
        server.write(job.id, b"done\n")
        server.end(job.id)
        assert await ended == 0
        assert await gathered(job.logs(follow=True)) == "done\n"
        assert repr(job) == "AsyncJobHandle('job-1')"

    play(story)


def test_wait_works_without_stream_and_times_out() -> None:
    async def story(server: FakeServer, client: AsyncClient) -> None:
        server.has_events = False
        job = await client.submit(["true"])
        with pytest.raises(TimedOut):
            await job.wait(timeout=0.05)
        ended = asyncio.create_task(job.result(timeout=60))
        await asyncio.sleep(0.02)
        server.end(job.id, 1)
        with pytest.raises(JobFailed):
            await ended
        with pytest.raises(Unreadable):
            await anext(client.events())

    play(story)


def test_single_server_without_leader_is_retried() -> None:
    async def story(server: FakeServer, client: AsyncClient) -> None:
        server.refusal = (503, {"error": "it lost the lead", "code": "outcome_unknown"})
        server.refused_until = 2
        assert (await client.submit(["true"])).id == "job-1"
        assert len(server.requests) == 3
        assert len(set(server.keys)) == 1

    play(story)


def test_concurrent_calls_are_supported() -> None:
    async def story(server: FakeServer, client: AsyncClient) -> None:
        jobs = await asyncio.gather(*(client.submit(["true"]) for _ in range(10)))
        assert len({job.id for job in jobs}) == 10
        assert len([job async for job in client.list(limit=3)]) == 10
        more = await client.submit_many([{"command": ["a"]}, {"command": ["b"]}])
        assert [job.id for job in more] == ["job-11", "job-12"]
        assert await client.submit_many([]) == []

    play(story)


def test_commands_and_queries_reach_server() -> None:
    async def story(server: FakeServer, client: AsyncClient) -> None:
        job = await client.submit(["x"])
        assert (await client.hold(1))["hold"] is True
        assert (await client.release(1))["hold"] is False
        assert (await client.update(1, priority=9))["priority"] == 9
        assert (await client.explain(1))["position"] == 3
        assert (await job.cancel())["status"] == "cancelled"
        assert (await client.retry(1))["state"] == "pending"
        assert (await client.resubmit(1)).id == "job-99"
        assert (await client.job(1).resubmit()).id == "job-99"
        assert (await client.correct_usage(1, 1, 60, "wrong clock"))["run_seconds"] == 60
        assert (await client.tenants())[0]["id"] == "default"
        assert len(await client.gpus()) == 2
        assert (await client.status())["total_jobs"] == 1
        event = await anext(client.events(after=0))
        assert event["sequence"] == 1
        assert (await client.job(1).info())["id"] == "job-1"
        with pytest.raises(UnknownThing):
            await gathered(client.logs(99))

    play(story)


def test_missing_server_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match="start one with 'tgpu up'"):
        asyncio.run(AsyncClient(str(tmp_path)).status())


def test_server_of_another_user_is_not_trusted() -> None:
    with pytest.raises(NoServer, match="uid 12345, neither root nor you"):
        check_owner("/x.sock", 12345)


def test_nothing_stays_open_when_server_does_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("GPU_SCHEDULER_CA_FILE", str(certificate))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    is_over = threading.Event()

    def answer(listening: socket.socket) -> None:
        with tls.wrap_socket(listening.accept()[0], server_side=True) as secure:
            assert secure.recv(1 << 16).startswith(b"GET ")
            secure.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            is_over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, listening)
        client = AsyncClient(f"https://localhost:{listening.getsockname()[1]}")
        assert asyncio.run(client.status()) == {}
        gc.collect()  # asyncio warns about what is left open
        is_over.set()
        answered.result(20)
