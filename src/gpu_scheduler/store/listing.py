"""Which rows a query picks and in what order, over rows in memory.

Job rows and a query come in, rows come out. What a database does for the same query must agree
with this, row for row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from gpu_scheduler.model.states import ENDED
from gpu_scheduler.store.questions import JobQuery, Sight
from gpu_scheduler.store.rows import JobRow


def chosen(rows: Iterable[JobRow], query: JobQuery) -> list[JobRow]:
    """All rows that the query asks for, on whatever page, by number."""
    found = [row for row in rows if _matches(row, query)]
    found.sort(key=_number)
    return found


def page(rows: Iterable[JobRow], query: JobQuery, mark: JobRow | None) -> list[JobRow]:
    """The page that the query asks for; `mark` is the job that it begins behind."""
    found = chosen(rows, query)
    if query.after_number is not None:
        found = [row for row in found if _follows(row, mark, query)]
    # A stable sort keeps rows with the same key in the order of numbers, also when reversed.
    found.sort(key=_KEYS[query.sort], reverse=query.descending)
    return found[query.offset : query.offset + query.limit]


def _matches(row: JobRow, query: JobQuery) -> bool:
    job = row.job
    return (
        (not query.states or row.state in query.states)
        and (not query.tenant or job.tenant == query.tenant)
        and (not query.user or job.user == query.user)
        and (not query.name or job.name == query.name)
        and (query.since_ms is None or job.submit_ms >= query.since_ms)
        and _ended_within(row, query)
        and (query.numbers is None or job.number in query.numbers)
        and (query.sight is None or _seen(row, query.sight))
    )


def _ended_within(row: JobRow, query: JobQuery) -> bool:
    since_ms, before_ms = query.ended_since_ms, query.ended_before_ms
    if since_ms is None and before_ms is None:
        return True
    end_ms = row.end_ms
    if end_ms is None:
        return False
    return (since_ms is None or end_ms >= since_ms) and (before_ms is None or end_ms < before_ms)


def _seen(row: JobRow, sight: Sight) -> bool:
    is_others = sight.others and row.state not in ENDED
    return is_others or sight.covers(row.job.user, row.job.tenant)


def _follows(row: JobRow, mark: JobRow | None, query: JobQuery) -> bool:
    key: Any = row.job.number
    marked: Any = query.after_number
    if query.sort != "number":
        if mark is None:
            return False
        key, marked = _KEYS[query.sort](row), _KEYS[query.sort](mark)
        if key == marked:
            return row.job.number > mark.job.number
    return bool(key < marked if query.descending else key > marked)


_number = attrgetter("job.number")


def _time(name: str) -> Callable[[JobRow], tuple[bool, int]]:
    """What has no time yet comes first."""

    def key(row: JobRow) -> tuple[bool, int]:
        value = getattr(row, name)
        return (value is not None, value or 0)

    return key


_KEYS: dict[str, Callable[[JobRow], Any]] = {
    "number": _number,
    "priority": attrgetter("job.priority"),
    "submit_ms": attrgetter("job.submit_ms"),
    "start_ms": _time("start_ms"),
    "end_ms": _time("end_ms"),
    "name": attrgetter("job.name"),
    "user": attrgetter("job.user"),
    "tenant": attrgetter("job.tenant"),
    "state": lambda row: row.state.value,
}
