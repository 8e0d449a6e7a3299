"""`tgpu logs`: the output of a job, as it is; with `-f` as it comes."""

from __future__ import annotations

import json
import sys
import time

from gpu_scheduler.cli.durations import whole
from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.references import one_reference
from gpu_scheduler.model.errors import ClusterError, InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from gpu_scheduler.client.client import Client

_PAUSE_S = 0.2
_LONGEST_ABSENCE_S = 60.0


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("job", metavar="JOB", help="12, 12_4, last, ...")
    add("-f", "--follow", action="store_true", help="go on until the job ends")
    add("-n", "--tail", type=whole("--tail"), metavar="N", help="only the last N lines")
    add("--attempt", type=whole("--attempt", least=1), metavar="N", help="of this attempt alone")
    add("--member", type=whole("--member"), metavar="N", help="one member of a gang; default 0")
    add("--all-members", action="store_true", help="all of them, with [rank] before each line")
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
            _say_why_empty(client, str(reference))
    return 0


def _follow_all(
    client: Client, job: str, query: dict[str, object], lines: _Bytes | _JsonLines
) -> int:
    """Copy this attempt and all that come after it; how many bytes there were."""
    from gpu_scheduler.cli.attempts import Attempts
    from gpu_scheduler.cli.waiting import Notes

    attempts = Attempts(
        client,
        job,
        Notes(quiet=False, hint="Ctrl-C leaves it alone"),
        first=int(client.get(job).get("attempt") or 1),
        query=query,
        write=lines.write,
        between=lines.end,
    )
    attempts.until_its_end()
    return attempts.copied


def _copy(client: Client, job: str, query: dict[str, object], lines: _Bytes | _JsonLines) -> int:
    """Copy what is there; how many bytes."""
    written = 0
    for piece in client.log_bytes(job, follow=False, **query):
        lines.write(piece)
        written += len(piece)
    return written


def _say_why_empty(client: Client, job: str) -> None:
    """A job that has not begun, or never could, has written nothing: say that, and why."""
    found = client.explain(job)
    if found.get("state") in {"pending", "preempted"}:
        warn(f"{job} has not started: {found.get('reason')}")
    elif found.get("state") == "failed":
        warn(f"{job} has written nothing: {found.get('reason')}")


class Follower:
    """Copies output to stdout, and knows how far it got, so that it can go on later."""

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
        """Copy until the attempt ends; a server that restarts is waited for.

        Lines of several members have no place in a log, at which one could go on.
        """
        answered = False
        can_go_on = not self._query.get("merged")
        lost_at = 0.0
        while True:
            query = dict(self._query)
            if self.copied and query.get("tail") is None:
                query["offset"] = self.copied
            elif self.copied:
                # Nobody knows where in the log its end began that was shown.
                warn(f"the connection broke; the last lines of {self._job} come again")
            try:
                pieces = self._client.log_bytes(self._job, follow=True, **query)
                answered, lost_at = True, 0.0
                for piece in pieces:
                    self.copied += len(piece)
                    self._write(piece)
                return
            except ClusterError:
                # Away, or back and not yet in touch with the node.
                lost_at = lost_at or time.monotonic()
                if not (answered and can_go_on) or time.monotonic() - lost_at > _LONGEST_ABSENCE_S:
                    raise
                time.sleep(_PAUSE_S)


def follow(
    client: Client,
    job: str,
    query: dict[str, object],
    write: Callable[[bytes], None] | None = None,
) -> int:
    """Copy the output to stdout until the attempt ends; how many bytes there were."""
    follower = Follower(client, job, query, write)
    follower.copy()
    return follower.copied


class _Bytes:
    """Bytes in, the same out."""

    def write(self, piece: bytes) -> None:
        """Print it."""
        _write(piece)

    def end(self) -> None:
        """Nothing is held back."""


class _JsonLines:
    """Bytes in, one object for each line out as soon as the line is complete."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._rest = b""

    def write(self, piece: bytes) -> None:
        """Print the lines that this completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._print(line)

    def end(self) -> None:
        """Print what is left, a line that nobody ended."""
        if self._rest:
            self._print(self._rest)
        self._rest = b""

    def _print(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        # Plain ASCII, whatever the terminal takes.
        print(json.dumps({"job_id": self._job, "line": text}), flush=True)


def _write(piece: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
