"""`tgpu usage`: who used how much."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.accounting.report import add_period_options, period_query
from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.text.tables import print_json, print_table
from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.requests import API

THIS_MONTH = "current"
NOTHING_USED = "nothing was used"
WITH_WAITING = "what runs counts up to now; CANCELLED also counts what never ran"
"""Of totals that the server keeps."""
WITHOUT_WAITING = "what runs counts up to now; CANCELLED counts only what ran"
"""Of a report."""
ABOUT = """\
Every attempt counts for what it holds, up to now if it runs, as in 'tgpu report'. Without a period
it is all since the beginning. There, and in 'current' (this month of UTC), CANCELLED also counts
jobs that were cancelled before they ran, and lost GPU-hours are told; other periods are those of
'tgpu report', which counts runs. Nothing fades with age here, as it does in the fair share."""
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
    parser.epilog = ABOUT
    add_period_options(parser, default=None)
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Show the usage of a period, by user or tenant."""
    with client_for(args) as client:
        if args.period == THIS_MONTH and args.time_zone:
            args.period = "month"
        is_kept = args.period in (None, "all", THIS_MONTH)
        if is_kept:
            answer = client.usage(tenant_id=args.tenant, user=args.user, period=args.period)
        else:
            answer = of_period(client.call("GET", target(f"{API}/report", period_query(args))))
    if args.json:
        print_json(answer)
        return 0
    rows = usage_rows(answer)
    if not rows:
        warn(NOTHING_USED)
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
    warn(WITH_WAITING if is_kept else WITHOUT_WAITING)
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


# --- `tgpu limits`: what you may have, what you hold, and what is left.

HEADINGS = ("WHO", "WHAT", "LIMIT", "USED", "LEFT", "PERIOD")


def register_limits(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--tenant", metavar="T", help="in this tenant; default: your own")
    parser.add_argument("-u", "--user", metavar="NAME", help="of this user (for admins)")
    add_server_options(parser)


def limits(args: Namespace) -> int:
    """Show limits, what counts towards them, and what is left."""
    with client_for(args) as client:
        path = target(f"{API}/limits", {"tenant_id": args.tenant, "user": args.user})
        answer = client.call("GET", path)
    if args.json:
        print_json(answer)
    elif answer["limits"]:
        rows = [_row(one) for one in answer["limits"]]
        print_table(HEADINGS, rows, right=("LIMIT", "USED", "LEFT"))
    else:
        print("there are no limits but the size of the machine")
    return 0


def _row(one: dict[str, Any]) -> list[str]:
    who = f"tenant {one['tenant_id']}" if one["user"] is None else f"user {one['user']}"
    period = one["period"] or ""
    if one["turns_at"]:
        from datetime import datetime

        from gpu_scheduler.cli.text.dates import local_text

        period += f", anew {local_text(datetime.fromisoformat(one['turns_at']))}"
    numbers = (f"{round(one[name], 2):g}" for name in ("limit", "used", "left"))
    return [who, one["resource"], *numbers, period]
