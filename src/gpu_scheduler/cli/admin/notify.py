"""`tgpu notify`: list notification targets, and test one. Exit code 1 if the test fails."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, call, print_answer
from gpu_scheduler.cli.jobs.columns import local_time
from gpu_scheduler.cli.text.tables import print_table
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
    add_server_options(parser, table=True)


def run(args: Namespace) -> int:
    """List the targets, or test one."""
    if args.action == "test":
        if not args.target:
            raise InvalidRequest("'tgpu notify test' needs a target; 'tgpu notify' lists them")
        answer = call(args, "POST", f"{API}/notifications/{quoted(args.target)}/test")
        result = "test notification delivered"
        if not answer["delivered"]:
            result = f"delivery failed: {answer['error']}"
        print_answer(args, answer, f"{answer['target']}: {result}")
        return 0 if answer["delivered"] else EXIT_FAILED
    if args.target:
        raise InvalidRequest(f"unexpected argument '{args.target}' after 'list'")
    answer = call(args, "GET", f"{API}/notifications")
    rows, right = list(map(_row, answer["targets"])), ("WAITING", "SENT", "GIVEN UP")
    return print_answer(
        args,
        answer,
        (lambda: print_table(HEADINGS, rows, right=right))
        if rows
        else "no notification targets; an admin sets them up in notifications.targets",
    )


def _row(target: dict[str, Any]) -> list[str]:
    jobs = "default" if target["is_default"] else "yes" if target["for_jobs"] else "no"
    numbers = [target.get(name) for name in ("waiting", "delivered", "given_up")]
    error = target.get("last_error") or ""
    if error and target.get("next_try_at"):
        error += f" (next try {local_time(target['next_try_at'])})"
    return [
        target["name"],
        target["kind"],
        jobs,
        ",".join(target["events"]) or "-",
        *("-" if number is None else f"{number:,}" for number in numbers),
        error,
    ]
