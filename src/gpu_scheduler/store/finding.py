"""The SQL for a list of jobs.

A query comes in; a statement and its values go out. Jobs that live, jobs that have ended and
archived jobs are three parts, each read in order along an index of its own and merged, so that a
page costs as much as its rows and not as much as the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.states import ENDED, JobState
from gpu_scheduler.store.dialect import Dialect
from gpu_scheduler.store.questions import JobQuery, Sight

MOST_RANGES = 50
"""More ranges of numbers than this are looked up in a list instead of being spelled out."""

_NULLABLE = frozenset({"start_ms", "end_ms"})

Values = dict[str, Any]


def page_statement(dialect: Dialect, query: JobQuery, mark: Any) -> tuple[str, Values]:
    """The statement for one page; `mark` is the sort key of the job that it begins behind."""
    values = _values(dialect, query)
    values |= {"limit": query.limit, "offset": query.offset}
    behind = []
    if query.after_number is not None:
        values["after"] = query.after_number
        values["mark"] = mark
        behind.append(_behind(dialect, query, mark))
    order = _order(query)
    parts = " UNION ALL ".join(
        dialect.reading(
            "part", table=table, conditions=" AND ".join(conditions + behind), order=order
        )
        for table, conditions in _parts(dialect, query)
    )
    return dialect.reading("page", parts=parts, order=order), values


def count_statements(dialect: Dialect, query: JobQuery) -> Iterator[tuple[str, Values]]:
    """Statements whose counts make up the whole."""
    for table, conditions in _parts(dialect, query):
        together = " AND ".join(conditions)
        yield (
            dialect.reading("count_part", table=table, conditions=together),
            _values(dialect, query),
        )


def is_counted(query: JobQuery) -> bool:
    """Tell whether the kept counts answer the query."""
    plain = not (query.name or query.sweep) and query.numbers is None and query.sight is None
    times = (query.since_ms, query.ended_since_ms, query.ended_before_ms)
    return plain and all(time_ms is None for time_ms in times)


def _parts(dialect: Dialect, query: JobQuery) -> list[tuple[str, list[str]]]:
    """Tables (with the index to read along), and the conditions there."""
    shared = _conditions(dialect, query)
    wanted = set(query.states or JobState)
    parts = []
    if wanted - ENDED:
        index, live = _live_index(query, wanted), ["ended = 0"]
        if index == "jobs_by_state":
            # Said in these words, as the index is.
            live.append("state <> 'pending'")
        if query.sight is not None and not query.sight.others:
            live.append(_covered(dialect, query.sight))
        parts.append((f"jobs{_along(dialect, query, index)}", live + shared))
    if wanted & ENDED:
        index = "jobs_by_end" if query.sort == "end_ms" else _index_of_owner(query)
        if query.sight is not None:
            shared = [*shared, _covered(dialect, query.sight)]
            if index == "jobs_by_number" and not query.sight.tenants:
                index = "jobs_by_user"
        parts.append((f"jobs{_along(dialect, query, index)}", ["ended = 1", *shared]))
        if query.archived:
            parts.append(("archived_jobs", ["ended = 1", *shared]))
    return parts


def _along(dialect: Dialect, query: JobQuery, index: str) -> str:
    """Numbers lead to their rows by themselves."""
    return dialect.along(index) if query.numbers is None else ""


def _live_index(query: JobQuery, wanted: set[JobState]) -> str:
    if JobState.PENDING not in wanted:
        return "jobs_by_state"
    if query.sort == "priority" and not query.user:
        return "jobs_by_priority"
    return _index_of_owner(query)


def _index_of_owner(query: JobQuery) -> str:
    return "jobs_by_user" if query.user else "jobs_by_number"


def _conditions(dialect: Dialect, query: JobQuery) -> list[str]:
    conditions = [
        condition
        for condition, asked in (
            ("tenant = :tenant", query.tenant),
            ('"user" = :user', query.user),
            ("name = :name", query.name),
            ("submit_ms >= :since_ms", query.since_ms is not None),
            ("end_ms >= :ended_since_ms", query.ended_since_ms is not None),
            ("end_ms < :ended_before_ms", query.ended_before_ms is not None),
            (dialect.sql["in_sweep"], query.sweep),
        )
        if asked
    ]
    if query.states:
        # No index, or the states would be read one after the other, which is out of order.
        marks = ", ".join(f":state{place}" for place in range(len(query.states)))
        conditions.append(f"{dialect.unindexed('state')} IN ({marks})")
    if query.numbers is not None:
        conditions.append(_in_ranges(dialect, query.numbers))
    return conditions


def _covered(dialect: Dialect, sight: Sight) -> str:
    """The condition for jobs that are seen whether they live or not."""
    own = dialect.sql["seen_own"] if sight.within is None else dialect.sql["seen_own_within"]
    return f"({own} OR {dialect.sql['seen_tenants']})" if sight.tenants else own


def _in_ranges(dialect: Dialect, numbers: IntervalSet) -> str:
    if not numbers:
        return "0 = 1"
    if len(numbers.ranges) <= MOST_RANGES:
        spelled = (f"number BETWEEN {low:d} AND {high:d}" for low, high in numbers.ranges)
        return f"({' OR '.join(spelled)})"
    first, last = numbers.first, numbers.ranges[-1][1]
    return f"number BETWEEN {first:d} AND {last:d} AND {dialect.sql['in_ranges']}"


def _values(dialect: Dialect, query: JobQuery) -> Values:
    values: Values = {
        "tenant": query.tenant,
        "user": query.user,
        "name": query.name,
        "since_ms": query.since_ms,
        "ended_since_ms": query.ended_since_ms,
        "ended_before_ms": query.ended_before_ms,
        "sweep": query.sweep,
    }
    values |= {f"state{place}": state.value for place, state in enumerate(query.states)}
    if query.sight is not None:
        values["seen_by"] = query.sight.user
        values["seen_within"] = dialect.listed(query.sight.within or ())
        values["seen_tenants"] = dialect.listed(query.sight.tenants)
    if query.numbers is not None and len(query.numbers.ranges) > MOST_RANGES:
        values["ranges"] = dialect.ranges(query.numbers.ranges)
    return values


def _order(query: JobQuery) -> str:
    direction = "DESC" if query.descending else "ASC"
    if query.sort == "number":
        return f"number {direction}"
    nulls = f" NULLS {'LAST' if query.descending else 'FIRST'}" if query.sort in _NULLABLE else ""
    return f"{_column(query)} {direction}{nulls}, number"


def _behind(dialect: Dialect, query: JobQuery, mark: Any) -> str:
    """The condition for all rows behind the mark, in the order of `_order`."""
    key, less_or_more = _column(query), "<" if query.descending else ">"
    if query.sort == "number":
        return f"number {less_or_more} :after"
    tie = f"({key} {dialect.same} :mark AND number > :after)"
    if mark is None:
        return tie if query.descending else f"({tie} OR {key} IS NOT NULL)"
    further = f"{key} {less_or_more} :mark"
    if query.descending:
        further = f"{further} OR {key} IS NULL"
    return f"({further} OR {tie})"


def _column(query: JobQuery) -> str:
    """The column to sort by, quoted, as `user` is a word of SQL."""
    return f'"{query.sort}"'
