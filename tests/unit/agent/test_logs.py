"""Reading a log during rotation: every byte is read once, at any speed."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from gpu_scheduler.agent.jobs.log_reader import read_log
from gpu_scheduler.agent.launcher.rotate_log import rotate

BLOCK = 100


def block(number: int) -> bytes:
    """More than a log may have; each byte tells its block."""
    return bytes([ord("a") + number]) * (BLOCK + 10)


def write(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def reading(
    path: Path, *, offset: int = 0, limit: int = 0, follow: bool = True
) -> AsyncGenerator[bytes, None]:
    pieces = read_log(path, offset=offset, limit=limit, follow=follow, is_over=lambda: True)
    return cast(AsyncGenerator[bytes, None], pieces)


@pytest.mark.parametrize(
    "later", [(b"after",), (block(1), block(2))], ids=["once", "several times"]
)
def test_data_truncated_between_reads_is_read_from_rotated_file(
    tmp_path: Path, later: tuple[bytes, ...]
) -> None:
    path = tmp_path / "log"

    async def scenario() -> bytes:
        write(path, block(0)[:40])
        pieces = reading(path)
        got = await anext(pieces)
        write(path, block(0)[40:])
        for data in later:
            rotate(str(path), BLOCK, 3)
            write(path, data)
        return got + b"".join([piece async for piece in pieces])

    assert asyncio.run(scenario()) == block(0) + b"".join(later)


@pytest.mark.parametrize("log_files", [1, 3])
def test_log_that_grew_past_offset_after_rotation_is_recognised(
    tmp_path: Path, log_files: int
) -> None:
    path = tmp_path / "log"

    async def scenario() -> bytes:
        write(path, block(0))
        rotate(str(path), BLOCK, log_files)
        write(path, block(1)[:10])
        pieces = reading(path)
        got = await anext(pieces) + await anext(pieces)
        write(path, block(1)[10:])
        rotate(str(path), BLOCK, log_files)
        write(path, block(2)[:50])
        return got + b"".join([piece async for piece in pieces])

    assert asyncio.run(scenario()) == block(0) + block(1) + block(2)[:50]


def test_rotated_parts_are_read_to_their_end_while_they_move(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def scenario() -> bytes:
        for number in (0, 1):
            write(path, block(number))
            rotate(str(path), BLOCK, 3)
        write(path, block(2))
        pieces = reading(path, follow=False)
        got = await anext(pieces)
        rotate(str(path), BLOCK, 3)
        write(path, b"after")
        return got + b"".join([piece async for piece in pieces])

    assert asyncio.run(scenario()) == block(0) + block(1) + block(2) + b"after"


def test_log_without_kept_parts_continues_at_new_start(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def scenario() -> bytes:
        write(path, block(0))
        pieces = reading(path)
        got = await anext(pieces)
        rotate(str(path), BLOCK, 0)
        write(path, b"after")
        return got + b"".join([piece async for piece in pieces])

    assert asyncio.run(scenario()) == block(0) + b"after"


def test_log_truncated_without_copy_repeats_nothing(tmp_path: Path) -> None:
    """As on a disk that was full for a while."""
    path = tmp_path / "log"

    async def scenario() -> bytes:
        write(path, block(0))
        pieces = reading(path)
        got = await anext(pieces)
        rotate(str(path), BLOCK, 0)
        write(path, b"after")
        got += await anext(pieces)
        write(path, block(1))
        rotate(str(path), BLOCK, 3)
        write(path, b"end")
        return got + b"".join([piece async for piece in pieces])

    assert asyncio.run(scenario()) == block(0) + b"after" + block(1) + b"end"


@pytest.mark.parametrize(
    ("offset", "limit", "found"),
    [
        (0, 5, b"aaaaa"),
        (BLOCK + 8, 4, b"aabb"),
        (-3, 0, b"bbb"),
        (-BLOCK - 12, 4, b"aabb"),
        (10_000, 0, b""),
    ],
)
def test_offsets_count_over_rotated_files(
    tmp_path: Path, offset: int, limit: int, found: bytes
) -> None:
    path = tmp_path / "log"
    write(path, block(0))
    rotate(str(path), BLOCK, 3)
    write(path, block(1))

    async def scenario() -> bytes:
        pieces = reading(path, offset=offset, limit=limit, follow=False)
        return b"".join([piece async for piece in pieces])

    assert asyncio.run(scenario()) == found
