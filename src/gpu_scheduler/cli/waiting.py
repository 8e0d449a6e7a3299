"""Wait for a job that was just submitted, and say meanwhile why it waits and until when."""

from __future__ import annotations

import sys
import time

from gpu_scheduler.model.errors import SchedulerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpu_scheduler.client.client import Client

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
    from gpu_scheduler.cli.explain import about
    from gpu_scheduler.cli.output import in_local_time

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
        from gpu_scheduler.cli.output import cut, visible
        from gpu_scheduler.cli.terminal import window

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
        from gpu_scheduler.cli.reach import warn

        self.clear()
        if not self._quiet:
            warn(text)

    def clear(self) -> None:
        """Take the line away."""
        if self._live and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._last = self._told = ""
