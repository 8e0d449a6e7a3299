"""`tgpu health`: whether the server and its parts are well, and what to do if not.

Exit code 1 when it is unhealthy; with --strict also when it is degraded.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from gpu_scheduler.cli.durations import words_of
from gpu_scheduler.cli.output import coloured_state, print_json, print_pairs, visible
from gpu_scheduler.cli.reach import add_server_options, client_for

EXIT_UNHEALTHY = 1


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 also when it is only degraded"
    )
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Ask the server how it is; what is not well ends with an exit code."""
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
        for line in (*leadership_lines(answer), *reason_lines(answer)):
            print(line)
    bad = ("unhealthy", "degraded") if args.strict else ("unhealthy",)
    return EXIT_UNHEALTHY if answer.get("status") in bad else 0


def reason_lines(answer: dict[str, Any]) -> Iterator[str]:
    """What is wrong, each with what to do."""
    for reason in answer.get("reasons") or []:
        yield f"{coloured_state(str(reason['status']))}: {visible(str(reason['detail']))}"
        yield f"  what to do: {visible(str(reason['remedy']))}"


def leadership_lines(answer: dict[str, Any]) -> Iterator[str]:
    """Who leads, where there can be several servers."""
    found = answer.get("leadership")
    if not found:
        return
    leader = found["leader"] or "nobody"
    place = f" at {found['leader_address']}" if found["leader_address"] else ""
    standbys = ", ".join(one["name"] for one in found["standbys"]) or "none"
    asked = "" if found["role"] == "leader" else f" (asked: {found['name']}, {found['role']})"
    told = f"{leader}{place} leads, term {found['term']}; standing by: {standbys}{asked}"
    yield visible(told)


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
