"""Metrics as tables on a terminal, in a pipe and as JSON."""

import io
import json
from itertools import pairwise

import pytest
from rich.console import Console

from gpu_scheduler.simulator.metric_defs import (
    JOBS,
    MEAN_WAIT,
    UTILISATION,
    best_rows,
    count_text,
    duration_text,
    gpus_text,
    ratio_text,
)
from gpu_scheduler.simulator.metrics import measure
from gpu_scheduler.simulator.tables import (
    comparison_tables,
    partition_table,
    print_tables,
    tenant_table,
    to_json,
)
from tests.simulation.runs import a_busy_run, a_run, an_outcome


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.04, "0s"),
        (0.4, "0.4s"),
        (9.96, "10s"),
        (42, "42s"),
        (59.6, "1m 00s"),
        (307, "5m 07s"),
        (3599.7, "1h 00m"),
        (4 * 3600 + 5 * 60, "4h 05m"),
        (24 * 3600 - 10, "1d 00h"),
        (51 * 3600, "2d 03h"),
        (-90, "-1m 30s"),
    ],
)
def test_durations_are_human_readable(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_numbers_are_human_readable() -> None:
    assert [count_text(n) for n in (0, 0.5, 12, 12.6, 12345)] == ["0", "0.5", "12", "13", "12,345"]
    assert [ratio_text(n) for n in (1, 9.999, 46.53, 1240)] == ["1.00", "10.0", "46.5", "1,240"]
    assert [gpus_text(n) for n in (8000, 500, 1_024_000)] == ["8", "0.5", "1,024"]


def test_pipe_gets_one_plain_line_per_policy() -> None:
    policy = "a policy with [bold]brackets[/bold] and a name that is far too long for any window"
    lines = _printed([policy, "fifo"], terminal=False).splitlines()
    assert lines[0] == "Waiting and completion of 60 jobs"
    assert lines[1].split("  ")[0] == "policy"
    assert "median wait" in lines[1]
    assert lines[2].startswith(policy)
    assert len([line for line in lines if line.startswith(policy)]) == 3
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)


def test_all_wait_and_completion_percentiles_are_shown() -> None:
    measures = measure(a_busy_run("fifo"))
    shown = _printed(["fifo"], terminal=False)
    for name, spread in (("wait", measures.wait), ("JCT", measures.jct)):
        headings = ("mean", "median", "p90", "p99", "p99.9", "longest")
        values = (spread.mean_s, spread.median_s, spread.p90_s)
        values += (spread.p99_s, spread.p999_s, spread.max_s)
        for heading, value in zip(headings, values, strict=True):
            assert duration_text(value) == _cell(shown, f"{heading} {name}")


def test_terminal_emphasises_best_values() -> None:
    text = _printed(["slow", "fast"], terminal=True)
    fast = next(line for line in text.splitlines() if line.startswith("fast"))
    slow = next(line for line in text.splitlines() if line.startswith("slow"))
    assert "\x1b[1;32m" in fast
    assert "\x1b[1;32m" not in slow.split("%")[0]


def test_every_table_fits_80_columns() -> None:
    text = _printed(["fair share", "fifo"], terminal=True, width=80)
    assert "─" in text  # The boxed form was chosen, so there was room for it.
    assert max(len(line) for line in text.splitlines() if "\x1b" not in line) <= 80


def test_narrow_window_cuts_no_number() -> None:
    text = _printed(["fifo"], terminal=True, width=40)
    assert "…" not in text
    assert duration_text(measure(a_busy_run("fifo")).wait.p99_s) in text


def test_best_values_are_compared_as_displayed() -> None:
    runs = [
        measure(a_run(an_outcome(wait_s=wait_s, run_s=run_s)))
        for wait_s, run_s in ((36_000, 10), (36_010, 20), (72_000, 30))
    ]
    assert best_rows(MEAN_WAIT, runs) == {0, 1}  # Both read 10h 00m.
    assert best_rows(UTILISATION, [*runs, measure(a_run())]) == frozenset()  # All read 0.0%.
    assert best_rows(JOBS, [*runs, measure(a_run(an_outcome(), an_outcome()))]) == frozenset()
    assert best_rows(MEAN_WAIT, [*runs, measure(a_run())]) == {0, 1}  # No jobs, no merit.


def test_tenants_and_partitions_have_tables() -> None:
    measures = measure(a_busy_run("fifo"), {"vision": 3000})
    text = _text([tenant_table(measures), partition_table(measures)])
    assert "Tenants under fifo" in text
    vision = next(line for line in text.splitlines() if line.startswith("vision"))
    assert vision.split()[1] == "30"
    assert vision.endswith("75.0%")
    assert next(line for line in text.splitlines() if line.startswith("main")).endswith("4")


def test_json_names_units_and_keeps_keys() -> None:
    flat = to_json(measure(a_busy_run("fifo")))
    assert json.loads(json.dumps(flat)) == flat
    assert list(flat) == sorted(flat)
    assert list(flat) == list(to_json(measure(a_run())))
    assert {"mean_wait_s", "p999_wait_s", "max_jct_s", "makespan_s"} <= flat.keys()
    assert {"utilisation_percent", "lost_gpu_hours", "capacity_gpu_milli"} <= flat.keys()
    assert flat["mean_wait_s"] == 590
    tenants = flat["tenants"]
    assert isinstance(tenants, list)
    assert [tenant["name"] for tenant in tenants] == ["nlp", "vision"]
    assert to_json(measure(a_run()))["forecast"] is None


def _printed(policies: list[str], *, terminal: bool, width: int = 120) -> str:
    measures = [
        measure(a_busy_run(policy, stretch=3 if policy == "slow" else 1)) for policy in policies
    ]
    return _text(comparison_tables(measures), terminal=terminal, width=width)


def _text(tables: list, *, terminal: bool = False, width: int = 120) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=terminal,
        width=width if terminal else None,
        color_system="standard" if terminal else None,
        _environ={},
    )
    print_tables(tables, console)
    return out.getvalue()


def _cell(text: str, heading: str) -> str:
    """The values under a heading in the plain tables of one policy."""
    lines = text.splitlines()
    for line, row in pairwise(lines):
        if f" {heading} " in f"{line} ":
            end = line.index(heading) + len(heading)
            return row[:end].rpartition("  ")[2]
    raise AssertionError(f"no column {heading!r}")
