"""Output: tables, colours and JSON.

On a terminal, tables are aligned, coloured and cut to its width; on a narrow one the least
important columns are left out. In a pipe nothing is cut, unless COLUMNS names a width.
NO_COLOR turns colours off.
"""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}
STATE_COLOURS = {
    "running": "green",
    "scheduled": "cyan",
    "pending": "yellow",
    "preempted": "yellow",
    "completed": "dim",
    "failed": "red",
    "cancelled": "dim",
    "R": "green",
    "SC": "cyan",
    "PD": "yellow",
    "PR": "yellow",
    "H": "dim",
    "F": "red",
    "TO": "red",
    "CD": "dim",
    "CA": "dim",
    "free": "green",
    "used": "cyan",
    "shared": "cyan",
    "paused": "yellow",
    "hot": "red",
    "unhealthy": "red",
    "quarantined": "red",
    "foreign": "yellow",
    "online": "green",
    "draining": "yellow",
    "drained": "yellow",
    "cordoned": "yellow",
    "lost": "red",
    "offline": "red",
    "healthy": "green",
    "degraded": "yellow",
    "problem": "red",
    "warning": "yellow",
    "ok": "green",
    "ready": "green",
    "starting": "yellow",
    "updating": "cyan",
    "stopping": "dim",
    "deleting": "dim",
    "stopped": "dim",
    "ended": "red",
    "over": "dim",
}
_GAP = "  "
_MIN_LAST = 16
_MIN_NARROW = 8
_NORMAL_NARROW = 16
_MIN_WIDTH = 4


class _Separator:
    """What separates the cells of tables in this process: spaces, or one tab."""

    is_tab = False


_separator = _Separator()


def use_tabs(is_wanted: bool) -> None:
    """Print tables with one tab between cells and nothing cut, for programs; or aligned."""
    _separator.is_tab = is_wanted


def counted(number: int, thing: str, verb: str = "") -> str:
    """`1 GPU`, `2 GPUs`, `1,000 jobs`; with a verb `1 job runs`, `2 jobs run`."""
    end, verb_end = ("", "s") if number == 1 else ("s", "")
    return f"{number:,} {thing}{end}" + (f" {verb}{verb_end}" if verb else "")


def hours_text(hours: float) -> str:
    """Hours with two decimals; a small positive number is `<0.01`."""
    return "<0.01" if 0 < hours < 0.005 else f"{hours:,.2f}"


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def has_colour() -> bool:
    """Whether stdout shows colours."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str | None) -> str:
    """The text in a colour, if stdout shows colours."""
    if not colour or not has_colour():
        return text
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def coloured_state(state: str) -> str:
    """A state in its colour."""
    return painted(state, STATE_COLOURS.get(state))


def print_json(document: object) -> None:
    """Print one document; escape non-ASCII characters if stdout is not UTF-8."""
    import json

    is_ascii = "utf" not in (sys.stdout.encoding or "utf").lower()
    print(json.dumps(document, indent=2, ensure_ascii=is_ascii, allow_nan=False))


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    narrow: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table; the columns in `right` are right-aligned. See `aligned`."""
    lines = [list(row) for row in rows]
    if _separator.is_tab:
        for cells in [list(headings), *lines]:
            print("\t".join(map(visible, cells)))
        return
    for line in aligned(
        headings,
        lines,
        right=frozenset(right),
        width=terminal_width(),
        narrow=narrow,
        spare=spare,
    ):
        print(line)


