"""`tgpu explain`: why a job waits, and until when."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for
from gpu_scheduler.cli.jobs.columns import references, seconds_at
from gpu_scheduler.cli.jobs.history import local_time
from gpu_scheduler.cli.text.tables import (
    coloured_state,
    in_local_time,
    painted,
    print_json,
    print_pairs,
    visible,
)
from gpu_scheduler.cli.text.values import words_of


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, last, @~1, all")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Say of each job why it waits, or how it fares."""
    with client_for(args) as client:
        answers = [client.explain(str(one)) for one in references(client, args.jobs)]
    if args.json:
        print_json(answers[0] if len(answers) == 1 else answers)
        return 0
    for answer in answers:
        _print(answer, time.time())
    return 0


def _print(answer: dict[str, Any], now: float) -> None:
    state = str(answer.get("state", ""))
    print(f"{painted(str(answer['job_id']), 'bold')}  {coloured_state(state)}")
    if answer.get("reason"):
        print(f"  {in_local_time(visible(str(answer['reason'])))}")
    position = answer.get("position")
    print_pairs(
        [
            ("place in line", "" if position is None else str(position)),
            *_start(answer, now),
            ("expected end", end_text(answer, now)),
            *(
                (f"GPU {place}", visible(str(trouble)))
                for place, trouble in (answer.get("details", {}).get("gpus") or {}).items()
            ),
        ]
    )


def _start(answer: dict[str, Any], now: float) -> list[tuple[str, str]]:
    """When it should start; of what runs, when it did."""
    if answer.get("state") in ("running", "scheduled"):
        return [("started", local_time(answer.get("expected_start")))]
    return [("expected start", about(answer, now))]


def end_text(answer: dict[str, Any], now: float) -> str:
    """The expected end, or why there is none."""
    unknown = visible(str(answer.get("end_unknown") or ""))
    return f"not known: {unknown}" if unknown else expected(answer.get("expected_end"), now)


def about(answer: dict[str, Any], now: float) -> str:
    """The expected start; one that was not worked out step by step says so."""
    if answer.get("start_unknown"):
        return f"not known: {visible(str(answer['start_unknown']))}"
    text = expected(answer.get("expected_start"), now)
    why = {"rough": "by the work ahead", "dependency": "when what it waits for should be over"}
    basis = why.get(str(answer.get("basis")))
    return f"about {text}, {basis}" if text and basis else text


def expected(text: str | None, now: float) -> str:
    """A time to come, and how far off it is."""
    at = seconds_at(text)
    if at is None:
        return ""
    ahead = f"in {words_of(at - now)}" if at > now else "now"
    return f"{local_time(text)} ({ahead})"
