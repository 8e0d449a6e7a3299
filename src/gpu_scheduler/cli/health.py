"""`tgpu health`: whether the server and its parts are well. Exit code 1 when it is unhealthy."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.durations import words_of
from gpu_scheduler.cli.output import coloured_state, print_json, print_pairs
from gpu_scheduler.cli.reach import add_server_options, client_for

EXIT_UNHEALTHY = 1


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Ask."""
    with client_for(args) as client:
        answer = client.health()
    if args.json:
        print_json(answer)
    else:
        print(coloured_state(str(answer.get("status"))))
        print_pairs(
            [
                ("version", str(answer.get("version") or "")),
                ("up for", words_of(float(answer.get("uptime_seconds") or 0))),
                *((name, check_text(value)) for name, value in checks_of(answer)),
            ]
        )
    return EXIT_UNHEALTHY if answer.get("status") == "unhealthy" else 0


def checks_of(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    """The single checks by name."""
    checks = answer.get("checks")
    return sorted(checks.items()) if isinstance(checks, dict) else []


def check_text(value: Any) -> str:
    """One check in a few words."""
    if isinstance(value, dict):
        state = str(value.get("status", ""))
        detail = str(value.get("detail") or value.get("message") or "")
        return f"{state}: {detail}" if detail else state
    return str(value)
