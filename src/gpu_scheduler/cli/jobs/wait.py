"""`tgpu wait`, and waiting for a job that was just submitted.

The exit code is that of the first job that failed.
"""

from __future__ import annotations

import sys
import time

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import references
from gpu_scheduler.cli.text.tables import print_json
from gpu_scheduler.cli.text.values import duration
from gpu_scheduler.client.requests import exit_code_of
from gpu_scheduler.model.errors import SchedulerError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable
    from typing import Any

    from gpu_scheduler.client.client import Client


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, last, @~1, all")
    add(
        "--timeout",
        type=duration("--timeout", plain="s"),
        metavar="TIME",
        help="give up after this time, with exit code 124; a plain number is seconds",
    )
    add("-q", "--quiet", action="store_true", help="print nothing")
    add_server_options(parser)


def run(args: Namespace) -> int:
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


_FIRST_POLL_S = 0.005
_LONGEST_POLL_S = 1.0
_QUIET_S = 0.5
"""A shorter wait shows no line."""


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
    when = f", expected start {start}" if start else ""
    reason = in_local_time(answer.get("reason") or "waiting for its turn")
    return f"{job} is pending{when}; {hint}; {reason}", reason


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
