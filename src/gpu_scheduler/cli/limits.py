"""`tgpu limits`: what you may have, what you hold, and what is left."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.cli.reach import add_server_options, client_for
from gpu_scheduler.client.forms import API
from gpu_scheduler.client.http1 import target

HEADINGS = ("WHO", "WHAT", "LIMIT", "USED", "LEFT", "PERIOD")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--tenant", metavar="T", help="in this tenant; default: your own")
    parser.add_argument("-u", "--user", metavar="NAME", help="of this user (for admins)")
    add_server_options(parser)


def run(args: Namespace) -> int:
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

        from gpu_scheduler.cli.moments import local_text

        period += f", anew {local_text(datetime.fromisoformat(one['turns_at']))}"
    numbers = (f"{round(one[name], 2):g}" for name in ("limit", "used", "left"))
    return [who, one["resource"], *numbers, period]
