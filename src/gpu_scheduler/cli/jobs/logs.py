"""`tgpu logs`: the output of a job; with `-f` until the job ends, over all its attempts."""

from __future__ import annotations

import json
import sys
import time

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import one_reference
from gpu_scheduler.cli.jobs.wait import wait_until
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.requests import is_over
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, UnknownThing

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpu_scheduler.cli.jobs.wait import StatusLine
    from gpu_scheduler.client.client import Client

_PAUSE_S = 0.2
_LONGEST_OUTAGE_S = 60.0


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("job", metavar="JOB", help="12, 12_4, last, ...")
    add("-f", "--follow", action="store_true", help="follow the output until the job ends")
    add("-n", "--tail", type=whole("--tail"), metavar="N", help="only the last N lines")
    add("--attempt", type=whole("--attempt", least=1), metavar="N", help="only this attempt")
    add("--member", type=whole("--member"), metavar="N", help="one member of a gang; default 0")
    add("--all-members", action="store_true", help="all members, with [rank] before each line")
    add_server_options(parser, json=False)
    add("--json", action="store_true", help="print each line as a JSON object")


def run(args: Namespace) -> int:
    """Show the output."""
    with client_for(args) as client:
        reference = one_reference(client, args.job)
        query = {"attempt": args.attempt, "member": args.member, "tail": args.tail}
        if args.all_members:
            if args.member is not None:
                raise InvalidRequest("--all-members shows every member; leave out --member")
            query |= {"member": None, "merged": 1}
        lines = _JsonLines(str(reference)) if args.json else _Bytes()
        try:
            if args.follow and not args.attempt:
                written = _follow_all(client, str(reference), query, lines)
            elif args.follow:
                written = follow(client, str(reference), query, lines.write)
            else:
                written = _copy(client, str(reference), query, lines)
        finally:
            lines.end()
        if not written and args.tail != 0:
            _explain_empty(client, str(reference))
    return 0


def _follow_all(
    client: Client, job: str, query: dict[str, object], lines: _Bytes | _JsonLines
) -> int:
    """Copy this attempt and all later ones; returns the number of bytes."""
    from gpu_scheduler.cli.jobs.wait import StatusLine

    attempts = Attempts(
        client,
        job,
        StatusLine(quiet=False, hint="Ctrl-C stops following"),
        first=int(client.get(job).get("attempt") or 1),
        query=query,
        write=lines.write,
        between=lines.end,
    )
    attempts.copy_until_end()
    return attempts.copied


def _copy(client: Client, job: str, query: dict[str, object], lines: _Bytes | _JsonLines) -> int:
    """Copy the output so far; returns the number of bytes."""
    written = 0
    for piece in client.log_bytes(job, follow=False, **query):
        lines.write(piece)
        written += len(piece)
    return written


def _explain_empty(client: Client, job: str) -> None:
    """Print why a job that has not started, or could not start, has no output."""
    found = client.explain(job)
    if found.get("state") in {"pending", "preempted"}:
        warn(f"{job} has not started: {found.get('reason')}")
    elif found.get("state") == "failed":
        warn(f"{job} has no output: {found.get('reason')}")


class Follower:
    """Copies output to stdout and keeps its position, so that it can continue later."""

    def __init__(
        self,
        client: Client,
        job: str,
        query: dict[str, object],
        write: Callable[[bytes], None] | None = None,
    ) -> None:
        self._client = client
        self._write = _write if write is None else write
        self._job = job
        self._query = query
        self.copied = 0

    def copy(self) -> None:
        """Copy until the attempt ends; waits for a server that restarts.

        The merged output of several members has no position from which to continue.
        """
        answered = False
        can_continue = not self._query.get("merged")
        lost_at = 0.0
        while True:
            query = dict(self._query)
            if self.copied and query.get("tail") is None:
                query["offset"] = self.copied
            elif self.copied:
                # The position at which the tail began is unknown.
                warn(f"the connection broke; repeating the last lines of {self._job}")
            try:
                pieces = self._client.log_bytes(self._job, follow=True, **query)
                answered, lost_at = True, 0.0
                for piece in pieces:
                    self.copied += len(piece)
                    self._write(piece)
                return
            except ClusterError:
                # The server is down, or up and not yet connected to the node.
                lost_at = lost_at or time.monotonic()
                if (
                    not (answered and can_continue)
                    or time.monotonic() - lost_at > _LONGEST_OUTAGE_S
                ):
                    raise
                time.sleep(_PAUSE_S)


