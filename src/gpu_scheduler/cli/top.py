"""`tgpu top`: GPUs and the queue, live; with `--once` one picture for a pipe.

One request for each look, and it brings only the jobs that have room on the screen.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli import top_state
from gpu_scheduler.cli.durations import duration
from gpu_scheduler.cli.output import has_colour, in_local_time, is_terminal, print_json
from gpu_scheduler.cli.reach import add_server_options, client_for
from gpu_scheduler.cli.top_state import State
from gpu_scheduler.client.forms import API
from gpu_scheduler.client.http1 import target
from gpu_scheduler.model.errors import SchedulerError

if TYPE_CHECKING:
    from gpu_scheduler.cli.screen import Screen
    from gpu_scheduler.client.client import Client

PIPE_COLUMNS = 120
PIPE_ROWS = 100
LOG_LINES = 500
_QUIT = ("quit", "")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        *("-i", "--interval"),
        type=duration("--interval", plain="s"),
        default=2.0,
        metavar="TIME",
        help="how often to look; default 2 s",
    )
    add("--once", action="store_true", help="print one picture and end")
    add("--sort", choices=top_state.SORTS, default="queue", help="what to sort the jobs by")
    add("--filter", metavar="WORDS", default="", help="only jobs in which all words occur")
    add("-u", "--user", metavar="NAME", default="", help="only jobs of this user")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Show it, once or live."""
    state = State(
        interval_s=max(top_state.FASTEST_S, args.interval),
        sort=args.sort,
        filter=args.filter,
        user=args.user,
        me="@me",
    )
    with client_for(args) as client:
        if args.json:
            state.page = PIPE_ROWS
            print_json(look(client, state))
            return 0
        if args.once or not is_terminal() or not sys.stdin.isatty():
            return _once(client, state)
        return _live(client, state)


def look(client: Client, state: State) -> dict[str, Any]:
    """The picture as it is now, with the selected job in its window."""
    picture: dict[str, Any] = client.call("GET", target(f"{API}/overview", state.query()))
    if state.take(picture):
        picture = client.call("GET", target(f"{API}/overview", state.query()))
        state.take(picture)
    return picture


def _once(client: Client, state: State) -> int:
    from gpu_scheduler.cli.top_view import Painter, frame

    state.page = PIPE_ROWS
    picture = look(client, state)
    state.selected = ""
    columns = _columns()
    painter = Painter(columns, colours=has_colour(), signs=_has_signs())
    if not is_terminal():
        painter.plain()
    rows = len(picture["gpus"]) + len(picture["jobs"]) + 30
    lines = frame(picture, state, painter, rows)[:-1]
    while lines and not lines[-1]:
        lines.pop()
    print("\n".join(lines))
    hidden = picture["total"] - len(picture["jobs"])
    if hidden > 0:
        print(f"and {hidden:,} more")
    return 0


def _columns() -> int:
    if is_terminal():
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and 20 <= int(given) <= 1000 else PIPE_COLUMNS


def _has_signs() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _live(client: Client, state: State) -> int:
    from gpu_scheduler.cli.screen import Screen
    from gpu_scheduler.cli.terminal import Ended

    # Before the screen is taken: without a server there is only an error to show.
    picture = look(client, state)
    try:
        with Screen() as screen:
            Top(client, state, screen, picture).run()
    except KeyboardInterrupt:
        return 0
    except Ended as ended:
        return 128 + ended.number
    return 0


class Top:
    """The loop: look, draw, wait for a key."""

    def __init__(
        self, client: Client, state: State, screen: Screen, picture: dict[str, Any]
    ) -> None:
        """The first picture is there already."""
        self._client = client
        self._state = state
        self._screen = screen
        self._picture = picture
        self._problem = ""
        self._colours = has_colour()
        self._signs = _has_signs()
        self._page = 0

    def run(self) -> None:
        """Until the person leaves."""
        look_at = 0.0
        while True:
            if time.monotonic() >= look_at:
                self._look()
                look_at = time.monotonic() + self._state.interval_s
            self._draw()
            keys = self._screen.keys(look_at - time.monotonic())
            for key in keys:
                wish = self._state.press(key)
                if wish == _QUIT:
                    return
                if wish is not None:
                    self._fulfil(*wish)
                    look_at = 0.0

    def _look(self) -> None:
        state = self._state
        try:
            if state.mode == top_state.LOGS:
                self._read_log(state.selected)
                return
            self._picture = look(self._client, state)
            self._problem = ""
        except SchedulerError as error:
            self._problem = f"trying again: {error}"

    def _draw(self) -> None:
        from gpu_scheduler.cli.top_view import Painter, frame

        rows, columns = self._screen.size
        painter = Painter(columns, colours=self._colours, signs=self._signs)
        state = self._state
        lines = frame(self._picture, state, painter, rows, self._problem)
        if state.mode == top_state.LIST and state.page != self._page:
            # The window has another size than the one that was asked for.
            self._page = state.page
            self._look()
            lines = frame(self._picture, state, painter, rows, self._problem)
        self._screen.draw(lines)

    def _fulfil(self, wish: str, job: str) -> None:
        state = self._state
        try:
            if wish == "redraw":
                self._screen.clear()
            elif wish == "cancel":
                self._client.cancel(job)
                state.message = f"{job} is being cancelled"
            elif wish == "hold":
                self._client.hold(job)
                state.message = f"{job} is held"
            elif wish == "release":
                self._client.release(job)
                state.message = f"{job} is released"
            elif wish == top_state.LOGS:
                self._read_log(job)
            elif wish == top_state.EXPLAIN:
                self._explain(job)
        except SchedulerError as error:
            state.mode = top_state.LIST
            state.message = str(error)

    def _read_log(self, job: str) -> None:
        pieces = self._client.log_bytes(job, tail=LOG_LINES)
        text = b"".join(pieces).decode("utf-8", "replace")
        self._state.text = text.split("\n")
        if not self._state.text[-1]:
            self._state.text.pop()
        if not self._state.text:
            self._state.text = ["nothing yet"]

    def _explain(self, job: str) -> None:
        from gpu_scheduler.cli.explain import about, end_text

        found = self._client.get(job)
        answer = self._client.explain(job)
        now = time.time()
        position = answer.get("position")
        pairs = [
            ("state", str(answer.get("state") or "")),
            ("why", in_local_time(str(answer.get("reason") or ""))),
            ("place in line", "" if position is None else str(position)),
            ("expected start", about(answer, now)),
            ("expected end", end_text(answer, now)),
            ("name", str(found.get("name") or "")),
            ("user", f"{found.get('user')} in {found.get('tenant_id')}"),
            ("GPUs", f"{found.get('gpu_count') or 0:g}"),
            ("priority", str(found.get("priority") or "")),
            ("command", " ".join(map(str, found.get("command") or []))),
            ("directory", str(found.get("working_directory") or "")),
        ]
        width = max(len(name) for name, _ in pairs)
        self._state.text = [f"  {name:<{width}}  {value}" for name, value in pairs if value]
