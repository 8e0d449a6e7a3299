"""`tgpu wait`: until jobs have ended. The exit code is that of the first job that failed."""

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
        help="give up after this, with exit code 124; a plain number is seconds",
    )
    add("-q", "--quiet", action="store_true", help="print nothing")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Wait for the ends of jobs, and say how the first bad one ended."""
    with client_for(args) as client:
        names = [str(reference) for reference in references(client, args.jobs)]
        if not names and not args.quiet:
            warn("no job of yours waits or runs, so there is nothing to wait for")
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
    """Wait for each; the first exit code that is not 0."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    code = 0
    for name in names:
        left = None if end is None else max(0.0, end - time.monotonic())
        job = client.wait(name, left)
        code = code or exit_code_of(job)
        if ended is not None:
            ended.append(job)
    return code


# --- Wait for a job that was just submitted, and say meanwhile why it waits and until when.

_FIRST_LOOK_S = 0.005
_LATE_LOOK_S = 1.0
_PATIENCE_S = 0.5
"""A wait that is shorter than this is not worth a word."""


def wait_until(
    ready: Callable[[dict[str, Any]], bool], client: Client, job: str, notes: Notes
) -> dict[str, Any]:
    """The job as the server describes it, once it is ready."""
    began = time.monotonic()
    pause_s = _FIRST_LOOK_S
    while True:
        try:
            found = client.get(job)
            if ready(found):
                return found
            if found["state"] == "pending" and time.monotonic() - began > _PATIENCE_S:
                notes.show(*_why(client, job, notes.hint))
        except SchedulerError as error:
            if client.connection.address is None:
                raise
            notes.show(f"{job}: {error}; trying again")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LATE_LOOK_S)


def _why(client: Client, job: str, hint: str) -> tuple[str, str]:
    """The line, and the part of it that does not change by itself."""
    from gpu_scheduler.cli.jobs.explain import about
    from gpu_scheduler.cli.text.tables import in_local_time

    answer = client.explain(job)
    start = about(answer, time.time()).removeprefix("about ")
    when = f" until about {start}" if answer.get("expected_start") else ""
    when = f", until when is {start}" if answer.get("start_unknown") else when
    reason = in_local_time(answer.get("reason") or "its turn comes")
    return f"{job} waits{when}; {hint}; {reason}", reason


class Notes:
    """One line on stderr that is written over; in a pipe, a line when there is something new.

    The time that is left is new every second: a log of a long wait would hold little else.
    """

    def __init__(self, *, quiet: bool, hint: str) -> None:
        """The hint says what Ctrl-C does."""
        self.hint = hint
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._last = self._told = ""

    def show(self, text: str, news: str = "") -> None:
        """The latest; `news` is what must differ for a line in a pipe, else the whole text."""
        from gpu_scheduler.cli.interactive.terminal import window
        from gpu_scheduler.cli.text.tables import cut, visible

        line = f"tgpu: {visible(text)}"
        news = news or line
        if self._quiet or (line == self._last if self._live else news == self._told):
            return
        self._last, self._told = line, news
        if self._live:
            line = f"\r\x1b[K{cut(line, max(20, window()[1] - 1))}"
        print(line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """A line that stays."""
        from gpu_scheduler.cli.connection import warn

        self.clear()
        if not self._quiet:
            warn(text)

    def clear(self) -> None:
        """Take the line away."""
        if self._live and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._last = self._told = ""
