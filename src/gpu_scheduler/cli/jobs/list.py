"""`tgpu list` and `tgpu history`: active jobs and ended jobs, one per line."""

from __future__ import annotations

import time

from gpu_scheduler.cli.connection import (
    ME,
    add_kube_options,
    add_server_options,
    client_for,
    mine,
    warn,
)
from gpu_scheduler.cli.jobs.columns import (
    COLUMNS_HELP,
    HEADINGS,
    NARROW,
    RIGHT,
    SPARE,
    SPARE_OF_ALL,
    STATES,
    elapsed_text,
    end_text,
    energy_text,
    exit_text,
    gpus_text,
    id_text,
    local_time,
    print_columns,
    row,
    short_name,
    state_code,
    user_advice,
    with_end,
)
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import in_local_time, print_json, print_table
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.requests import ACTIVE, ENDED
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from gpu_scheduler.client.client import Client

PAGE = 200
HISTORY_PAGE = 50
HISTORY_HEADINGS = (
    *("JOBID", "NAME", "USER", "ST", "EXIT", "ENDED", "TIME", "GPUS", "ENERGY", "REASON"),
)
HISTORY_RIGHT = ("EXIT", "TIME", "GPUS", "ENERGY")
HISTORY_SPARE = ("ENERGY", "USER", "GPUS", "TIME", "ENDED")
_LARGEST_PAGE = 1000
_CODES = {code.lower(): state for state, code in STATES.items()}
_RUNNING = tuple(state for state in ACTIVE if state != "pending")


def _add_filters(parser: ArgumentParser) -> Options:
    add = Options(parser)
    add.value("-u --user", None, "NAME", "jobs of this user; 'all' for all users")
    add.flag("-A --everybody", "the same as --user all; with --kube all namespaces")
    add.value("-T --tenant --tenant-id", None, "T", "jobs of this tenant")
    add.value("-J --name", None, "PATTERN", "jobs with this name; 'train*' also works")
    return add


def _filter_query(args: Namespace) -> dict[str, object]:
    is_of_all = args.everybody or args.user == "all" or getattr(args, "kube", False)
    return {
        "user": None if is_of_all else args.user or mine(),
        "tenant_id": args.tenant,
        "name": args.name,
    }


def _warn_of_unknown_user(client: Client, args: Namespace, jobs: list[dict[str, Any]]) -> None:
    """An empty list of an unknown user is probably a typing error."""
    if jobs or args.user in (None, "all", ME):
        return
    advice = user_advice(client, args.user)
    if advice:
        warn(f"warning: {advice}")


def register_list(parser: ArgumentParser) -> None:
    """Add the options of `tgpu list`."""
    add = _add_filters(parser)
    add.value("-s -t --state --status", None, "STATE", "pending, R, failed, all")
    add.value("--columns", None, "LIST", COLUMNS_HELP)
    add.value("--sort", None, "KEY", "such as -priority, name, user or state")
    most = f"show at most N, the newest of ended jobs; default {PAGE}, 0 shows all"
    add.value("-L --limit", whole, "N", most, default=PAGE)
    add.flag("-q --parsable", "print job ids alone")
    add_kube_options(parser)
    add_server_options(parser, table=True)


def run_list(args: Namespace) -> int:
    """List jobs, and say if there are more."""
    if args.kube and args.user:
        raise InvalidRequest("pods have no user; use --namespace NAME, or -A for all namespaces")
    with client_for(args) as client:
        jobs, total = found_jobs(client, args)
        _warn_of_unknown_user(client, args, jobs)
    if args.json:
        print_json({"jobs": jobs, "total": total})
        return 0
    if args.parsable:
        print("".join(f"{job['id']}\n" for job in jobs), end="")
    elif args.columns:
        print_columns(args.columns, jobs, time.time())
    else:
        now = time.time()
        headings, rows = list(HEADINGS), [row(job, now) for job in jobs]
        # With jobs of other users also show when they should end.
        with_ends = args.everybody or bool(args.user)
        if with_ends:
            headings = with_end(headings, "END")
            ends = [end_text(job, now) for job in jobs]
            rows = [with_end(cells, end) for cells, end in zip(rows, ends, strict=True)]
        spare = SPARE_OF_ALL if with_ends else SPARE
        print_table(headings, rows, right=RIGHT, narrow=NARROW, spare=spare)
    if total > len(jobs):
        warn(f"{len(jobs):,} of {total:,} jobs shown; --limit 0 shows all")
    return 0


