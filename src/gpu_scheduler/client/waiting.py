"""Waiting for a job: an event triggers a request for the job's state, which decides.

The event stream is opened before the state is requested, so no end can be missed in between. The
wait continues while a server is unavailable; without an event stream, the state is polled.

A program that loaded the client before an upgrade imports this module late, with the modules of the
old version beside it.
"""

from __future__ import annotations

import json
import time

from gpu_scheduler.client.errors import TimedOut, Unreadable
from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.requests import API, is_over, job_id
from gpu_scheduler.client.websocket import Frames, accept_of, handshake_headers, new_key
from gpu_scheduler.model.errors import ClusterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any, Self

    from gpu_scheduler.client.client import Client
    from gpu_scheduler.client.connection import Connection
    from gpu_scheduler.client.fields import Job

FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
POLL_INTERVAL_S = 15.0
"""The state of a job is requested again after this time even without an event."""
_PIECE = 1 << 16


class EventStream:
    """The event stream of a server."""

    def __init__(self, connected: _socket.socket, frames: Frames) -> None:
        self._socket = connected
        self._frames = frames
        self._waiting: list[bytes] = list(frames.feed(b""))

    @classmethod
    def open(cls, connection: Connection, after: int | None = None) -> Self | None:
        """Open the stream; None if the server does not offer one."""
        key = new_key()
        path = target(f"{API}/events", {"after": after})
        answer, connected, _ = connection.upgrade(path, handshake_headers(key))
        if connected is None:
            return None
        if answer.headers.get("sec-websocket-accept") != accept_of(key):
            connected.close()
            return None
        return cls(connected, Frames(answer.rest))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next event; None if the server closed the stream. Raises `TimeoutError`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._waiting:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(_PIECE)
            except OSError as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise
                # A TimeoutError with an errno comes from the kernel: the peer is gone.
                raise Unreadable(f"the connection to the server was lost: {error}") from error
            if not data or self._frames.closed:
                return None
            self._waiting.extend(self._frames.feed(data))
            self._answer_pings()
        event: dict[str, Any] = json.loads(self._waiting.pop(0))
        return event

    def _answer_pings(self) -> None:
        if not self._frames.reply:
            return
        try:
            self._socket.sendall(bytes(self._frames.reply))
        except OSError as error:
            raise Unreadable(f"the connection to the server was lost: {error}") from error
        self._frames.reply.clear()


def wait_for(client: Client, job: str | int, timeout_s: float | None) -> Job:
    """Wait until the job has ended; raises `TimedOut` after `timeout_s`."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            ended = _watch(client, job, end)
        except ClusterError as error:
            # The server was restarted or lost: jobs survive that, so the wait continues, unless the
            # server never answered.
            is_late = isinstance(error, TimedOut) and end is not None and time.monotonic() >= end
            if client.connection.address is None or is_late:
                raise
            ended = None
        if ended is not None:
            return ended
        _check_time(job, end)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _watch(client: Client, job: str | int, end: float | None) -> Job | None:
    """Return the job once it has ended; None if the stream ended or there is none."""
    current = client.get(job)
    if is_over(current):
        return current
    stream = EventStream.open(client.connection)
    if stream is None:
        return None
    names = {job_id(job), job_id(job).partition("_")[0]}
    with stream:
        while True:
            current = client.get(job)
            if is_over(current):
                return current
            if not _await_event(stream, names, job, end):
                return None


def _await_event(stream: EventStream, names: set[str], job: str | int, end: float | None) -> bool:
    """Wait for an event of the job; returns False if the stream has ended."""
    quiet_until = time.monotonic() + POLL_INTERVAL_S
    while True:
        _check_time(job, end)
        limit = quiet_until if end is None else min(quiet_until, end)
        try:
            event = stream.next(max(0.0, limit - time.monotonic()))
        except TimeoutError:
            _check_time(job, end)
            return True
        if event is None:
            return False
        if event.get("job_id") in names:
            return True


def _check_time(job: str | int, end: float | None) -> None:
    if end is not None and time.monotonic() >= end:
        raise TimedOut(f"{job_id(job)} has not ended within the time limit")
