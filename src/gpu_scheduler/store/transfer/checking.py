"""Whether what a database holds fits together: counts, numbers, and what rows name."""

from __future__ import annotations

from gpu_scheduler.store.queries import named_queries
from gpu_scheduler.store.transfer.copying import Side

SIZED = ("jobs", "archived_jobs", "attempts", "nodes", "tenants", "audit")
_FOUND = {
    "numbers": "numbers of jobs are still to be given out",
    "events": "pieces of history have numbers that are still to be given out",
    "specs": "jobs have no wishes (specs)",
    "launches": "jobs have no way to be run (launches)",
    "twice": "jobs are archived and not archived at once",
    "undercounted": "kinds of jobs are counted wrongly (job_counts)",
    "overcounted": "counts are not those of the jobs (job_counts)",
}


def problems(side: Side) -> list[str]:
    """What does not fit together, in sentences; empty if all does."""
    queries = named_queries("check.sql")
    counts = {name: len(side.ask(queries[name])) for name in _FOUND}
    return [f"{count} {_FOUND[name]}" for name, count in counts.items() if count]


def sizes(side: Side) -> dict[str, int]:
    """How many rows the tables have that people ask for."""
    return {
        table: int(side.ask(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608
        for table in SIZED
    }
