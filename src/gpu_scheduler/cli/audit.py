"""`tgpu audit`: who changed what, and what was refused."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.durations import whole
from gpu_scheduler.cli.history import local_time
from gpu_scheduler.cli.jobs_view import seconds_at
from gpu_scheduler.cli.moments import moment_back
from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.cli.reach import add_server_options, client_for
from gpu_scheduler.client.forms import API
from gpu_scheduler.client.http1 import target

HEADINGS = ("TIME", "USER", "FROM", "BY", "WHAT", "TARGET", "OUTCOME", "TIMES", "DETAIL")
NARROW = ("TARGET", "OUTCOME")
SPARE = ("TIMES", "BY", "FROM", "DETAIL", "TARGET")
LARGEST_PAGE = 1000


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "The newest comes last, as in a log."
    add = parser.add_argument
    add("-u", "--user", metavar="NAME", help="only of this user")
    add("--action", metavar="WHAT", help="only this, such as submit, cancel or set_tenant")
    add("--refused", action="store_true", help="only what was refused")
    add("--since", metavar="TIME", help="as 2h, 7d (ago) or 2026-11-16")
    add(
        *("-L", "--limit"),
        type=whole("--limit"),
        default=100,
        metavar="N",
        help="show at most N, the newest; default 100, 0 shows all",
    )
    add_server_options(parser)


def run(args: Namespace) -> int:
    """List, the newest last, as in a log."""
    records: list[dict[str, Any]] = []
    query: dict[str, object] = {
        "user": args.user,
        "action": args.action,
        "outcome": "refused" if args.refused else None,
        "since": moment_back(args.since, "--since"),
    }
    with client_for(args) as client:
        while not args.limit or len(records) < args.limit:
            left = args.limit - len(records) if args.limit else LARGEST_PAGE
            query["limit"] = min(left, LARGEST_PAGE)
            page = client.call("GET", target(f"{API}/audit", query))
            records += page["records"]
            query["before"] = page["next_before"]
            if page["next_before"] is None:
                break
    # Refusals are gathered and written a little later, so their numbers are not in order of time.
    records.sort(key=lambda record: (seconds_at(record["at"]) or 0.0, record["number"]))
    if args.json:
        print_json({"records": records})
    else:
        rows = (_row(record) for record in records)
        print_table(HEADINGS, rows, right=("TIMES",), narrow=NARROW, spare=SPARE)
    return 0


def _row(record: dict[str, Any]) -> list[str]:
    outcome = record["outcome"] if not record["code"] else f"refused: {record['code']}"
    return [
        local_time(record["at"]),
        str(record["user"] or "-"),
        str(record["origin"] or "-"),
        str(record["via"] or "kernel"),
        str(record["action"]),
        str(record["target"] or "-"),
        outcome,
        str(record["count"]),
        str(record["detail"]),
    ]
