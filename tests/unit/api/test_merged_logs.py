"""Merged logs of many members."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpu_scheduler.api.routes.logs import merge_logs
from gpu_scheduler.model.errors import ClusterError, StoreUnavailable, UnknownThing


async def said(*pieces: bytes | Exception) -> AsyncIterator[bytes]:
    for piece in pieces:
        if isinstance(piece, Exception):
            raise piece
        yield piece


def text(*logs: AsyncIterator[bytes], follow: bool = False) -> bytes:
    async def read() -> bytes:
        return b"".join([piece async for piece in merge_logs(logs, follow=follow)])

    return asyncio.run(read())


def test_lines_are_merged_whole_by_member_with_rank() -> None:
    first, second = said(b"one\ntw", b"o\nend"), said(b"", b"three\n")
    assert text(first, second) == b"[0] one\n[0] two\n[0] end\n[1] three\n"


def test_followed_lines_arrive_as_written_and_end_with_last_member() -> None:
    async def run() -> list[bytes]:
        go = asyncio.Event()

        async def waits() -> AsyncIterator[bytes]:
            await go.wait()
            yield b"late\n"

        seen = []
        async for piece in merge_logs([waits(), said(b"early\n")], follow=True):
            seen.append(piece)
            go.set()
        return seen

    assert asyncio.run(run()) == [b"[1] early\n", b"[0] late\n"]


def test_unreachable_member_is_reported_and_unstarted_one_is_silent() -> None:
    lost = said(b"a\n", ClusterError("node 'n1' is not connected, so its logs cannot be read"))
    never = said(UnknownThing("attempt j.1 has no member 2"))
    assert text(said(b"b\n"), lost, never) == (
        b"[0] b\n[1] a\n[1] (node 'n1' is not connected, so its logs cannot be read)\n"
    )


def test_log_that_cannot_be_located_during_store_outage_is_reported() -> None:
    away = said(StoreUnavailable("the database is away"))
    assert text(said(b"b\n"), away, follow=True) == b"[0] b\n[1] (the database is away)\n"


def test_error_in_one_member_log_ends_view() -> None:
    with pytest.raises(KeyError):
        text(said(b"b\n"), said(KeyError("n0")), follow=True)


def test_closing_view_stops_all_readers() -> None:
    async def run() -> None:
        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x\n"
                await asyncio.sleep(0)

        view = merge_logs([endless(), endless()], follow=True)
        assert await anext(aiter(view)) in {b"[0] x\n", b"[1] x\n"}
        await view.aclose()  # type: ignore[attr-defined]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
