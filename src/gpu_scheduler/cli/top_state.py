"""What `tgpu top` shows and what keys do to it. Keys come in, wishes go out; nothing is done here.

A wish is something that needs the server: cancel, hold, release, logs, explain, look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SORTS = ("queue", "time", "user", "name", "gpus", "priority", "number", "state")
LIST, FILTER, CONFIRM, LOGS, EXPLAIN, HELP = "list", "filter", "confirm", "logs", "explain", "help"
LOOK = ("look", "")
"""The wish to see the list as it is now."""
FASTEST_S, SLOWEST_S = 0.5, 60.0

Wish = tuple[str, str]


@dataclass(slots=True)
class State:
    """Where the person is. `page` is how many jobs fit on the screen."""

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

    def query(self) -> dict[str, object]:
        """What to ask the server for."""
        return {
            "sort": ("-" if self.reverse else "") + self.sort,
            "filter": self.filter or None,
            "user": self.user or None,
            "limit": self.page,
            "offset": self.offset,
            "find": self.selected or None,
        }

    def take(self, picture: dict[str, Any]) -> bool:
        """The server's answer. True if the selected job has moved out of the window."""
        self.jobs = picture["jobs"]
        self.total = picture["total"]
        self.offset = picture["offset"]
        place = picture.get("found")
        if any(job["id"] == self.selected for job in self.jobs):
            return False
        if self.selected and place is not None:
            self.offset = max(0, min(place - self.page // 2, self.total - self.page))
            return True
        # It has ended: the one that stands in its place is the next.
        self.selected = self.jobs[min(self._row, len(self.jobs) - 1)]["id"] if self.jobs else ""
        return False

    @property
    def job(self) -> dict[str, Any] | None:
        """The selected job, if it is in the window."""
        return next((job for job in self.jobs if job["id"] == self.selected), None)

    @property
    def row(self) -> int:
        """Its place in the window; -1 if it is not there."""
        return next((i for i, job in enumerate(self.jobs) if job["id"] == self.selected), -1)

    _row: int = 0

    def press(self, key: str) -> Wish | None:
        """What a key means here. ("quit", "") ends it all."""
        self._row = max(0, self.row)
        if key == "redraw":
            return ("redraw", "")
        if self.mode == FILTER:
            return self._press_in_filter(key)
        self.message = ""
        if self.mode == CONFIRM:
            return self._press_in_question(key)
        if self.mode in (LOGS, EXPLAIN, HELP):
            return self._press_in_text(key)
        return self._press_in_list(key)

    def _press_in_list(self, key: str) -> Wish | None:
        move = _MOVES.get(key)
        if move is not None:
            return self._move(move)
        if key in _OF_A_JOB:
            return self._ask_for(_OF_A_JOB[key])
        return self._change_list(key)

    def _change_list(self, key: str) -> Wish | None:
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
            return LOOK
        elif key == "R":
            self.reverse = not self.reverse
            return LOOK
        elif key == "u":
            self.user = "" if self.user else self.me
            self.offset = 0
            return LOOK
        elif key == "escape" and (self.filter or self.user):
            self.filter = self.user = ""
            return LOOK
        elif key in ("+", "-"):
            factor = 0.5 if key == "+" else 2.0
            self.interval_s = min(SLOWEST_S, max(FASTEST_S, self.interval_s * factor))
            self.message = f"looking every {self.interval_s:g} s"
        elif key == " ":
            return LOOK
        return None

    def _ask_for(self, wish: str) -> Wish | None:
        job = self.job
        if job is None:
            self.message = "no job is selected"
            return None
        if wish in ("cancel", "hold", "release") and not job.get("may_change"):
            self.message = f"{job['id']} belongs to {job['user']}"
            return None
        if wish == "cancel":
            self.mode = CONFIRM
            return None
        if wish in (LOGS, EXPLAIN):
            self.mode, self.text, self.text_offset, self.follows = wish, [], 0, True
        return (wish, job["id"])

    def _move(self, step: tuple[str, int]) -> Wish | None:
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
        # Beyond the window: the window moves, and the job at that place is the selected one.
        self.offset = max(0, place if place < self.offset else place - self.page + 1)
        self.selected = ""
        self._row = place - self.offset
        return LOOK

    def _press_in_filter(self, key: str) -> Wish | None:
        if key == "escape":
            self.mode = LIST
        elif key == "enter":
            self.mode = LIST
            self.filter = self.typed.strip()
            self.offset = 0
            return LOOK
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1:
            self.typed += key
        return None

    def _press_in_question(self, key: str) -> Wish | None:
        """Only a plain yes is a yes."""
        self.mode = LIST
        if key in ("y", "Y"):
            return ("cancel", self.selected)
        self.message = "not cancelled"
        return None

    def _press_in_text(self, key: str) -> Wish | None:
        if key in ("q", "Q", "escape", "left", "?", "l", "e", "enter"):
            self.mode = LIST
            return LOOK
        move = _MOVES.get(key)
        if move is not None:
            kind, sign = move
            steps = {"line": 1, "page": max(1, self.page - 1)}
            step = steps.get(kind, 1 << 30) * sign
            self.text_offset = max(0, self.text_offset + step)
            self.follows = key in ("G", "end")
        elif key == "c":
            self.mode = LIST
            return self._ask_for("cancel")
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
_OF_A_JOB = {
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
    ("R", "turn the order round"),
    ("/", "only jobs with all these words in id, user, state or name"),
    ("u", "show only your own jobs, or all"),
    ("Esc", "show all jobs again"),
    ("e  Enter", "why the job waits, and until when"),
    ("l", "what the job writes"),
    ("c", "cancel the job, after a question"),
    ("h  r", "hold a waiting job, release it"),
    ("+  -", "look more often, less often"),
    ("Space", "look now"),
    ("q", "leave"),
)
