"""`tgpu wait` and `tgpu logs`: wait until jobs start or end, and copy their output.

The exit code of `wait` is that of the first job that failed. `logs` shows the output of a job; with
`-f` until the job ends, over all its attempts.
"""

from __future__ import annotations

import json
import sys
import time

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import one_reference, references
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import print_json
from gpu_scheduler.cli.text.values import positive, seconds, whole
from gpu_scheduler.client.requests import exit_code_of, is_over
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, SchedulerError, UnknownThing

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from gpu_scheduler.client.client import Client

WAITING = ("pending", "preempted")
_FIRST_POLL_S = 0.005
_LONGEST_POLL_S = 1.0
_QUIET_S = 0.5
"""A shorter wait shows no line."""
_PAUSE_S = 0.2
_LONGEST_OUTAGE_S = 60.0


# Waiting


def register_wait(parser: ArgumentParser) -> None:
    """Add the options of `tgpu wait`."""
    add = Options(parser)
    add.word("jobs", "JOB", "12, 1-3,7, 12_4, last, @~1, all", nargs="+")
    timeout = "give up after this time, with exit code 124; a plain number is seconds"
    add.value("--timeout", seconds, "TIME", timeout)
    add.flag("-q --quiet", "print nothing")
    add_server_options(parser)


def run_wait(args: Namespace) -> int:
    """Wait until the jobs have ended, and print how each did."""
    with client_for(args) as client:
        names = [str(reference) for reference in references(client, args.jobs)]
        if not names and not args.quiet:
            warn("you have no pending or running jobs to wait for")
        ended: list[dict[str, Any]] = []
        code = wait_for_all(client, names, args.timeout, None if args.quiet else ended)
    if args.json:
        print_json(ended)
    else:
        for job in ended:
            print(f"{job['id']} {job['state']} {exit_code_of(job)}")
    return code


def wait_for_all(
    client: Client,
    names: Iterable[str],
    timeout_s: float | None,
    ended: list[dict[str, Any]] | None = None,
) -> int:
    """Wait for each job, add it to `ended`, and return the first exit code that is not 0."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    code = 0
    for name in names:
        left = None if end is None else max(0.0, end - time.monotonic())
        job = client.wait(name, left)
        code = code or exit_code_of(job)
        if ended is not None:
            ended.append(job)
    return code


def wait_until(
    ready: Callable[[dict[str, Any]], bool], client: Client, job: str, status: StatusLine
) -> dict[str, Any]:
    """Poll until the job is ready, showing meanwhile why it waits; returns the job."""
    began = time.monotonic()
    pause_s = _FIRST_POLL_S
    while True:
        try:
            found = client.get(job)
            if ready(found):
                return found
            if found["state"] == "pending" and time.monotonic() - began > _QUIET_S:
                status.show(*_wait_text(client, job, status.hint))
        except SchedulerError as error:
            if client.connection.address is None:
                raise
            status.show(f"{job}: {error}; retrying")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)


def _wait_text(client: Client, job: str, hint: str) -> tuple[str, str]:
    """The line, and the part of it that does not change with time."""
    from gpu_scheduler.cli.jobs.show import expected_start_text
    from gpu_scheduler.cli.text.tables import in_local_time

    answer = client.explain(job)
    start = expected_start_text(answer, time.time())
    when = f"expected start {start}; " if start else ""
    reason = in_local_time(answer.get("reason") or "waiting for its turn")
    return f"{job} is pending; {hint}; {when}{reason}", reason  # a terminal may cut the end


class StatusLine:
    """One line on stderr that is overwritten; in a pipe, one line for each change.

    The remaining time changes every second, so in a pipe it alone makes no new line.
    """

    def __init__(self, *, quiet: bool, hint: str) -> None:
        """The hint says what Ctrl-C does."""
        self.hint = hint
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._last = self._last_change = ""

    def show(self, text: str, change: str = "") -> None:
        """Show the text; in a pipe only if `change`, by default the whole text, is new."""
        from gpu_scheduler.cli.interactive.terminal import window_size
        from gpu_scheduler.cli.text.tables import cut, visible

        line = f"tgpu: {visible(text)}"
        change = change or line
        if self._quiet or (line == self._last if self._live else change == self._last_change):
            return
        self._last, self._last_change = line, change
        if self._live:
            line = f"\r\x1b[K{cut(line, max(20, window_size()[1] - 1))}"
        print(line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        if not self._quiet:
            warn(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._live and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._last = self._last_change = ""


# Output


def register_logs(parser: ArgumentParser) -> None:
    """Add the options of `tgpu logs`."""
    add = Options(parser)
    add.word("job", "JOB", "12, 12_4, last, ...")
    add.flag("-f --follow", "follow the output until the job ends")
    add.value("-n --tail", whole, "N", "only the last N lines")
    add.value("--attempt", positive, "N", "only this attempt")
    add.value("--member", whole, "N", "one member of a gang; default 0")
    add.flag("--all-members", "all members, with [rank] before each line")
    add_server_options(parser, json=False)
    add.flag("--json", "print each line as a JSON object")


def run_logs(args: Namespace) -> int:
    """Show the output."""
    with client_for(args) as client:
        job = str(one_reference(client, args.job))
        query = {"attempt": args.attempt, "member": args.member, "tail": args.tail}
        if args.all_members:
            if args.member is not None:
                raise InvalidRequest("--all-members shows every member; leave out --member")
            query |= {"member": None, "merged": 1}
        lines = _JsonLines(job) if args.json else _Bytes()
        try:
            if args.follow and not args.attempt:
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
                copied = attempts.copied
            elif args.follow:
                copied = follow(client, job, query, lines.write)
            else:
                copied = 0
                for piece in client.log_bytes(job, follow=False, **query):
                    lines.write(piece)
                    copied += len(piece)
        finally:
            lines.end()
        if not copied and args.tail != 0:
            # A job that has not started, or could not start, has no output.
            answer = client.explain(job)
            if answer.get("state") in WAITING:
                warn(f"{job} has not started: {answer.get('reason')}")
            elif answer.get("state") == "failed":
                warn(f"{job} has no output: {answer.get('reason')}")
    return 0


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