def follow(
    client: Client,
    job: str,
    query: dict[str, object],
    write: Callable[[bytes], None] | None = None,
) -> int:
    """Copy the output to stdout until the attempt ends; returns the number of bytes."""
    follower = Follower(client, job, query, write)
    follower.copy()
    return follower.copied


class _Bytes:
    """Writes output unchanged."""

    def write(self, piece: bytes) -> None:
        """Print it."""
        _write(piece)

    def end(self) -> None:
        """Nothing is buffered."""


class _JsonLines:
    """Prints one JSON object for each complete line."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._rest = b""

    def write(self, piece: bytes) -> None:
        """Print the lines that this completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._print(line)

    def end(self) -> None:
        """Print the last line, which has no newline."""
        if self._rest:
            self._print(self._rest)
        self._rest = b""

    def _print(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        # Plain ASCII, which every terminal can show.
        print(json.dumps({"job_id": self._job, "line": text}), flush=True)


def _write(piece: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


WAITING = ("pending", "preempted")


class Attempts:
    """Copies the output of attempt `first` and of every later one, until the job has ended.

    It keeps its position, so that it can continue after an interruption.
    """

    def __init__(
        self,
        client: Client,
        job: str,
        status: StatusLine,
        *,
        first: int = 1,
        query: Mapping[str, object] | None = None,
        write: Callable[[bytes], None] | None = None,
        between: Callable[[], None] | None = None,
    ) -> None:
        """`query` chooses the member; a tail in it applies to the first attempt only.

        `between` is called at the end of the output of each attempt.
        """
        self._client = client
        self._job = job
        self._status = status
        self._write = write
        self._between = between
        self._query = dict(query or {})
        self._number = first
        self._end_is_printed = False
        self._before = 0
        self._follower = self._follower_of(first)

    @property
    def copied(self) -> int:
        """Number of bytes copied."""
        return self._before + self._follower.copied

    def copy_until_end(self) -> Mapping[str, Any]:
        """Copy until the job has ended; returns the job."""
        while True:
            self._copy()
            found = self._wait_until(self._is_settled)
            if not is_over(found) or self._has_later_attempt(found):
                self._print_end()
                found = self._wait_until(lambda job: is_over(job) or self._has_later_attempt(job))
            if not self._has_later_attempt(found):
                return found
            self._begin(self._number + 1)

    def _follower_of(self, attempt: int) -> Follower:
        return Follower(self._client, self._job, self._query | {"attempt": attempt}, self._write)

    def _copy(self) -> None:
        """Copy this attempt; if its output is unavailable, go on with the next attempt."""
        try:
            self._follower.copy()
        except (ClusterError, UnknownThing) as error:
            if not self._is_past(self._client.get(self._job)):
                raise
            warn(f"{self._job}: {error}")
        if self._between is not None:
            self._between()

    def _wait_until(self, ready: Callable[[dict[str, Any]], bool]) -> Mapping[str, Any]:
        found = wait_until(ready, self._client, self._job, self._status)
        self._status.clear()
        return found

    def _print_end(self) -> None:
        if not self._end_is_printed:
            self._status.print(
                f"attempt {self._number} of {self._job} has ended; it will be retried"
            )
        self._end_is_printed = True

    def _begin(self, attempt: int) -> None:
        self._status.print(f"attempt {attempt} of {self._job} started")
        self._before += self._follower.copied
        self._query.pop("tail", None)
        self._number, self._end_is_printed = attempt, False
        self._follower = self._follower_of(attempt)

    def _is_settled(self, job: Mapping[str, Any]) -> bool:
        """Whether the server has decided what follows the end of this attempt."""
        return is_over(job) or self._is_past(job)

    def _is_past(self, job: Mapping[str, Any]) -> bool:
        """Whether this attempt has ended and another one has started or will start."""
        waits_again = job["state"] in WAITING and _attempt(job) == self._number
        return waits_again or self._has_later_attempt(job)

    def _has_later_attempt(self, job: Mapping[str, Any]) -> bool:
        return _attempt(job) > self._number


def _attempt(job: Mapping[str, Any]) -> int:
    return int(job.get("attempt") or 0)