def found_jobs(client: Client, args: Namespace) -> tuple[list[dict[str, Any]], int]:
    """The jobs to show, running ones first, and the total number."""
    query = _filter_query(args) | {"sort": args.sort or "number"}
    states = states_of(args.state)
    if not args.sort and (states is None or ENDED.intersection(states)):
        # Of ended jobs take the latest, but show them in order of submission.
        query |= {"sort": "-number", "state": states and ",".join(states)}
        newest, total = pages(client, query, args.limit)
        return newest[::-1], total
    if states != ACTIVE or args.sort:
        return pages(client, query | {"state": states and ",".join(states)}, args.limit)
    # Two requests, so that running jobs are shown even if ten thousand others are pending.
    first, count = pages(client, query | {"state": ",".join(_RUNNING)}, args.limit)
    left = max(1, args.limit - len(first)) if args.limit else 0
    rest, more = pages(client, query | {"state": "pending"}, left)
    jobs = first + rest
    return (jobs[: args.limit] if args.limit else jobs), count + more


def pages(client: Client, query: dict[str, object], limit: int) -> tuple[list[dict[str, Any]], int]:
    """Up to `limit` jobs (0: all), and the total number; the name may be a pattern."""
    name = str(query.get("name") or "")
    if "*" in name or "?" in name:
        from fnmatch import fnmatchcase

        every, _ = pages(client, query | {"name": None}, 0)
        named = [job for job in every if fnmatchcase(job.get("name", ""), name)]
        return (named[:limit] if limit else named), len(named)
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
    """The states to show: by default the active ones; None, which is any, for `all`."""
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
                f"--state is '{word}'; expected {', '.join(STATES)}, active, ended or all"
            )
    return tuple(found)


def register_history(parser: ArgumentParser) -> None:
    """Add the options of `tgpu history`."""
    add = _add_filters(parser)
    add.value("-s -t --state", None, "STATE", "completed, failed, cancelled", default="ended")
    add.value("--since", None, "TIME", "ended since then: 2h, 7d (ago) or 2026-11-16")
    add.value("--until", None, "TIME", "ended before then")
    add.value("--columns", None, "LIST", COLUMNS_HELP)
    add.flag("--archived", "also jobs in the archive")
    most = f"show at most N; default {HISTORY_PAGE}, 0 shows all"
    add.value("-L --limit", whole, "N", most, default=HISTORY_PAGE)
    add_server_options(parser, table=True)


def run_history(args: Namespace) -> int:
    """List jobs that have ended, the latest first."""
    from gpu_scheduler.cli.text.dates import past_moment

    query = _filter_query(args) | {
        "state": ",".join(_ended_states(args.state)),
        "sort": "-ended_at",
        "archived": "true" if args.archived else None,
        "ended_since": past_moment(args.since, "--since"),
        "ended_before": past_moment(args.until, "--until"),
    }
    with client_for(args) as client:
        jobs, total = pages(client, query, args.limit)
        _warn_of_unknown_user(client, args, jobs)
    if args.json:
        print_json({"jobs": jobs, "total": total})
        return 0
    if args.columns:
        print_columns(args.columns, jobs, time.time())
        return 0
    now = time.time()
    rows = [
        [
            id_text(job),
            short_name(job),
            str(job.get("user", "")),
            state_code(job),
            exit_text(job),
            local_time(job.get("ended_at")),
            elapsed_text(job, now),
            gpus_text(job),
            energy_text(job),
            in_local_time(str(job.get("reason") or "")),
        ]
        for job in jobs
    ]
    print_table(HISTORY_HEADINGS, rows, right=HISTORY_RIGHT, narrow=NARROW, spare=HISTORY_SPARE)
    if total > len(jobs):
        warn(f"{len(jobs):,} of {total:,} jobs shown; --limit 0 shows all")
    return 0


def _ended_states(text: str) -> tuple[str, ...]:
    """The states that `--state` names; one in which a job has not ended is rejected."""
    states = states_of("ended" if text == "all" else text) or ()
    for state in states:
        if state not in ENDED:
            raise InvalidRequest(
                f"--state is '{state}', but history shows ended jobs; expected "
                f"{', '.join(sorted(ENDED))}, ended or all; "
                "'tgpu list --state' shows pending and running jobs"
            )
    return states
