"""`tgpu usage`: who used how much."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.report import add_period_options, period_query
from gpu_scheduler.client.forms import API
from gpu_scheduler.client.http1 import target

KEPT = (None, "all", "current")
"""Periods of which the server keeps totals: all, and the present month."""
NOTHING_ENDED = (
    "nothing that counts has ended yet; '--period month' also counts what runs, up to now"
)
NOTHING_USED = "nothing was used in this period"
COLUMNS = (
    *("tenant_id", "user", "gpu_hours", "cpu_hours", "energy_kwh", "jobs"),
    *("completed", "failed", "cancelled", "preemptions", "lost_gpu_hours"),
)
"""What is shown as text; --json has everything."""
SPARE = (
    *("LOST_GPU_HOURS", "PREEMPTIONS", "ENERGY_KWH", "CPU_HOURS"),
    *("CANCELLED", "FAILED", "COMPLETED"),
)


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_period_options(parser, default=None)
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Show the usage of a period, by user or tenant."""
    with client_for(args) as client:
        if args.period in KEPT:
            answer = client.usage(tenant_id=args.tenant, user=args.user, period=args.period)
        else:
            answer = of_period(client.call("GET", target(f"{API}/report", period_query(args))))
    if args.json:
        print_json(answer)
        return 0
    rows = usage_rows(answer)
    if not rows:
        warn(NOTHING_ENDED if args.period in KEPT else NOTHING_USED)
        return 0
    present = {name for row in rows for name in row}
    headings = [name for name in COLUMNS if name in present] or sorted(present)
    right = [name.upper() for name in headings if name not in ("tenant_id", "tenant", "user")]
    print_table(
        [name.upper() for name in headings],
        ([_text(row.get(name), name) for name in headings] for row in rows),
        right=right,
        spare=SPARE,
    )
    return 0


def of_period(report: dict[str, Any]) -> dict[str, Any]:
    """The accounts of a report in the form of the totals, with what runs counted up to now."""
    return {
        "period": report["period"],
        "usage": [
            {"tenant_id": account["tenant_id"], "user": account["user"]}
            | account["sums"]
            | {"preemptions": account["sums"]["preempted"]}
            for account in (*report["tenants"], *report["users"])
        ],
    }


def usage_rows(answer: Any) -> list[dict[str, Any]]:
    """The list of rows in the answer, whatever its key."""
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
