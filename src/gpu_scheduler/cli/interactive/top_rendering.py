"""Renders `tgpu top`: the server's overview and the state in, lines of text out.

No line is wider than the window, whatever names and commands contain. Without colours, words and
signs say the same.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

from gpu_scheduler.cli.cluster.gpus import is_measured
from gpu_scheduler.cli.interactive import top
from gpu_scheduler.cli.interactive.top import State
from gpu_scheduler.cli.jobs.columns import STATES, note_text, seconds_at, start_range
from gpu_scheduler.cli.text.tables import STATE_COLOURS, counted, in_local_time, visible
from gpu_scheduler.cli.text.tables import width_of as width
from gpu_scheduler.cli.text.values import clock_text, duration_text, size_text

STYLES = {
    "bold": "1",
    "dim": "2",
    "reverse": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}
WIDE = 110
NARROW = 72
TINY = 56
MIN_JOBS = 5
LARGE_ROWS = 40
"""In a window of so many rows, and wide, there are curves and the output of the selected job."""
CELL = 26
MAX_TEMPERATURE_C = 90
_DAY_S = 86_400
_CONTROLS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")


class LineFormatter:
    """Formats pieces of text as lines of a given width."""

    def __init__(self, columns: int, *, colours: bool, unicode: bool, styles: bool = True) -> None:
        """Without `unicode` only ASCII is used; without `styles` no escape sequences."""
        self.columns = columns
        self._colours = colours and styles
        self._styles = styles
        self.unicode = unicode
        self.full, self.empty, self.more = ("█", "░", "…") if unicode else ("#", ".", "~")

    def line(self, *pieces: str | tuple[str, str], style: str = "") -> str:
        """One line, cut to the width; a piece may have a style."""
        parts, left = [], self.columns
        for piece in pieces:
            text, own = (piece, "") if isinstance(piece, str) else piece
            text = self.fit(text, left)
            left -= width(text)
            parts.append(self.styled(text, own))
            if left <= 0:
                break
        whole = "".join(parts)
        if style == "reverse":
            return self.styled(whole + " " * left, style)
        return self.styled(whole.rstrip(), style)

    def styled(self, text: str, style: str) -> str:
        """The text in a style; bold and reverse are used without colours, too."""
        is_enabled = self._styles if style in ("bold", "reverse") else self._colours
        if not style or not is_enabled:
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"

    def fit(self, text: str, columns: int) -> str:
        """The text, cut to the width."""
        if len(text) <= columns and text.isascii():
            return text
        if width(text) <= columns:
            return text
        kept, used = [], 0
        for char in text:
            used += width(char)
            if used > columns - 1:
                break
            kept.append(char)
        return "".join(kept) + (self.more if columns > 0 else "")

    def cell(self, text: str, columns: int, *, right: bool = False) -> str:
        """The text in a column of that width."""
        text = self.fit(text, columns)
        pad = " " * (columns - width(text))
        return pad + text if right else text + pad

    def bar(self, share: float | None, cells: int) -> str:
        """A bar with this share filled."""
        if share is None:
            return " " * cells
        filled = round(cells * min(1.0, max(0.0, share)))
        if share > 0 and not filled:
            filled = min(1, cells)
        return self.full * filled + self.empty * (cells - filled)


def frame(
    overview: dict[str, Any], state: State, formatter: LineFormatter, rows: int, problem: str = ""
) -> list[str]:
    """All lines of the window. Sets `state.page` to the number of jobs that fit."""
    head = [_summary(overview, formatter, problem)]
    head += _gpu_lines(overview["gpus"], overview["jobs"], formatter, rows)
    foot = _foot(state, formatter)
    if state.mode in (top.LOGS, top.EXPLAIN, top.HELP):
        return _with_text(head, foot, state, formatter, rows)
    is_large = rows >= LARGE_ROWS and formatter.columns >= WIDE
    head += _curve_lines(state, formatter, rows - len(head)) if is_large else []
    head.append(_job_title(overview, state, formatter))
    columns = _columns(formatter.columns)
    head.append(formatter.line(_job_heading(columns, formatter), style="bold"))
    state.preview_rows = max(0, rows - len(head)) // 3 if is_large and state.selected else 0
    state.page = max(1, rows - len(head) - 1 - state.preview_rows)
    now = seconds_at(overview.get("now")) or time.time()
    body = [_job_line(job, state, columns, formatter, now) for job in overview["jobs"]]
    body = body[: state.page]
    if not body:
        body = [formatter.line((_nothing(state), "dim"))]
    filler = [""] * max(0, rows - len(head) - len(body) - 1 - state.preview_rows)
    return [*head, *body, *filler, *_preview_lines(state, formatter), foot][: max(1, rows)]


# A large window


def _curve_lines(state: State, formatter: LineFormatter, room: int) -> list[str]:
    """The readings over time, one line each, under a heading."""
    curves = state.history.shown()
    if room < LARGE_ROWS // 2 or not curves:
        return []
    span = duration_text(max(len(curve.samples) for curve in curves) * state.interval_s)
    lines = [formatter.line((f"Last {span}", "cyan"))]
    for curve in curves:
        label = " " + formatter.cell(curve.title, 15) + formatter.cell(curve.text, 20, right=True)
        drawn = curve.drawn(formatter.columns - width(label) - 2, unicode=formatter.unicode)
        lines.append(formatter.line(label, "  ", (drawn, "green")))
    return lines


def _preview_lines(state: State, formatter: LineFormatter) -> list[str]:
    """The last lines of the output of the selected job."""
    if not state.preview_rows:
        return []
    room = state.preview_rows - 1
    shown = (
        [formatter.line(" " + plain_text(line)) for line in state.preview[-room:]] if room else []
    )
    job = state.job or {}
    name = visible(str(job.get("name") or ""))
    title = " ".join(filter(None, (f"Output of {state.selected or 'no job'}", name)))
    return [formatter.line((title, "cyan")), *shown, *[""] * (room - len(shown))]


# First line


def _summary(overview: dict[str, Any], formatter: LineFormatter, problem: str) -> str:
    if problem:
        return formatter.line((problem, "red"))
    counts, gpus = overview["counts"], overview["gpus"]
    free = sum(gpu["state"] == "free" and not gpu.get("why") for gpu in gpus)
    waiting = counts.get("pending", 0)
    held = f", {counts['held']:,} held" if counts.get("held") else ""
    nodes = overview["nodes"]
    lost = nodes - overview["online_nodes"]
    place = f"{nodes} nodes, " if nodes > 1 else ""
    runs = counts.get("running", 0) + counts.get("scheduled", 0)
    text = (
        f"{place}{free} of {counted(len(gpus), 'GPU')} free, {runs:,} running, "
        f"{waiting:,} pending{held}"
    )
    now = seconds_at(overview.get("now"))
    clock = "" if now is None else datetime.fromtimestamp(now).astimezone().strftime("%H:%M:%S")
    # A fleet has no server that has been up for some time.
    seconds = overview.get("uptime_seconds")
    up = "" if seconds is None else f"up {duration_text(float(seconds))}"
    trouble = f"  {lost} {'NODE' if lost == 1 else 'NODES'} OFFLINE" if lost else ""
    trouble += f"  {overview['problem']}" if overview.get("problem") else ""
    head = f"gpu-scheduler {overview.get('version', '')}  " if formatter.columns >= NARROW else ""
    if width(head + text + trouble) + width(clock) + 2 > formatter.columns:
        clock = ""
    room = formatter.columns - width(head + text + trouble) - width(clock) - 2
    up = f"  {up}" if up and len(up) + 2 <= room else ""
    gap = max(2, formatter.columns - width(head + text + trouble + up) - width(clock))
    return formatter.line((head, "bold"), text, (trouble, "red"), up, " " * gap, clock)


# GPUs


def _gpu_lines(
    gpus: list[dict[str, Any]], jobs: list[dict[str, Any]], formatter: LineFormatter, rows: int
) -> list[str]:
    if not gpus:
        return [formatter.line(("no GPUs", "yellow"))]
    room = max(1, rows - 4 - MIN_JOBS)
    named = len({gpu["node"] for gpu in gpus}) > 1
    if len(gpus) + 1 > room:
        return _gpu_grid(gpus, formatter, room, named=named)
    names = {job["id"]: job.get("name") or "" for job in jobs}
    sizes = _gpu_sizes(gpus, formatter.columns, named=named)
    heading = (
        formatter.cell("GPU", sizes["place"] + 1)
        + formatter.cell("MODEL", sizes["model"] + 1)
        + formatter.cell("MEMORY", sizes["memory"] + 10)
    )
    if sizes["util"]:
        heading += formatter.cell("UTIL", sizes["util"] + 6)
    if sizes["temp"]:
        heading += formatter.cell("TEMP", sizes["temp"] + 5) + formatter.cell("WATT", 5, right=True)
        heading += " "
    heading += " USED BY"
    lines = [formatter.line(heading, style="bold")]
    lines += [_gpu_line(gpu, sizes, names, formatter, named=named) for gpu in gpus]
    return lines + _foreign_lines(gpus, formatter, room - len(lines), named=named)


def _gpu_sizes(gpus: list[dict[str, Any]], columns: int, *, named: bool) -> dict[str, int]:
    place = max(3, *(len(_place(gpu, named=named)) for gpu in gpus))
    model = min(12, max(5, *(len(_model(gpu)) for gpu in gpus)))
    spare = max(0, columns - 80 - (place - 3) - (model - 7))
    wider = min(spare // 3, 24)
    # In a narrow window the users matter more than the temperature.
    return {
        "place": place,
        "model": model,
        "memory": 8 + wider // 2 if columns >= TINY else 0,
        "util": 6 + wider // 2 if columns >= TINY else 0,
        "temp": 4 + wider // 4 if columns >= NARROW else 0,
    }


def _gpu_line(
    gpu: dict[str, Any],
    sizes: dict[str, int],
    names: dict[str, str],
    formatter: LineFormatter,
    *,
    named: bool,
) -> str:
    used = (gpu.get("memory_used_mb") or 0) if is_measured(gpu) else None
    memory = gpu.get("memory_mb") or 0
    util, heat, watts = (
        gpu.get(name) for name in ("utilisation_percent", "temperature_c", "power_watts")
    )
    share = None if used is None or not memory else used / memory
    figure = "-" if used is None else f"{_short_size(used)}/{_short_size(memory)}"
    pieces: list[str | tuple[str, str]] = [
        formatter.cell(_place(gpu, named=named), sizes["place"] + 1),
        formatter.cell(_model(gpu), sizes["model"] + 1),
        (formatter.bar(share, sizes["memory"]), _load_colour(share)),
        formatter.cell(figure, 9, right=True) + " ",
    ]
    if sizes["util"]:
        pieces += [
            (formatter.bar(None if util is None else util / 100, sizes["util"]), "cyan"),
            formatter.cell("-" if util is None else f"{util:.0f}%", 5, right=True) + " ",
        ]
    if sizes["temp"]:
        pieces += [
            (
                formatter.bar(heat / MAX_TEMPERATURE_C if heat else None, sizes["temp"]),
                _heat_colour(heat),
            ),
            formatter.cell(f"{heat:.0f}C" if heat else "-", 4, right=True) + " ",
            formatter.cell(f"{watts:.0f}" if watts else "-", 5, right=True) + " ",
        ]
    return formatter.line(*pieces, " ", *_users(gpu, names))


def _users(gpu: dict[str, Any], names: dict[str, str]) -> list[tuple[str, str]]:
    """The jobs and processes on the device, and what is wrong with it."""
    state = str(gpu.get("state") or "")
    parts: list[tuple[str, str]] = []
    if state not in ("free", "used", "shared", "foreign"):
        parts.append((f"{state.upper()} ", STATE_COLOURS.get(state, "red")))
    jobs, users = gpu.get("jobs") or [], gpu.get("users") or []
    for place, job in enumerate(jobs):
        owner = users[place] if len(users) == len(jobs) else "/".join(users)
        name = visible(names.get(job.partition("_")[0], ""))
        parts.append((" ".join(filter(None, (job.removeprefix("job-"), owner, name))) + " ", ""))
    for process in _foreign_processes(gpu):
        if jobs and not process.get("pid"):
            # The driver does not report all processes: this memory may be that of the jobs.
            continue
        memory = f" {_short_size(process.get('memory_mb') or 0)}"
        text = f"{_who(process)}{memory} "
        parts.append((visible(text), "yellow"))
    if gpu.get("why") and not jobs and not _foreign_processes(gpu):
        parts.append((visible(str(gpu["why"])), "yellow"))
    if not parts:
        parts.append((state, STATE_COLOURS.get(state, "")))
    return parts


def _foreign_processes(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """Processes that do not belong to a job."""
    return [process for process in gpu.get("processes") or [] if not process.get("job_id")]


def _who(process: dict[str, Any]) -> str:
    """`user:pid`; used memory without a known process has no pid."""
    return (
        f"{process.get('user') or '?'}:{process['pid']}"
        if process.get("pid")
        else "unknown process"
    )


def _foreign_lines(
    gpus: list[dict[str, Any]], formatter: LineFormatter, room: int, *, named: bool
) -> list[str]:
    """The processes that do not belong to a job, if there is room."""
    found = [(gpu, process) for gpu in gpus for process in _foreign_processes(gpu)]
    if not found or room < 8:
        return []
    lines = []
    for gpu, process in found[: room // 3]:
        command = f"  {process['command']}" if process.get("command") else ""
        memory = size_text(process.get("memory_mb") or 0)
        place = _place(gpu, named=named)
        text = f"  foreign process: GPU {place}  {_who(process)}  {memory}{command}"
        lines.append(formatter.line((visible(text), "yellow")))
    return lines


def _gpu_grid(
    gpus: list[dict[str, Any]], formatter: LineFormatter, room: int, *, named: bool
) -> list[str]:
    """For more devices than lines: several per line, and the number of those that do not fit."""
    across = max(1, formatter.columns // CELL)
    most = across * room
    shown = gpus if len(gpus) <= most else gpus[: across * max(1, room - 1)]
    wide = max(len(_place(gpu, named=named)) for gpu in gpus)
    bar = max(4, CELL - wide - 9)
    lines = []
    for start in range(0, len(shown), across):
        pieces: list[tuple[str, str]] = []
        for gpu in shown[start : start + across]:
            util = gpu.get("utilisation_percent")
            share = float(gpu.get("allocated_share") or 0) if util is None else util / 100
            state = str(gpu.get("state") or "")
            mark = "" if state in ("free", "used", "shared") else state[:4].upper()
            pieces.append((formatter.cell(_place(gpu, named=named), wide) + " ", ""))
            pieces.append((formatter.bar(share, bar), STATE_COLOURS.get(state, "cyan")))
            pieces.append((formatter.cell(mark or f"{100 * share:.0f}%", 5, right=True) + "  ", ""))
        lines.append(formatter.line(*pieces))
    if len(shown) < len(gpus):
        lines.append(formatter.line((f"and {len(gpus) - len(shown)} more GPUs", "dim")))
    return lines


def _place(gpu: dict[str, Any], *, named: bool) -> str:
    return f"{gpu['node']}:{gpu['index']}" if named else str(gpu["index"])


def _model(gpu: dict[str, Any]) -> str:
    return visible(str(gpu.get("model") or ""))


def _short_size(megabytes: float) -> str:
    if megabytes < 1000:
        return f"{megabytes:.0f}M"
    gigabytes = megabytes / 1024
    return f"{gigabytes:.1f}G" if gigabytes < 9.95 else f"{gigabytes:.0f}G"


def _load_colour(share: float | None) -> str:
    if share is None:
        return ""
    return "red" if share > 0.95 else "yellow" if share > 0.8 else "green"


def _heat_colour(heat: float | None) -> str:
    if not heat:
        return ""
    return "red" if heat >= 85 else "yellow" if heat >= 75 else "green"


# Jobs


EXPECTED_RANGE = 23
"""A column of this width shows the latest of four in five starts as well."""


def _columns(columns: int) -> list[tuple[str, int]]:
    """The columns and their widths; the last one takes the rest."""
    rest = ("WHERE, OR WHY NOT", 0)
    if columns < TINY:
        return [("JOBID", 6), ("NAME", 9), ("ST", 2), ("GPUS", 4), rest]
    if columns < NARROW:
        return [("JOBID", 8), ("NAME", 12), ("ST", 2), ("GPUS", 4), ("TIME", 8), rest]
    chosen = [("JOBID", 8), ("NAME", 12), ("USER", 8), ("ST", 2), ("GPUS", 4), ("TIME", 8)]
    if columns >= WIDE:
        more = min(20, (columns - WIDE) // 3)
        chosen = [("JOBID", 10), ("NAME", 16 + more), ("USER", 10), ("ST", 2), ("GPUS", 5)]
        chosen += [("TIME", 10), ("LIMIT", 10)]
        if columns >= WIDE + 20:
            chosen[3:3] = [("TENANT", 10)]
    return [*chosen, ("EXPECTED", EXPECTED_RANGE if columns >= WIDE + 20 else 11), rest]


_RIGHT = ("GPUS", "TIME", "LIMIT")


def _job_title(overview: dict[str, Any], state: State, formatter: LineFormatter) -> str:
    total, offset = overview["total"], overview["offset"]
    last = min(total, offset + state.page)
    span = f"{offset + 1}-{last} of " if total > state.page else ""
    reverse = " (reversed)" if state.reverse else ""
    parts = [f"Jobs: {span}{total:,}, by {state.sort}{reverse}"]
    if state.filter:
        parts.append(f"with '{state.filter}'")
    if state.user:
        parts.append("yours only" if state.user == state.me else f"of {state.user}")
    return formatter.line((", ".join(parts), "cyan"))


def _job_heading(columns: list[tuple[str, int]], formatter: LineFormatter) -> str:
    cells = [
        formatter.cell(name, size or len(name), right=name in _RIGHT) for name, size in columns
    ]
    return " " + " ".join(cells)


def _job_line(
    job: dict[str, Any],
    state: State,
    columns: list[tuple[str, int]],
    formatter: LineFormatter,
    now: float,
) -> str:
    chosen = job["id"] == state.selected
    values = _values(job, now)
    pieces: list[tuple[str, str]] = [(">" if chosen else " ", "")]
    used = 1
    for name, size in columns:
        size = size or max(1, formatter.columns - used)  # noqa: PLW2901 - the last takes the rest
        value = values[name]
        if name == "EXPECTED" and size >= EXPECTED_RANGE:
            value += values["BY"]
        text = formatter.cell(value, size, right=name in _RIGHT)
        colour = STATE_COLOURS.get(values["ST"], "") if name == "ST" and not chosen else ""
        pieces.append((text, colour))
        pieces.append((" ", ""))
        used += size + 1
    if chosen:
        return formatter.line("".join(text for text, _ in pieces[:-1]), style="reverse")
    return formatter.line(*pieces[:-1])


def _values(job: dict[str, Any], now: float) -> dict[str, str]:
    number = str(job["id"]).removeprefix("job-")
    tasks = f"_[{job['tasks']}]" if job.get("tasks") else ""
    started = seconds_at(job.get("started_at"))
    running = job["state"] in ("running", "scheduled")
    minutes = job.get("max_runtime_minutes") or job.get("time_limit_minutes")
    members = job.get("members") or 1
    total = job.get("gpus") or 0
    each = round(total / members, 2)
    gpus = f"{total:g}"
    if members > 1 and round(each * members, 2) == total:
        gpus = f"{members}x{each:g}"  # a gang, as in `tgpu list`
    reason = str(job.get("reason") or "")
    where = " ".join(job.get("places") or []) or in_local_time(reason)
    if running and reason:
        where = " ".join(filter(None, (where, note_text(reason))))
    return {
        "JOBID": number + tasks,
        "NAME": visible(str(job.get("name") or "-")),
        "USER": visible(str(job.get("user") or "")),
        "TENANT": visible(str(job.get("tenant_id") or "")),
        "ST": "H" if job.get("hold") and not running else STATES.get(job["state"], job["state"]),
        "GPUS": gpus,
        "TIME": clock_text(max(0.0, now - started)) if running and started else "-",
        "LIMIT": clock_text(minutes * 60) if minutes else "-",
        "EXPECTED": _expected(job, running=running, now=now),
        "BY": "" if running else _latest_start(job, now),
        "WHERE, OR WHY NOT": visible(where),
    }


def _expected(job: dict[str, Any], *, running: bool, now: float) -> str:
    """The expected end or start: a time within a day, else the date."""
    at = seconds_at(job.get("expected_end" if running else "expected_start"))
    if at is None:
        return "-"
    what = "end" if running else "start"
    if at <= now + 1:
        return f"{what} now" if not running else "end soon"
    return f"{what} {_moment_text(at, now)}"


def _latest_start(job: dict[str, Any], now: float) -> str:
    """By when four in five such jobs have started, unless the range is narrow."""
    found = start_range(job)
    return "" if found is None else f", by {_moment_text(found[1], now)}"


def _moment_text(at: float, now: float) -> str:
    """A time within a day, else the date."""
    moment = datetime.fromtimestamp(at).astimezone()
    if at - now < _DAY_S:
        return f"{moment:%H:%M}"
    return f"{moment:%d.%m.}" if at - now > 7 * _DAY_S else f"{moment:%a%H}h"


def _nothing(state: State) -> str:
    if state.filter or state.user:
        return "  no matching jobs; Esc shows all"
    return "  no jobs"


# Texts and the last line


def _with_text(
    head: list[str], foot: str, state: State, formatter: LineFormatter, rows: int
) -> list[str]:
    """A text instead of the list, and instead of the devices if the window is small."""
    title = {
        top.LOGS: f"Output of {state.selected}",
        top.EXPLAIN: f"About {state.selected}",
        top.HELP: "Keys",
    }[state.mode]
    lines = state.text
    if state.mode == top.HELP:
        lines = [f"  {keys:<14} {what}" for keys, what in top.HELP_LINES]
    fits = rows - len(head) - 2 >= len(lines)
    keep = head if fits and state.mode != top.LOGS else head[:1]
    room = max(1, rows - len(keep) - 2)
    state.page = room
    most = max(0, len(lines) - room)
    if state.mode == top.LOGS and state.follows:
        state.text_offset = most
    state.text_offset = min(state.text_offset, most)
    shown = lines[state.text_offset : state.text_offset + room]
    body = [formatter.line(plain_text(line)) for line in shown]
    filler = [""] * (room - len(body))
    return [*keep, formatter.line((title, "cyan")), *body, *filler, foot][: max(1, rows)]


def plain_text(line: str) -> str:
    """A line of output as a terminal would show it, without colours and control characters."""
    text = _CONTROLS.sub("", line).rstrip("\r").rpartition("\r")[2]
    return visible(text.expandtabs(8))


def _foot(state: State, formatter: LineFormatter) -> str:
    if state.mode == top.FILTER:
        return formatter.line((f"show only jobs with: {state.typed}_", "bold"))
    if state.mode == top.CONFIRM:
        job = state.job or {}
        name = visible(str(job.get("name") or ""))
        what = " ".join(filter(None, (state.selected, name, f"of {job.get('user', '?')}")))
        return formatter.line((f"cancel {what}?  y = yes, any other key = no", "red"))
    if state.message:
        return formatter.line((visible(state.message), "yellow"))
    if state.mode in (top.LOGS, top.EXPLAIN, top.HELP):
        return formatter.line(("q back  up/down move  G end  c cancel", "dim"))
    keys = "q quit  ? help  s sort  / filter  u mine  l logs  e explain  c cancel  h hold"
    return formatter.line((keys, "dim"))
