"""`tgpu notify`: list notification targets, and test one. Exit code 1 if the test fails."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for
from gpu_scheduler.cli.jobs.columns import local_time
from gpu_scheduler.cli.text.tables import print_json, print_table
from gpu_scheduler.client.http1 import quoted
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

ACTIONS = ("list", "test")
HEADINGS = ("TARGET", "KIND", "FOR JOBS", "EVENTS", "WAITING", "SENT", "GIVEN UP", "LAST ERROR")
EXIT_FAILED = 1


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s [list] | test TARGET"
    add = parser.add_argument
    add("action", nargs="?", choices=ACTIONS, default="list", help="default: list")
    add("target", nargs="?", metavar="TARGET", help="the target to test")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """List the targets, or test one."""
    with client_for(args) as client:
        if args.action == "test":
            if not args.target:
                raise InvalidRequest("'tgpu notify test' needs a target; 'tgpu notify' lists them")
            path = f"{API}/notifications/{quoted(args.target)}/test"
            return _print_test(client.call("POST", path), args)
        if args.target:
            raise InvalidRequest(f"unexpected argument '{args.target}' after 'list'")
        answer = client.call("GET", f"{API}/notifications")
    if args.json:
        print_json(answer)
        return 0
    print_table(HEADINGS, map(_row, answer["targets"]), right=("WAITING", "SENT", "GIVEN UP"))
    return 0


def _print_test(answer: dict[str, Any], args: Namespace) -> int:
    if args.json:
        print_json(answer)
    elif answer["delivered"]:
        print(f"{answer['target']}: test notification delivered")
    else:
        print(f"{answer['target']}: delivery failed: {answer['error']}")
    return 0 if answer["delivered"] else EXIT_FAILED


def _row(target: dict[str, Any]) -> list[str]:
    jobs = "default" if target["is_default"] else "yes" if target["for_jobs"] else "no"
    error = target.get("last_error") or ""
    if error and target.get("next_try_at"):
        error += f" (next try {local_time(target['next_try_at'])})"
    return [
        target["name"],
        target["kind"],
        jobs,
        ",".join(target["events"]) or "-",
        *(_figure(target.get(name)) for name in ("waiting", "delivered", "given_up")),
        error,
    ]


def _figure(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
