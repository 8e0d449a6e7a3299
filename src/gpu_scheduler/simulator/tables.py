"""Measures as tables for a terminal and as JSON for machines.

A terminal gets boxes and colour; a pipe gets the same rows as plain, aligned text that is never
cut to a width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gpu_scheduler.predict.start_ranges import HORIZONS_MS
from gpu_scheduler.simulator.metric_defs import (
    CLUSTER,
    NOTHING,
    SERVICE,
    TAIL,
    Column,
    best_rows,
    count_text,
    duration_text,
    gpus_text,
    percent_text,
    ratio_text,
)
from gpu_scheduler.simulator.metrics import GroupMeasures, Measures
from gpu_scheduler.simulator.range_quality import RangeQuality

BEST_STYLE = "bold green"
DECIMALS = 6
UNBOUNDED_WIDTH = 100_000


def comparison_tables(measures: Sequence[Measures]) -> list[Table]:
    """One row per policy: quality of service, the tail of waits and run times, and efficiency.

    Three tables, so that each fits into a window of 80 columns.
    """
    counts = sorted({run.jobs for run in measures}) or [0]
    jobs = " to ".join(count_text(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return [
        _comparison(f"Waiting and completion of {jobs} jobs", SERVICE, measures),
        _comparison("The slowest", TAIL, measures),
        _comparison("Cluster", CLUSTER, measures),
    ]


def tenant_table(measures: Measures) -> Table:
    """One row per tenant of one run."""
    rows = []
    for tenant in measures.tenants:
        backlogged = tenant.backlogged_share_percent
        shares = (
            percent_text(tenant.share_percent),
            NOTHING if backlogged is None else percent_text(backlogged),
            percent_text(tenant.entitled_share_percent),
        )
        rows.append((*_group_cells(tenant), *shares))
    headings = ("tenant", *_GROUP_HEADINGS, "share", "in queue", "by weight")
    return _table(f"Tenants under {measures.policy}", headings, rows)


def partition_table(measures: Measures) -> Table:
    """One row per partition of one run."""
    rows = []
    for partition in measures.partitions:
        capacity = partition.capacity_gpu_milli
        gpus = NOTHING if capacity is None else gpus_text(capacity)
        rows.append((*_group_cells(partition), gpus))
    headings = ("partition", *_GROUP_HEADINGS, "GPUs")
    return _table(f"Partitions under {measures.policy}", headings, rows)


def ranges_table(ranges: Mapping[str, RangeQuality]) -> Table:
    """One row per policy: how often starts fell into their ranges, and how sharp these were."""
    horizons = ("10m", "1h", "4h", "16h", "longer")
    rows = []
    for policy, quality in ranges.items():
        covered = {one.up_to_s: one for one in quality.horizons}
        cells = [
            f"{percent_text(found.covered_percent)} of {count_text(found.jobs)}"
            if (found := covered.get(up_to_s)) is not None
            else NOTHING
            for up_to_s in (*(bound_ms // 1000 for bound_ms in HORIZONS_MS), None)
        ]
        rows.append(
            (
                policy,
                count_text(quality.jobs),
                percent_text(quality.covered_percent),
                *cells,
                duration_text(quality.interval_score_s),
                duration_text(quality.recent_waits_score_s),
                percent_text(quality.better_percent),
            )
        )
    headings = ("policy", "jobs", "within", *horizons, "score", "recent waits", "better")
    return _table("Ranges of 80 % around forecast starts, by forecast wait", headings, rows)


def print_tables(tables: Iterable[Table], console: Console) -> None:
    """Print boxes to a terminal, plain aligned text to a pipe."""
    for table in tables:
        wide = console.options.update(width=UNBOUNDED_WIDTH)
        if console.is_terminal and Measurement.get(console, wide, table).maximum <= console.width:
            console.print(table)
            console.print()
        else:
            _print_plain(table, console)


def to_json(measures: Measures) -> dict[str, object]:
    """Measures under stable keys that carry their units, ready for `json.dumps`."""
    flat = asdict(measures)
    for name in ("wait", "jct"):
        # `mean_s` of `wait` becomes `mean_wait_s`.
        durations = flat.pop(name).items()
        flat |= {f"{key.removesuffix('_s')}_{name}_s": value for key, value in durations}
    if flat["forecast"] is not None:
        flat["forecast"] = _rounded(flat["forecast"])
    for name in ("tenants", "partitions"):
        flat[name] = [_rounded(group) for group in flat[name]]
    return _rounded(flat)


def _print_plain(table: Table, console: Console) -> None:
    """Print every row on one line, however long, without boxes and without trailing blanks."""
    table.box = None
    table.padding = (0, 2, 0, 0)
    for column in table.columns:
        column.header = str(column.header).replace("\n", " ")
    wide = console.options.update(width=UNBOUNDED_WIDTH)
    width = Measurement.get(console, wide, table).maximum
    for line in console.render_lines(table, wide.update(width=width), pad=False):
        text = "".join(segment.text for segment in line).rstrip()
        console.print(Text(text), soft_wrap=True)
    console.print()


_GROUP_HEADINGS = ("jobs", "GPU-hours", "mean wait", "mean JCT", "slowdown")


def _group_cells(group: GroupMeasures) -> tuple[str, ...]:
    return (
        group.name,
        count_text(group.jobs),
        count_text(group.gpu_hours),
        duration_text(group.mean_wait_s),
        duration_text(group.mean_jct_s),
        ratio_text(group.mean_bounded_slowdown),
    )


def _comparison(title: str, columns: Sequence[Column], measures: Sequence[Measures]) -> Table:
    best = {column.key: best_rows(column, measures) for column in columns}
    rows: list[Sequence[str | Text]] = [
        (
            run.policy,
            *(
                Text(column.text(run), style=BEST_STYLE if row in best[column.key] else "")
                for column in columns
            ),
        )
        for row, run in enumerate(measures)
    ]
    return _table(title, ("policy", *(column.label for column in columns)), rows)


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A name, then numbers. Cells are `Text`, so that a name with brackets is not markup."""
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for place, heading in enumerate(headings):
        # Headings are stacked, because numbers need less room than the words above them.
        stacked = heading.replace(" ", "\n")
        table.add_column(stacked, justify="right" if place else "left", vertical="bottom")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    for column in table.columns:
        column.no_wrap = True
    return table


def _rounded(values: dict[str, object]) -> dict[str, object]:
    """Round floating-point values, and sort by key."""
    return {
        key: round(value, DECIMALS) if isinstance(value, float) else value
        for key, value in sorted(values.items())
    }
