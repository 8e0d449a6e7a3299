"""`tgpu usage`: who used how much."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.cli.reach import add_server_options, client_for

COLUMNS = (
    *("tenant_id", "user", "gpu_hours", "cpu_hours", "energy_kwh", "jobs"),
    *("completed", "failed", "cancelled", "preemptions", "lost_gpu_hours"),
)
"""What is shown as text; --json has everything."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("-T", "--tenant", "--tenant-id", dest="tenant", metavar="T", help="only this tenant")
    add("-u", "--user", metavar="NAME", help="only this user")
    add("--period", metavar="P", help="day, week, month or all, as the server offers them")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Show."""
    with client_for(args) as client:
        answer = client.usage(tenant_id=args.tenant, user=args.user, period=args.period)
    if args.json:
        print_json(answer)
        return 0
    rows = usage_rows(answer)
    present = {name for row in rows for name in row}
    headings = [name for name in COLUMNS if name in present] or sorted(present)
    right = [name.upper() for name in headings if name not in ("tenant_id", "tenant", "user")]
    print_table(
        [name.upper() for name in headings],
        ([_text(row.get(name), name) for name in headings] for row in rows),
        right=right,
    )
    return 0


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
    return f"{value:.2f}" if isinstance(value, float) else str(value)
