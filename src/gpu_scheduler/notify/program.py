"""One run of a program that an admin has named, as the server's own user.

It gets the document on its standard input and some of it in variables; nothing of it comes into
its arguments, and no shell is involved. By posix_spawn, as forking beside the threads of gRPC is
hazardous.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpu_scheduler.notify.failures import DeliveryFailed

_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


async def run(
    command: Sequence[str], body: bytes, document: dict[str, Any], timeout_s: float
) -> None:
    """Run to the end, or raise DeliveryFailed."""
    try:
        pid = _started(command, body, document)
    except OSError as error:
        raise DeliveryFailed(
            f"{command[0]} cannot be run: {error.strerror}", everybody=True
        ) from error
    try:
        async with asyncio.timeout(timeout_s):
            status = await _ended(pid)
    except TimeoutError:
        raise DeliveryFailed(f"{command[0]} took longer than {timeout_s:g} s") from None
    code = os.waitstatus_to_exitcode(status)
    if code:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise DeliveryFailed(f"{command[0]} ended with {ended}")


def variables(document: dict[str, Any]) -> dict[str, str]:
    """The fields of the document that are plain values, as `TGPU_NOTICE_JOB_ID` and so on."""
    found = {name: os.environ[name] for name in _PASSED if name in os.environ}
    for name, value in document.items():
        if value is not None and not isinstance(value, dict | list):
            found[f"TGPU_NOTICE_{name.upper()}"] = str(value).replace("\0", "")
    return found


def _started(command: Sequence[str], body: bytes, document: dict[str, Any]) -> int:
    told = os.memfd_create("tgpu-notice", os.MFD_CLOEXEC)
    try:
        os.write(told, body)
        os.lseek(told, 0, os.SEEK_SET)
        return os.posix_spawn(
            command[0],
            list(command),
            variables(document),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, told, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        )
    finally:
        os.close(told)


async def _ended(pid: int) -> int:
    """Wait for the end, and end what it has started. Who is waited for no more is killed."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(pid)
    over: asyncio.Future[int] = loop.create_future()

    def bury() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        # Before the burial: until then nobody else can have its number.
        _kill(pid)
        _, status = os.waitpid(pid, 0)
        if not over.done():
            over.set_result(status)

    # It stays when nobody waits: one that hangs in the kernel dies later than it is killed.
    loop.add_reader(handle, bury)
    try:
        return await over
    except asyncio.CancelledError:
        if not over.done() or over.cancelled():
            _kill(pid)
        raise


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
