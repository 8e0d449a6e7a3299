"""`tgpu usage`, `tgpu limits` and `tgpu metrics`: what was used, what is left, and statistics."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from functools import partial
from statistics import fmean, median
from typing import Any

from gpu_scheduler.cli.accounting.report import add_period_options, period_query
from gpu_scheduler.cli.connection import (
    add_kube_options,
    add_server_options,
    call,
    client_for,
    print_answer,
    warn,
)
from gpu_scheduler.cli.jobs.columns import elapsed_s, seconds_at
from gpu_scheduler.cli.jobs.list import pages
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import painted, print_json, print_pairs, print_table
from gpu_scheduler.cli.text.values import positive, seconds
from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.requests import API, ENDED

THIS_MONTH = "current"
NO_USAGE = "no usage"
TOTALS_NOTE = "running jobs count up to now; CANCELLED includes jobs that never ran"
"""For the totals that the server keeps."""
REPORT_NOTE = "running jobs count up to now; CANCELLED counts only jobs that ran"
"""For the figures of a report."""
ABOUT = """\
Every attempt counts with what it holds, up to now if it runs, as in 'tgpu report'. Without a period
it is the total since the start. There, and in 'current' (this month in UTC), CANCELLED includes
jobs that were cancelled before they ran, and lost GPU-hours are shown; other periods are those of
'tgpu report', which counts runs. Usage does not decay with age here, as it does in fair share."""
COLUMNS = (
    *("tenant_id", "user", "gpu_hours", "cpu_hours", "energy_kwh", "jobs"),
    *("completed", "failed", "cancelled", "preemptions", "lost_gpu_hours"),
)
"""The columns of the table; --json has everything."""
SPARE = (
    *("LOST GPU HOURS", "PREEMPTIONS", "ENERGY KWH", "CPU HOURS"),
    *("CANCELLED", "FAILED", "COMPLETED"),
)


def register_usage(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = ABOUT
    add_period_options(parser, default=None)
    add_server_options(parser, table=True)


def run_usage(args: Namespace) -> int:
    """Show the usage of a period, by user or tenant."""
    with client_for(args) as client:
        if args.period == THIS_MONTH and args.time_zone:
            args.period = "month"
        has_totals = args.period in (None, "all", THIS_MONTH)
        if has_totals:
            answer = client.usage(tenant_id=args.tenant, user=args.user, period=args.period)
        else:
            report = client.call("GET", target(f"{API}/report", period_query(args)))
            # The accounts of a report in the form of the totals.
            answer = {
                "period": report["period"],
                "usage": [
                    {"tenant_id": account["tenant_id"], "user": account["user"]}
                    | account["sums"]
                    | {"preemptions": account["sums"]["preempted"]}
                    for account in (*report["tenants"], *report["users"])
                ],
            }
    if args.json:
        print_json(answer)
        return 0
    rows = usage_rows(answer)
    if not rows:
        warn(NO_USAGE)
        return 0
    present = {name for row in rows for name in row}
    headings = [name for name in COLUMNS if name in present] or sorted(present)
    right = [_heading(name) for name in headings if name not in ("tenant_id", "tenant", "user")]
    print_table(
        [_heading(name) for name in headings],
        ([_text(row.get(name), name) for name in headings] for row in rows),
        right=right,
        spare=SPARE,
    )
    warn(TOTALS_NOTE if has_totals else REPORT_NOTE)
    return 0


def _heading(name: str) -> str:
    """The heading of a column, as in other tables: GPU HOURS for gpu_hours."""
    return name.removesuffix("_id").replace("_", " ").upper()


def usage_rows(answer: Any) -> list[dict[str, Any]]:
    """The rows in the answer, whatever their key."""
    if isinstance(answer, list):
        return answer
    for value in answer.values():
        if isinstance(value, list) and all(isinstance(row, dict) for row in value):
            return value
    return [{name: value for name, value in answer.items() if not isinstance(value, dict | list)}]


def _text(value: object, name: str) -> str:
    if value is None:
        return "(all)" if name == "user" else "-"
    if name == "energy_kwh" and isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def register_correct_usage(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "Reports, bills, totals, budgets and fair share then count this run time. The times of the "
        "job itself stay. The change is in the audit log and in the events of the job."
    )
    add = Options(parser)
    add.word("job", "JOB", "12, or a task of an array: 12_4")
    add.value("--attempt", positive, "N", "which attempt; default: 1", default=1)
    add.value("--run-time", seconds, "TIME", "how long it really ran, as 90s", required=True)
    add.value("--reason", None, "TEXT", "why, for the audit log", required=True)
    add_server_options(parser)


def run_correct_usage(args: Namespace) -> int:
    """Charge an ended attempt for another run time."""
    with client_for(args) as client:
        answer = client.correct_usage(args.job, args.attempt, args.run_time, args.reason)
    if args.json:
        print_json(answer)
        return 0
    before, after = (f"{answer[name]:,.10g} s" for name in ("run_seconds_before", "run_seconds"))
    name = answer["job_id"] if answer["task"] is None else f"{answer['job_id']}_{answer['task']}"
    print(f"attempt {answer['attempt']} of {name} is charged for {after} instead of {before}")
    return 0


LIMIT_HEADINGS = ("WHO", "WHAT", "LIMIT", "USED", "LEFT", "PERIOD")


def register_limits(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--tenant", metavar="T", help="limits in this tenant; default: your own")
    parser.add_argument("-u", "--user", metavar="NAME", help="limits of this user (for admins)")
    add_server_options(parser, table=True)


def run_limits(args: Namespace) -> int:
    """Show limits, what is used of them and what is left."""
    from datetime import datetime

    from gpu_scheduler.cli.text.dates import local_text

    query: dict[str, object] = {"tenant_id": args.tenant, "user": args.user}
    answer = call(args, "GET", target(f"{API}/limits", query))
    rows = []
    for limit in answer["limits"]:
        account = (
            f"tenant {limit['tenant_id']}" if limit["user"] is None else f"user {limit['user']}"
        )
        period = limit["period"] or ""
        if limit["turns_at"]:
            period += f", resets {local_text(datetime.fromisoformat(limit['turns_at']))}"
        numbers = (f"{round(limit[name], 2):g}" for name in ("limit", "used", "left"))
        rows.append([account, limit["resource"], *numbers, period])
    return print_answer(
        args,
        answer,
        partial(print_table, LIMIT_HEADINGS, rows, right=("LIMIT", "USED", "LEFT"))
        if rows
        else "no limits",
    )


QUOTA_HEADINGS = ("NODE", "MODEL", "USED", "FREE", "GUARANTEED", "MAX", "BORROWED", "LENT")
QUOTA_NOTE = """\
Each row counts the node with all below it. USED + FREE = GUARANTEED + BORROWED - LENT: free GPUs
count for the nodes whose guarantees are idle. What the rows below a node borrow less what they lend
is what the node itself borrows less what it lends. '(others)' is what a node has beside the rows
below it: jobs in none of them, and guaranteed GPUs given to none."""


def register_quota(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = QUOTA_NOTE
    add_kube_options(parser, namespaced=False)
    add_server_options(parser, table=True)


def run_quota(args: Namespace) -> int:
    """Show the quota tree."""
    answer = call(args, "GET", f"{API}/quota/tree")
    names = ("used", "guaranteed", "max", "borrowed", "lent")
    for warning in answer.get("warnings", ()):
        warn(f"warning: {warning}")
    rows = []
    for node in answer["nodes"]:
        used, guaranteed, most, borrowed, lent = (node[f"{name}_gpus"] for name in names)
        free = guaranteed + borrowed - lent - used
        numbers = (used, free, guaranteed, most, borrowed, lent)
        model = "" if node["model"] == "*" else node["model"]
        cells = ("" if number is None else f"{round(number, 2):g}" for number in numbers)
        rows.append([f"{'  ' * node['level']}{node['name']}", model, *cells])
    return print_answer(
        args,
        answer,
        partial(print_table, QUOTA_HEADINGS, rows, right=QUOTA_HEADINGS[2:])
        if rows
        else "no GpuQueues"
        if args.kube
        else "no quota tree (setting quota_tree); 'tgpu tenants' shows the quotas of tenants",
    )


SAMPLE = 1000


def register_metrics(parser: ArgumentParser) -> None:
    """Add the options."""
    add = Options(parser)
    add.flag("--raw", "print the Prometheus metrics")
    last = f"use the last N ended jobs; default {SAMPLE}"
    add.value("--last", positive, "N", last, default=SAMPLE)
    add_server_options(parser)


def run_metrics(args: Namespace) -> int:
    """Show statistics as text, as JSON, or as Prometheus reads them."""
    with client_for(args) as client:
        if args.raw:
            print(client.text("/metrics"), end="")
            return 0
        query: dict[str, object] = {"state": ",".join(sorted(ENDED)), "sort": "-ended_at"}
        jobs, ended = pages(client, query, args.last)
        figures = summary(jobs, ended, client.status(), list(client.gpus()))
    if args.json:
        print_json(figures)
        return 0
    print(painted("Performance metrics", "bold"))
    gpus = figures.pop("gpus")
    labels = {"failed_jobs_of_the_last": f"failed of the last {len(jobs):,} ended"}
    print_pairs(
        (labels.get(name) or name.replace("_", " ").replace("gpu", "GPU"), _metric_text(value))
        for name, value in figures.items()
    )
    if gpus:
        print(painted("GPU utilisation since the server's start", "bold"))
        print_pairs((gpu["gpu"], _load_text(gpu)) for gpu in gpus)
    return 0


def summary(
    jobs: list[dict[str, Any]], ended: int, status: dict[str, Any], gpus: list[dict[str, Any]]
) -> dict[str, Any]:
    """The figures by name; None if unknown."""
    now = time.time()
    ran = [elapsed_s(job, now) for job in jobs if job.get("started_at")]
    waited = [
        (seconds_at(job["started_at"]) or 0) - (seconds_at(job["submitted_at"]) or 0)
        for job in jobs
        if job.get("started_at") and job.get("submitted_at")
    ]
    busy = [
        gpu["utilisation_percent"] for gpu in gpus if gpu.get("utilisation_percent") is not None
    ]
    shares = [float(gpu.get("allocated_share") or 0) for gpu in gpus]
    named = len({gpu.get("node") for gpu in gpus}) > 1
    return {
        "total_jobs": status.get("total_jobs"),
        "running_jobs": status.get("running_jobs"),
        "pending_jobs": status.get("pending_jobs"),
        "ended_jobs": ended,
        "failed_jobs_of_the_last": sum(job["state"] == "failed" for job in jobs),
        "mean_run_seconds": fmean(ran) if ran else None,
        "median_run_seconds": median(ran) if ran else None,
        "mean_wait_seconds": fmean(waited) if waited else None,
        "mean_gpu_utilisation_percent": fmean(busy) if busy else None,
        "allocated_gpu_percent": 100 * fmean(shares) if shares else None,
        "gpus": [
            {
                "gpu": (f"{gpu.get('node')}:" if named else "GPU ") + str(gpu.get("index")),
                "mean_percent": gpu.get("utilisation_mean_percent"),
                "peak_percent": gpu.get("utilisation_peak_percent"),
                "state": gpu.get("state") or "",
            }
            for gpu in gpus
        ],
    }


def _load_text(load: dict[str, Any]) -> str:
    """`78.5% avg, 95% peak`, and the state if the GPU is not in normal use."""
    if load["mean_percent"] is None:
        text = "not measured"
    else:
        text = f"{load['mean_percent']:.1f}% avg, {load['peak_percent']}% peak"
    state = load["state"]
    return text + ("" if state in ("", "free", "used", "shared") else f" ({state.upper()})")


def _metric_text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"
