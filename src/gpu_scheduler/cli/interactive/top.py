"""`tgpu top`: GPUs and the queue, live; with `--once` one view for a pipe.

`State` holds what is shown and turns keys into actions; it does no I/O. `Screen` is the terminal:
keys in, lines out. `Top` runs the loop: fetch an overview from the server, draw it, wait for a key,
perform the action. Each refresh is one request for the jobs that fit on the screen.
`top_rendering` renders the lines.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import ME, add_kube_options, add_server_options, client_for
from gpu_scheduler.cli.interactive.terminal import Ended, raise_ended, window_size
from gpu_scheduler.cli.interactive.top_panels import History
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import has_colour, in_local_time, is_terminal, print_json
from gpu_scheduler.cli.text.values import seconds
from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.intervals import IntervalSet

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

SORTS = ("queue", "time", "user", "name", "gpus", "priority", "number", "state")
LIST, FILTER, CONFIRM, LOGS, EXPLAIN, HELP = "list", "filter", "confirm", "logs", "explain", "help"
REFRESH = ("refresh", "")
"""The action that fetches the list again."""
FASTEST_S, SLOWEST_S = 0.5, 60.0

Action = tuple[str, str]
"""The name of the action, such as quit, refresh or cancel, and the id of its job."""


@dataclass(slots=True)
class State:
    """What the user sees and has selected. `page` is the number of jobs that fit on the screen.

    In a large window, `preview` is the end of the selected job's output, on `preview_rows` lines.
    """

    interval_s: float = 2.0
    sort: str = "queue"
    reverse: bool = False
    filter: str = ""
    user: str = ""
    me: str = ""
    mode: str = LIST
    offset: int = 0
    page: int = 10
    total: int = 0
    selected: str = ""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    typed: str = ""
    text: list[str] = field(default_factory=list)
    text_offset: int = 0
    follows: bool = True
    message: str = ""
    preview: list[str] = field(default_factory=list)
    preview_rows: int = 0
    history: History = field(default_factory=History)

    def query(self) -> dict[str, object]:
        """The query for the overview."""
        return {
            "sort": ("-" if self.reverse else "") + self.sort,
            "filter": self.filter or None,
            "user": self.user or None,
            "limit": self.page,
            "offset": self.offset,
            "find": self.selected or None,
        }

    def update(self, overview: dict[str, Any]) -> bool:
        """Take over the server's answer. True if the selected job has moved out of the window."""
        self.jobs = overview["jobs"]
        self.total = overview["total"]
        self.offset = overview["offset"]
        place = overview.get("found")
        if any(job["id"] == self.selected for job in self.jobs):
            return False
        if self.selected and place is not None:
            self.offset = max(0, min(place - self.page // 2, self.total - self.page))
            return True
        # The job has ended: select the one that is now in its row.
        self.selected = self.jobs[min(self._row, len(self.jobs) - 1)]["id"] if self.jobs else ""
        return False

    @property
    def job(self) -> dict[str, Any] | None:
        """The selected job, if it is in the window."""
        return next((job for job in self.jobs if job["id"] == self.selected), None)

    @property
    def row(self) -> int:
        """The row of the selected job in the window; -1 if it is not there."""
        return next((i for i, job in enumerate(self.jobs) if job["id"] == self.selected), -1)

    _row: int = 0

    def press(self, key: str) -> Action | None:
        """The action for a key in the current mode, if any."""
        self._row = max(0, self.row)
        if key == "redraw":
            return ("redraw", "")
        if self.mode == FILTER:
            return self._press_in_filter(key)
        self.message = ""
        if self.mode == CONFIRM:
            return self._press_in_confirm(key)
        if self.mode in (LOGS, EXPLAIN, HELP):
            return self._press_in_text(key)
        if key in _MOVES:
            return self._move(_MOVES[key])
        if key in _JOB_KEYS:
            return self._job_action(_JOB_KEYS[key])
        return self._change_view(key)

    def _change_view(self, key: str) -> Action | None:
        if key in ("q", "Q"):
            return ("quit", "")
        if key == "?":
            self.mode = HELP
            self.text_offset = 0
        elif key == "/":
            self.mode, self.typed = FILTER, self.filter
        elif key in ("s", "S"):
            step = 1 if key == "s" else -1
            self.sort = SORTS[(SORTS.index(self.sort) + step) % len(SORTS)]
            return REFRESH
        elif key == "R":
            self.reverse = not self.reverse
            return REFRESH
        elif key == "u":
            self.user = "" if self.user else self.me
            self.offset = 0
            return REFRESH
        elif key == "escape" and (self.filter or self.user):
            self.filter = self.user = ""
            return REFRESH
        elif key in ("+", "-"):
            factor = 0.5 if key == "+" else 2.0
            self.interval_s = min(SLOWEST_S, max(FASTEST_S, self.interval_s * factor))
            self.message = f"refreshing every {self.interval_s:g} s"
        elif key == " ":
            return REFRESH
        return None

    def _job_action(self, action: str) -> Action | None:
        job = self.job
        if job is None:
            self.message = "no job is selected"
            return None
        if action in ("cancel", "hold", "release") and not job.get("may_change"):
            self.message = f"{job['id']} belongs to {job['user']}"
            return None
        if action == "cancel":
            self.mode = CONFIRM
            return None
        if action in (LOGS, EXPLAIN):
            self.mode, self.text, self.text_offset, self.follows = action, [], 0, True
        return (action, job["id"])

    def _move(self, step: tuple[str, int]) -> Action | None:
        kind, sign = step
        place = self.offset + max(0, self.row)
        if kind == "line":
            place += sign
        elif kind == "page":
            place += sign * max(1, self.page - 1)
        else:
            place = 0 if sign < 0 else self.total - 1
        place = max(0, min(place, self.total - 1))
        if self.offset <= place < self.offset + len(self.jobs):
            self.selected = self.jobs[place - self.offset]["id"]
            return None
        # Beyond the window: scroll, and select the job at that position.
        self.offset = max(0, place if place < self.offset else place - self.page + 1)
        self.selected = ""
        self._row = place - self.offset
        return REFRESH

    def _press_in_filter(self, key: str) -> Action | None:
        if key == "escape":
            self.mode = LIST
        elif key == "enter":
            self.mode = LIST
            self.filter = self.typed.strip()
            self.offset = 0
            return REFRESH
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1:
            self.typed += key
        return None

    def _press_in_confirm(self, key: str) -> Action | None:
        """Only `y` confirms."""
        self.mode = LIST
        if key in ("y", "Y"):
            return ("cancel", self.selected)
        self.message = "not cancelled"
        return None

    def _press_in_text(self, key: str) -> Action | None:
        if key in ("q", "Q", "escape", "left", "?", "l", "e", "enter"):
            self.mode = LIST
            return REFRESH
        move = _MOVES.get(key)
        if move is not None:
            kind, sign = move
            steps = {"line": 1, "page": max(1, self.page - 1)}
            step = steps.get(kind, 1 << 30) * sign
            self.text_offset = max(0, self.text_offset + step)
            self.follows = key in ("G", "end")
        elif key == "c":
            self.mode = LIST
            return self._job_action("cancel")
        return None


_MOVES = {
    "up": ("line", -1),
    "k": ("line", -1),
    "down": ("line", 1),
    "j": ("line", 1),
    "page-up": ("page", -1),
    "page-down": ("page", 1),
    "home": ("all", -1),
    "g": ("all", -1),
    "end": ("all", 1),
    "G": ("all", 1),
}
_JOB_KEYS = {
    "c": "cancel",
    "x": "cancel",
    "h": "hold",
    "r": "release",
    "l": LOGS,
    "e": EXPLAIN,
    "enter": EXPLAIN,
}
HELP_LINES = (
    ("Down Up  j k", "select a job; PgUp, PgDn, g, G move further"),
    ("s  S", "sort by queue, time, user, name, gpus, priority, number, state"),
    ("R", "reverse the order"),
    ("/", "show only jobs with all these words in id, user, state or name"),
    ("u", "show only your own jobs, or all"),
    ("Esc", "show all jobs again"),
    ("e  Enter", "explain why the job is pending, and when it should start"),
    ("l", "show the output of the job"),
    ("c", "cancel the job, after a confirmation"),
    ("h  r", "hold a pending job, release it"),
    ("+  -", "refresh more often, less often"),
    ("Space", "refresh now"),
    ("q", "quit"),
)


_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ESCAPE_S = 0.05
"""Bytes that follow an Escape within this time belong to it: slow connections split key codes."""
KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[C": "right",
    b"\x1bOC": "right",
    b"\x1b[D": "left",
    b"\x1bOD": "left",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1bOH": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1bOF": "end",
    b"\x1bOP": "?",
    b"\x1b[11~": "?",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x0c": "redraw",
    b"\x02": "page-up",
    b"\x06": "page-down",
    b"\x04": "q",
}
PIPE_COLUMNS = 120
PIPE_ROWS = 100
LOG_LINES = 500
_QUIT = ("quit", "")
_DONE = {"cancel": "is being cancelled", "hold": "is held", "release": "is released"}
"""Requests about a job, and what is shown when they succeeded."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = Options(parser)
    often = "how often to refresh; default 2 s"
    add.value("-i --interval", seconds, "TIME", often, default=2.0)
    add.flag("--once", "print once and exit")
    add.choice("--sort", SORTS, "sort the jobs by this", default="queue")
    add.value("--filter", None, "WORDS", "only jobs with all these words", default="")
    add.value("-u --user", None, "NAME", "only jobs of this user", default="")
    add_kube_options(parser)
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Show the overview, once or live."""
    state = State(
        interval_s=max(FASTEST_S, args.interval),
        sort=args.sort,
        filter=args.filter,
        user=args.user,
        me=ME,
    )
    with client_for(args) as client:
        if args.json:
            state.page = PIPE_ROWS
            print_json(fetch(client, state))
            return 0
        if args.once or not is_terminal() or not sys.stdin.isatty():
            return _once(client, state)
        # Before the screen is entered: without a server there is only an error to show.
        overview = fetch(client, state)
        address = None if args.kube else client.connection.address
        is_local = address is not None and bool(address.path)
        try:
            with Screen() as screen:
                Top(client, state, screen, overview, is_local=is_local).run()
        except KeyboardInterrupt:
            return 0
        except Ended as ended:
            return 128 + ended.number
    return 0


def fetch(client: Client, state: State) -> dict[str, Any]:
    """The current overview, with the selected job in the window."""
    overview: dict[str, Any] = client.call("GET", target(f"{API}/overview", state.query()))
    if state.update(overview):
        overview = client.call("GET", target(f"{API}/overview", state.query()))
        state.update(overview)
    return overview


def _once(client: Client, state: State) -> int:
    from gpu_scheduler.cli.interactive.top_rendering import LineFormatter, frame

    state.page = PIPE_ROWS
    overview = fetch(client, state)
    state.selected = ""
    columns, given = PIPE_COLUMNS, os.environ.get("COLUMNS", "")
    if is_terminal():
        columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    elif given.isdecimal() and 20 <= int(given) <= 1000:
        columns = int(given)
    formatter = LineFormatter(
        columns, colours=has_colour(), unicode=_has_unicode(), styles=is_terminal()
    )
    rows = len(overview["gpus"]) + len(overview["jobs"]) + 30
    lines = frame(overview, state, formatter, rows)[:-1]
    while lines and not lines[-1]:
        lines.pop()
    print("\n".join(lines))
    hidden = overview["total"] - len(overview["jobs"])
    if hidden > 0:
        print(f"and {hidden:,} more")
    return 0


def _has_unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


class Screen:
    """A context manager. `keys` waits for input, `draw` shows lines.

    Only changed lines are written, which is fast over slow connections. SIGTERM and SIGHUP raise
    `Ended`, Ctrl-Z restores the terminal until `fg`, and a change of the window size is seen at
    once.
    """

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wake, self._note = os.pipe()

    def __enter__(self) -> Screen:
        for descriptor in (self._wake, self._note):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._note, warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGTERM, raise_ended),
            (signal.SIGHUP, raise_ended),
            (signal.SIGTSTP, self._suspend),
            (signal.SIGCONT, lambda *_: self._enter()),
            (signal.SIGWINCH, lambda *_: self.clear()),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._before = termios.tcgetattr(0)
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake)
        os.close(self._note)

    def keys(self, wait_s: float) -> list[str]:
        """The keys that were pressed; empty after `wait_s`, or when the window size changed."""
        ready, _, _ = select.select([0, self._wake], [], [], max(0.0, wait_s))
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if 0 not in ready:
            return []
        data = os.read(0, 1024)
        if not data:
            raise Ended(signal.SIGHUP)
        if data.endswith(b"\x1b") and select.select([0], [], [], _ESCAPE_S)[0]:
            data += os.read(0, 1024)
        return list(split_keys(data))

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, one for each row of the window."""
        parts = []
        for row, line in enumerate(lines):
            if row >= len(self._shown) or self._shown[row] != line:
                parts.append(f"\x1b[{row + 1};1H\x1b[2K{line}\x1b[0m")
        if len(lines) < len(self._shown):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        if parts:
            _write("".join(parts).encode(sys.stdout.encoding or "utf-8", "replace"))
        self._shown = list(lines)

    def clear(self) -> None:
        """Clear the screen; the next `draw` writes all lines."""
        self._shown = []
        _write(b"\x1b[2J")

    def _enter(self) -> None:
        tty.setcbreak(0, termios.TCSADRAIN)
        _write(_ENTER)
        self._shown = []

    def _restore(self) -> None:
        _write(_LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._restore()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # The process is stopped here until SIGCONT.
        signal.signal(number, self._suspend)


def split_keys(data: bytes) -> Iterator[str]:
    """Key codes and characters, by name."""
    place = 0
    while place < len(data):
        code = next(
            (data[place : place + n] for n in (5, 4, 3) if data[place : place + n] in KEYS), b""
        )
        if not code and data[place : place + 1] == b"\x1b" and place + 1 < len(data):
            # An unknown key: skip the whole sequence.
            place += 2
            if data[place - 1 : place] in (b"[", b"O"):
                while place < len(data) and not 0x40 <= data[place] <= 0x7E:
                    place += 1
                place += 1
            continue
        if not code:
            # One character in UTF-8.
            first = data[place]
            length = 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
            code = data[place : place + length]
        place += len(code)
        named = KEYS.get(code)
        text = named or code.decode("utf-8", "ignore")
        if text and (named or text.isprintable()):
            yield text


def _write(data: bytes) -> None:
    """Write all data; a closed terminal is ignored."""
    with contextlib.suppress(OSError):
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


class Top:
    """The loop: fetch, draw, wait for a key."""

    def __init__(
        self,
        client: Client,
        state: State,
        screen: Screen,
        overview: dict[str, Any],
        *,
        is_local: bool,
    ) -> None:
        """`overview` is the first one to draw; with `is_local` the server runs on this host."""
        self._client = client
        self._state = state
        self._screen = screen
        self._overview = overview
        self._problem = ""
        self._colours = has_colour()
        self._unicode = _has_unicode()
        self._page = 0
        self._is_local = is_local and overview["nodes"] == 1

    def run(self) -> None:
        """Run until the user quits."""
        refresh_at = 0.0
        while True:
            if time.monotonic() >= refresh_at:
                self._refresh()
                self._state.history.add(self._overview, is_local=self._is_local)
                refresh_at = time.monotonic() + self._state.interval_s
            self._draw()
            keys = self._screen.keys(refresh_at - time.monotonic())
            for key in keys:
                action = self._state.press(key)
                if action == _QUIT:
                    return
                if action is not None:
                    self._perform(*action)
                    refresh_at = 0.0

    def _refresh(self) -> None:
        state = self._state
        try:
            if state.mode == LOGS:
                self._read_log(state.selected)
                return
            self._overview = fetch(self._client, state)
            self._problem = ""
        except SchedulerError as error:
            self._problem = f"retrying: {error}"
            return
        self._preview()

    def _preview(self) -> None:
        """Read the end of the selected job's output, if the window has room for it."""
        state = self._state
        job = state.job
        state.preview = []
        if not state.preview_rows or job is None:
            return
        if job["state"] not in ("running", "scheduled") and not job.get("started_at"):
            state.preview = [f"not started: {in_local_time(job.get('reason') or 'waiting')}"]
            return
        try:
            state.preview = self._log_lines(job["id"], max(1, state.preview_rows - 2))
        except SchedulerError as error:
            state.preview = [str(error)]

    def _draw(self) -> None:
        from gpu_scheduler.cli.interactive.top_rendering import LineFormatter, frame

        rows, columns = window_size()
        formatter = LineFormatter(columns, colours=self._colours, unicode=self._unicode)
        state = self._state
        lines = frame(self._overview, state, formatter, rows, self._problem)
        if state.mode == LIST and state.page != self._page:
            # The number of rows has changed: fetch as many jobs as fit.
            self._page = state.page
            self._refresh()
            lines = frame(self._overview, state, formatter, rows, self._problem)
        self._screen.draw(lines)

    def _perform(self, action: str, job: str) -> None:
        state = self._state
        try:
            if action == "redraw":
                self._screen.clear()
            elif action in _DONE:
                getattr(self._client, action)(job)
                state.message = f"{job} {_DONE[action]}"
            elif action == LOGS:
                self._read_log(job)
            elif action == EXPLAIN:
                self._explain(job)
        except SchedulerError as error:
            state.mode = LIST
            state.message = str(error)

    def _read_log(self, job: str) -> None:
        self._state.text = self._log_lines(job, LOG_LINES)

    def _log_lines(self, job: str, most: int) -> list[str]:
        """The last lines of a job's output; of an array, that of one running task."""
        line = next((one for one in self._state.jobs if one["id"] == job), {})
        task = self._task_to_show(job) if line.get("tasks") else ""
        text = b"".join(self._client.log_bytes(job + task, tail=most)).decode("utf-8", "replace")
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        if task:
            lines.insert(0, f"task {task.removeprefix('_')}:")
        return lines or ["no output yet"]

    def _task_to_show(self, job: str) -> str:
        """`_4` for the first running task, else for the last that has ended."""
        states = (self._client.get(job).get("array") or {}).get("states") or {}
        for state in ("running", "failed", "completed"):
            if states.get(state):
                tasks = IntervalSet.parse(states[state])
                return f"_{min(tasks) if state == 'running' else max(tasks)}"
        return ""

    def _explain(self, job: str) -> None:
        from gpu_scheduler.cli.jobs.columns import local_time, priority_text
        from gpu_scheduler.cli.jobs.show import (
            expected_end_text,
            expected_start_text,
            limit_start_text,
            start_basis_text,
        )

        found = self._client.get(job)
        answer = self._client.explain(job)
        now = time.time()
        position = answer.get("position")
        started = found.get("state") in ("running", "scheduled") and found.get("started_at")
        start = "" if started else expected_start_text(answer, now)
        pairs = [
            ("state", str(answer.get("state") or "")),
            ("reason", in_local_time(str(answer.get("reason") or ""))),
            ("queue position", "" if position is None else str(position)),
            ("started", local_time(started) if started else ""),
            ("expected start", start),
            ("by time limits", limit_start_text(answer, now)),
            ("based on", start_basis_text(answer)),
            ("expected end", expected_end_text(answer, now)),
            ("name", str(found.get("name") or "")),
            ("user", f"{found.get('user')} in {found.get('tenant_id')}"),
            ("GPUs", f"{found.get('gpu_count') or 0:g}"),
            ("priority", priority_text(found)),
            ("command", " ".join(map(str, found.get("command") or []))),
            ("directory", str(found.get("working_directory") or "")),
        ]
        width = max(len(name) for name, _ in pairs)
        self._state.text = [f"  {name:<{width}}  {value}" for name, value in pairs if value]
