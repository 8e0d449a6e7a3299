"""Reports are written beside the cycles: newest first of each object, in order, by the leader."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gpu_scheduler.kubernetes.client.errors import Unreachable
from gpu_scheduler.kubernetes.scheduler.report_writer import ReportWriter


class Server:
    """Notes what is written; each write takes until `open` lets it pass."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done: list[str] = []
        self.open = asyncio.Event()

    def write(self, text: str) -> Callable[[], Awaitable[Any]]:
        async def send() -> None:
            self.begun.append(text)
            await self.open.wait()
            self.done.append(text)

        return send


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def play(story: Callable[[ReportWriter, Server], Awaitable[None]], *, leads: bool = True) -> Server:
    async def main() -> Server:
        server, writer = Server(), ReportWriter(lambda: leads)
        running = asyncio.create_task(writer.run())
        await settle()
        await story(writer, server)
        await settle()
        assert not running.done()
        running.cancel()
        return server

    return asyncio.run(main())


def test_the_newest_status_of_an_object_is_written_after_the_one_under_way() -> None:
    async def story(writer: ReportWriter, server: Server) -> None:
        for text in ("first", "second", "third"):
            writer.put_status("claim", server.write(text))
            await settle()
        writer.put_status("other", server.write("other"))
        await settle()
        assert server.begun == ["first", "other"]
        server.open.set()

    assert [text for text in play(story).done if text != "other"] == ["first", "third"]


def test_slow_events_do_not_hold_up_statuses() -> None:
    async def story(writer: ReportWriter, server: Server) -> None:
        for number in range(50):
            writer.put_event(server.write(f"event {number}"))
        await settle()
        writer.put_status("claim", server.write("status"))
        await settle()
        assert "status" in server.begun
        server.open.set()

    assert len(play(story).done) == 51


def test_only_the_leader_writes() -> None:
    async def story(writer: ReportWriter, server: Server) -> None:
        writer.put_status("claim", server.write("status"))
        writer.put_event(server.write("event"))

    assert play(story, leads=False).begun == []


def test_a_report_that_fails_does_not_stop_the_others() -> None:
    async def story(writer: ReportWriter, server: Server) -> None:
        async def fail() -> None:
            raise Unreachable("no connection")

        server.open.set()
        for number in range(5):
            writer.put_event(fail)
            writer.put_status(f"claim {number}", fail)
        writer.put_event(server.write("event"))
        writer.put_status("claim", server.write("status"))

    assert sorted(play(story).done) == ["event", "status"]