def aligned(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[str] = frozenset(),
    width: int,
    narrow: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> list[str]:
    """The lines of a table for a terminal of that width; 0 is any width.

    Columns in `spare` with nothing but `-` are left out first. Then the last column is cut, then
    those in `narrow`; then columns are left out in the order of `spare`. A table with neither may
    be wider than the terminal.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = _widest(headings, rows)
    if width and _total(widths, range(len(widths))) > width:
        told = [
            place
            for place, heading in enumerate(headings)
            if heading not in spare or any(row[place] != "-" for row in rows)
        ]
        headings = [headings[place] for place in told]
        rows = [[row[place] for place in told] for row in rows]
        widths = [widths[place] for place in told]
    sizes = _column_widths(headings, widths, width or sum(widths) * 2, narrow, spare)
    titles = [_padded(cut(headings[p], size), size, headings[p] in right) for p, size in sizes]
    lines = [painted(_GAP.join(titles).rstrip(), "bold")]
    shown = {
        place: cut_apart([row[place] for row in rows], size)
        if headings[place] in narrow
        else [cut(row[place], size) for row in rows]
        for place, size in sizes
    }
    for number, row in enumerate(rows):
        cells = [
            painted(
                _padded(shown[place][number], size, headings[place] in right),
                STATE_COLOURS.get(row[place]),
            )
            for place, size in sizes
        ]
        lines.append(_GAP.join(cells).rstrip())
    return lines


def _widest(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column in which nothing is cut."""
    return [
        max([len(heading), *(width_of(row[place]) for row in rows)])
        for place, heading in enumerate(headings)
    ]


def _column_widths(
    headings: Sequence[str],
    widths: Sequence[int],
    width: int,
    narrow: Sequence[str],
    spare: Sequence[str],
) -> list[tuple[int, int]]:
    """The indices of the columns to show, and the width of each."""
    sizes = list(widths)
    names = [place for place, heading in enumerate(headings) if heading in narrow]
    for place in names:
        sizes[place] = min(widths[place], max(_MIN_NARROW, len(headings[place])))
    sizes[-1] = min(widths[-1], _MIN_LAST)
    shown = _columns_that_fit(headings, sizes, width, spare)
    while narrow or spare:  # no more columns can be left out, so shrink the widest
        widest = max(shown, key=lambda place: sizes[place])
        if _total(sizes, shown) <= width or sizes[widest] <= _MIN_WIDTH:
            break
        sizes[widest] -= 1
    # Free space goes to short names, then to the last column, then to long names.
    wishes = [(place, _NORMAL_NARROW) for place in names]
    for place, most in [*wishes, *((place, width) for place in (len(widths) - 1, *names))]:
        room = max(0, width - _total(sizes, shown)) if place in shown else 0
        sizes[place] = max(sizes[place], min(widths[place], most, sizes[place] + room))
    return [(place, sizes[place]) for place in shown]


def _columns_that_fit(
    headings: Sequence[str], sizes: Sequence[int], width: int, spare: Sequence[str]
) -> list[int]:
    """The indices of the columns for which there is room."""
    shown = list(range(len(headings)))
    hidden: list[int] = []
    for name in spare:
        if _total(sizes, shown) <= width:
            break
        if name in headings:
            hidden.append(headings.index(name))
            shown.remove(hidden[-1])
    for place in reversed(hidden):  # a narrow one may fit after a wide one was left out
        if _total(sizes, [*shown, place]) <= width:
            shown.append(place)
    return sorted(shown)


def _total(sizes: Sequence[int], shown: Sequence[int]) -> int:
    return sum(sizes[place] for place in shown) + len(_GAP) * (len(shown) - 1)


def terminal_width() -> int:
    """Columns of the terminal, 80 if unknown; in a pipe those of COLUMNS, which `watch` sets, or 0.

    0 is any width: nothing is cut.
    """
    if not is_terminal():
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isascii() and columns.isdigit() else 0
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def cut_apart(texts: Sequence[str], width: int) -> list[str]:
    """The texts, cut so that different ones stay different where possible.

    Names such as `train lr=0.1,bs=32` first lose the names of their parameters, then what all of
    them begin with.
    """
    shown = [cut(text, width) for text in texts]
    different = {text for text, short in zip(texts, shown, strict=True) if text != short}
    if len(different) < 2 or len(set(shown)) == len(set(texts)):
        return shown
    values = {text: re.sub(r"[A-Za-z_]\w*=", "", text) for text in different}
    alike = os.path.commonprefix(list(values.values()))  # noqa: RUF071  of names, not of paths
    common = max(alike.rfind(mark) + 1 for mark in " ,/_-")  # not within a number
    if max(map(width_of, values.values())) > width and common > width // 3:
        head = width // 3
        values = {text: f"{value[:head]}…{value[common:]}" for text, value in values.items()}
    return [cut(values.get(text, text), width) for text in texts]


def cut(text: str, width: int) -> str:
    """The text, cut with an ellipsis if it is too wide."""
    if width_of(text) <= width:
        return text
    kept, left = "", width - 1
    for char in text:
        left -= width_of(char)
        if left < 0:
            break
        kept += char
    return f"{kept}…"


def width_of(text: str) -> int:
    """Width on a terminal: some characters are two columns wide, some zero."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0
        if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me")
        else 1 + (unicodedata.east_asian_width(char) in ("W", "F"))
        for char in text
    )


def visible(text: str) -> str:
    """Text with control characters escaped: a job's name must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def in_local_time(text: str) -> str:
    """Text from the server with its UTC times in local time."""
    if " UTC" not in text:
        return text
    from gpu_scheduler.cli.text.dates import localised

    return localised(text)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names with values, one per line, without those that have no value."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"  {painted(f'{name:<{width}}', 'dim')}  {visible(value)}")


def _padded(text: str, width: int, right: bool) -> str:
    gap = " " * (width - width_of(text))
    return gap + text if right else text + gap
