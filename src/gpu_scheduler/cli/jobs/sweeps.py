"""`tgpu sweep` shows parameter sweeps as grids, and retries or cancels their jobs."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import (
    add_server_options,
    client_for,
    mine,
    print_answer,
    warn,
)
from gpu_scheduler.cli.jobs.columns import (
    elapsed_text,
    exit_text,
    id_text,
    local_time,
    one_reference,
    state_code,
)
from gpu_scheduler.cli.jobs.list import pages
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import coloured_state, painted, print_json, print_table, visible
from gpu_scheduler.client.errors import EXIT_NOT_FOUND
from gpu_scheduler.client.requests import API, job_path
from gpu_scheduler.model.errors import (
    InvalidRequest,
    SchedulerError,
    UnknownThing,
)

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

ACTIONS = ("retry", "cancel")
ORDER = ("completed", "running", "scheduled", "preempted", "pending", "failed", "cancelled")
PARALLEL_REQUESTS = 16
MOST_COLUMNS = 12
"""A wider grid becomes a table."""
MOST_NAMED = 5


class NoSweep(UnknownThing):
    """The caller has no such sweep."""

    exit_code = EXIT_NOT_FOUND


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.usage = "%(prog)s [options] [NAME | JOB] | retry NAME | cancel NAME"
    add = Options(parser)
    about = "a sweep, or one of its jobs; without one, list your sweeps"
    add.word("words", "NAME", about, nargs="*")
    add.flag("--table", "one line per job, also with two parameters")
    add.flag("--cancelled", "retry: also the cancelled jobs")
    add_server_options(parser, table=True)


def run(args: Namespace) -> int:
    """List sweeps, show one, or retry or cancel its jobs."""
    words = list(args.words)
    action = words.pop(0) if words and words[0] in ACTIONS else ""
    if len(words) > 1 or (action and not words):
        raise InvalidRequest(
            "name one sweep, as in 'tgpu sweep NAME' or 'tgpu sweep retry NAME'; "
            "'tgpu sweep' lists them"
        )
    with client_for(args) as client:
        if not words:
            return _list(client, args)
        name, jobs = found_sweep(client, words[0])
        if action:
            return _change(args, action, jobs)
    document = {"sweep": name, "jobs": jobs}
    return print_answer(args, document, lambda: show(name, jobs, as_table=args.table))


def found_sweep(client: Client, word: str) -> tuple[str, list[dict[str, Any]]]:
    """The sweep with this name, a unique prefix of it, or this job: its name and its jobs."""
    name = word
    if word == "last" or word.startswith("@") or word.removeprefix("job-")[:1].isdigit():
        job = client.call("GET", job_path(one_reference(client, word).job_id))
        name = job.get("sweep") or ""
        if not name:
            raise NoSweep(f"{job['id']} is not part of a sweep; 'tgpu sweep' lists your sweeps")
    jobs = _jobs_of(client, name)
    if not jobs:
        name = _with_prefix(client, name)
        jobs = _jobs_of(client, name)
    return name, jobs


def _jobs_of(client: Client, name: str) -> list[dict[str, Any]]:
    query: dict[str, object] = {"sweep": name, "user": mine(), "archived": "true"}
    return pages(client, query | {"sort": "number"}, 0)[0]


def _with_prefix(client: Client, word: str) -> str:
    """The one sweep whose name starts with the word, such as the name of its jobs."""
    found = [sweep["name"] for sweep in client.call("GET", f"{API}/sweeps")["sweeps"]]
    names = [name for name in found if name.startswith(word)]
    if not names:
        raise NoSweep(f"you have no sweep '{word}'; 'tgpu sweep' lists your sweeps")
    if len(names) > 1:
        more = ", ..." if len(names) > MOST_NAMED else ""
        raise NoSweep(f"'{word}' could be {', '.join(names[:MOST_NAMED])}{more}; name one")
    return str(names[0])


def show(name: str, jobs: list[dict[str, Any]], *, as_table: bool = False) -> None:
    """Print one sweep: a grid if two parameters vary, else a table; and how many jobs failed."""
    states = [job["state"] for job in jobs]
    counts = ", ".join(
        f"{states.count(state):,} {coloured_state(state)}" for state in ORDER if state in states
    )
    print(f"{painted(name, 'bold')}  {len(jobs):,} jobs: {counts}")
    names, fixed = varying(jobs)
    if fixed:
        print("with " + ", ".join(f"{key}={visible(value)}" for key, value in fixed.items()))
    rows, columns = (values_of(jobs, key) for key in names) if len(names) == 2 else ([], [])
    if len(names) == 2 and len(columns) <= MOST_COLUMNS and not as_table:
        print()
        heading = f"{names[0]} \\ {names[1]}"
        print_table([heading, *columns], grid(jobs, names, rows, columns))
    else:
        print()
        headings = ["JOBID", *names, "ST", "TIME", "EXIT"]
        now = time.time()
        lines = [
            [
                id_text(job),
                *(visible(str((job.get("params") or {}).get(key, ""))) for key in names),
                state_code(job),
                elapsed_text(job, now) if job.get("started_at") else "-",
                exit_text(job) if job.get("ended_at") else "",
            ]
            for job in jobs
        ]
        print_table(headings, lines, right=("TIME",))
    failed = states.count("failed")
    if failed:
        print(f"\n{failed:,} failed; 'tgpu sweep retry {name}' retries them")


def varying(jobs: list[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """The parameters that vary between jobs, and the value of those that do not."""
    names = list(dict.fromkeys(key for job in jobs for key in job.get("params") or {}))
    fixed = {}
    for key in names:
        values = values_of(jobs, key)
        if len(values) == 1 and len(names) > 1:
            fixed[key] = values[0]
    return [key for key in names if key not in fixed], fixed


def values_of(jobs: list[dict[str, Any]], key: str) -> list[str]:
    """The values of a parameter, in the order in which they were submitted."""
    return list(dict.fromkeys(str((job.get("params") or {}).get(key, "")) for job in jobs))


def grid(
    jobs: list[dict[str, Any]], names: list[str], rows: list[str], columns: list[str]
) -> list[list[str]]:
    """A row for each value of the first parameter, a cell for each value of the second."""
    now = time.time()
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for job in jobs:
        params = job.get("params") or {}
        place = (str(params.get(names[0], "")), str(params.get(names[1], "")))
        cells.setdefault(place, []).append(job)
    return [
        [visible(row), *(_cell(cells.get((row, column), []), now) for column in columns)]
        for row in rows
    ]


def _cell(jobs: list[dict[str, Any]], now: float) -> str:
    """The newest job of the cell, and how many others there are."""
    if not jobs:
        return "-"
    job = jobs[-1]
    text = state_code(job)
    if job["state"] == "failed":
        text += f" {exit_text(job)}"
    elif job.get("started_at") and job["state"] in ("running", "completed"):
        text += f" {elapsed_text(job, now)}"
    return text + (f" (+{len(jobs) - 1})" if len(jobs) > 1 else "")


def _list(client: Client, args: Namespace) -> int:
    found = client.call("GET", f"{API}/sweeps")
    if args.json:
        print_json(found)
        return 0
    if not found["sweeps"]:
        warn("you have no sweeps; 'tgpu submit --param lr=0.1,0.01 -- ...' makes one")
        return 0
    rows = [
        [
            sweep["name"],
            f"{sweep['jobs']:,}",
            ", ".join(
                f"{sweep['states'][state]:,} {state}" for state in ORDER if state in sweep["states"]
            ),
            f"{sweep['first_job_id']} to {sweep['last_job_id']}",
            local_time(sweep["submitted_at"]),
        ]
        for sweep in found["sweeps"]
    ]
    print_table(("SWEEP", "JOBS", "STATES", "IDS", "SUBMITTED"), rows, right=("JOBS",))
    return 0


def _call_for_each(args: Namespace, action: str, job_ids: list[str]) -> tuple[int, list[Any]]:
    """Retry or cancel all jobs, many in parallel, which the server then commits together."""
    from concurrent.futures import ThreadPoolExecutor

    def change(part: list[str]) -> tuple[int, list[Any]]:
        exit_code, answers = 0, []
        with client_for(args) as client:
            for job_id in part:
                try:
                    if action == "retry":
                        answers.append(client.retry(job_id, cancelled=args.cancelled))
                    else:
                        answers.append(client.cancel(job_id))
                except SchedulerError as error:
                    print(f"tgpu: error: {error}", file=sys.stderr)
                    exit_code = exit_code or error.exit_code
        return exit_code, answers

    parts = [job_ids[start::PARALLEL_REQUESTS] for start in range(PARALLEL_REQUESTS)]
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        found = list(pool.map(change, filter(None, parts)))
    return max((code for code, _ in found), default=0), [a for _, answers in found for a in answers]


def _change(args: Namespace, action: str, jobs: list[dict[str, Any]]) -> int:
    """Retry the failed jobs, or cancel those that have not ended."""
    wanted = {"failed", *(["cancelled"] if args.cancelled else [])}
    if action == "cancel":
        wanted = {"pending", "running", "scheduled", "preempted"}
    chosen = [job["id"] for job in jobs if job["state"] in wanted]
    exit_code, answers = _call_for_each(args, action, chosen)
    if args.json:
        print_json(answers)
    elif not chosen:
        print("no job failed" if action == "retry" else "no job is pending or running")
    else:
        done = "queued again" if action == "retry" else "cancelled"
        print(f"{len(answers):,} of {len(jobs):,} jobs {done}")
    return exit_code


# Submission
