"""`tgpu list`: jobs that wait or run, one to a line."""

from __future__ import annotations

import time

from gpu_scheduler.cli.connection import add_server_options, client_for, mine, warn
from gpu_scheduler.cli.jobs.columns import (
    HEADINGS,
    NARROW,
    RIGHT,
    SPARE,
    SPARE_OF_ALL,
    STATES,
    end_text,
    row,
    with_end,
)
from gpu_scheduler.cli.text.tables import print_json, print_table
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.requests import ACTIVE, ENDED
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from gpu_scheduler.client.client import Client

PAGE = 200
_LARGEST_PAGE = 1000
_CODES = {code.lower(): state for state, code in STATES.items()}
_RUNNING = tuple(state for state in ACTIVE if state != "pending")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("-u", "--user", metavar="NAME", help="jobs of this user; 'all' for everybody's")
    add("-A", "--everybody", action="store_true", help="the same as --user all")
    add("-s", "--state", "--status", dest="state", metavar="STATE", help="pending, R, failed, all")
    add("-T", "--tenant", "--tenant-id", dest="tenant", metavar="T", help="jobs of this tenant")
    add("-J", "--name", metavar="NAME", help="jobs of this name")
    add("--sort", metavar="KEY", help="as -priority, name, user or state")
    add(
        *("-L", "--limit"),
        type=whole("--limit"),
        default=PAGE,
        metavar="N",
        help=f"show at most N, of ended jobs the newest; default {PAGE}, 0 shows all",
    )
    add("-q", "--parsable", action="store_true", help="print job ids alone")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """List the jobs that were asked for, and say if there are more."""
    with client_for(args) as client:
        jobs, total = found_jobs(client, args)
    if args.json:
        print_json({"jobs": jobs, "total": total})
        return 0
    if args.parsable:
        print("".join(f"{job['id']}\n" for job in jobs), end="")
    else:
        _print(jobs, with_ends=args.everybody or bool(args.user))
    if total > len(jobs):
        warn(f"{len(jobs):,} of {total:,} jobs shown; --limit 0 shows all")
    return 0


def _print(jobs: list[dict[str, Any]], *, with_ends: bool) -> None:
    """A line for each. Of others one may know little, but when they make room."""
    now = time.time()
    headings, rows = list(HEADINGS), [row(job, now) for job in jobs]
    if with_ends:
        headings = with_end(headings, "END")
        rows = [with_end(cells, end_text(job, now)) for cells, job in zip(rows, jobs, strict=True)]
    spare = SPARE_OF_ALL if with_ends else SPARE
    print_table(headings, rows, right=RIGHT, narrow=NARROW, spare=spare)


def found_jobs(client: Client, args: Namespace) -> tuple[list[dict[str, Any]], int]:
    """The jobs to show, those that run first, and how many there are in all."""
    query: dict[str, object] = {
        "user": None if args.everybody or args.user == "all" else args.user or mine(),
        "tenant_id": args.tenant,
        "name": args.name,
        "sort": args.sort or "number",
    }
    states = states_of(args.state)
    if not args.sort and (states is None or ENDED.intersection(states)):
        # Of all that ever ended, the latest are meant; they are shown in their order all the same.
        query |= {"sort": "-number", "state": states and ",".join(states)}
        newest, total = pages(client, query, args.limit)
        return newest[::-1], total
    if states != ACTIVE or args.sort:
        return pages(client, query | {"state": states and ",".join(states)}, args.limit)
    # Two questions, so that what runs is seen also when ten thousand others wait.
    first, count = pages(client, query | {"state": ",".join(_RUNNING)}, args.limit)
    left = max(1, args.limit - len(first)) if args.limit else 0
    rest, more = pages(client, query | {"state": "pending"}, left)
    jobs = first + rest
    return (jobs[: args.limit] if args.limit else jobs), count + more


def pages(client: Client, query: dict[str, object], limit: int) -> tuple[list[dict[str, Any]], int]:
    """So many jobs (0: all of them), and how many there are."""
    jobs: list[dict[str, Any]] = []
    total = 0
    while True:
        size = min(limit - len(jobs), _LARGEST_PAGE) if limit else _LARGEST_PAGE
        page = client.page(**query, limit=size)
        jobs += page["jobs"]
        total = page.get("total", len(jobs))
        if not page.get("next_cursor") or (limit and len(jobs) >= limit):
            return jobs, max(total, len(jobs))
        query = query | {"cursor": page["next_cursor"]}


def states_of(text: str | None) -> tuple[str, ...] | None:
    """The states that are meant: by default the active ones, for `all` no condition."""
    if text is None or text == "active":
        return ACTIVE
    if text == "all":
        return None
    found = []
    for word in text.lower().split(","):
        state = _CODES.get(word, word)
        if word == "ended":
            found += sorted(ENDED)
        elif state in STATES:
            found.append(state)
        else:
            raise InvalidRequest(
                f"--state has '{word}'; expected {', '.join(STATES)}, active, ended or all"
            )
    return tuple(found)
