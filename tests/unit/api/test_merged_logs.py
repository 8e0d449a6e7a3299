"""Logs of many members as one."""

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


def test_lines_come_whole_member_by_member_and_with_their_rank() -> None:
    first, second = said(b"one\ntw", b"o\nend"), said(b"", b"three\n")
    assert text(first, second) == b"[0] one\n[0] two\n[0] end\n[1] three\n"


def test_with_follow_lines_come_as_they_are_written_and_the_view_ends_with_the_last() -> None:
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


def test_a_member_out_of_reach_says_so_and_one_that_never_was_says_nothing() -> None:
    lost = said(b"a\n", ClusterError("node 'n1' is not connected, so its logs cannot be read"))
    never = said(UnknownThing("attempt j.1 has no member 2"))
    assert text(said(b"b\n"), lost, never) == (
        b"[0] b\n[1] a\n[1] (node 'n1' is not connected, so its logs cannot be read)\n"
    )


def test_a_log_that_cannot_be_found_as_the_store_is_away_says_so_and_nobody_waits_for_it() -> None:
    away = said(StoreUnavailable("the database is away"))
    assert text(said(b"b\n"), away, follow=True) == b"[0] b\n[1] (the database is away)\n"


def test_a_mistake_in_the_log_of_one_member_ends_the_view() -> None:
    with pytest.raises(KeyError):
        text(said(b"b\n"), said(KeyError("n0")), follow=True)


def test_who_stops_reading_stops_all() -> None:
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
