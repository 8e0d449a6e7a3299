"""`tgpu history`: jobs that have ended, the latest first."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from datetime import datetime
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for, mine, warn
from gpu_scheduler.cli.jobs.columns import (
    elapsed_s,
    gpus_text,
    id_text,
    seconds_at,
    short_name,
    state_code,
)
from gpu_scheduler.cli.jobs.list import pages, states_of
from gpu_scheduler.cli.text.dates import moment_back
from gpu_scheduler.cli.text.tables import in_local_time, print_json, print_table
from gpu_scheduler.cli.text.values import clock_text, whole
from gpu_scheduler.client.requests import ENDED
from gpu_scheduler.model.errors import InvalidRequest

PAGE = 50
WH_PER_KWH = 1000
HEADINGS = ("JOBID", "NAME", "USER", "ST", "EXIT", "ENDED", "TIME", "GPUS", "ENERGY", "REASON")
RIGHT = ("EXIT", "TIME", "GPUS", "ENERGY")
SPARE = ("ENERGY", "USER", "GPUS", "TIME", "ENDED")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("-u", "--user", metavar="NAME", help="jobs of this user; 'all' for everybody's")
    add("-A", "--everybody", action="store_true", help="the same as --user all")
    add("-s", "--state", metavar="STATE", default="ended", help="completed, failed, cancelled")
    add("-T", "--tenant", "--tenant-id", dest="tenant", metavar="T", help="jobs of this tenant")
    add("-J", "--name", metavar="NAME", help="jobs of this name")
    add("--since", metavar="TIME", help="what ended since then: 2h, 7d (ago) or 2026-11-16")
    add("--until", metavar="TIME", help="what ended before then")
    add("--archived", action="store_true", help="also jobs that have moved to the archive")
    add(
        *("-L", "--limit"),
        type=whole("--limit"),
        default=PAGE,
        metavar="N",
        help=f"show at most N; default {PAGE}, 0 shows all",
    )
    add_server_options(parser)


def run(args: Namespace) -> int:
    """List what has ended."""
    query: dict[str, object] = {
        "state": ",".join(_ends(args.state)),
        "user": None if args.everybody or args.user == "all" else args.user or mine(),
        "tenant_id": args.tenant,
        "name": args.name,
        "sort": "-ended_at",
        "archived": "true" if args.archived else None,
        "ended_since": moment_back(args.since, "--since"),
        "ended_before": moment_back(args.until, "--until"),
    }
    with client_for(args) as client:
        jobs, total = pages(client, query, args.limit)
    if args.json:
        print_json({"jobs": jobs, "total": total})
        return 0
    now = time.time()
    rows = (_row(job, now) for job in jobs)
    print_table(HEADINGS, rows, right=RIGHT, narrow=("NAME", "USER"), spare=SPARE)
    if total > len(jobs):
        warn(f"{len(jobs):,} of {total:,} jobs shown; --limit 0 shows all")
    return 0


def _ends(text: str) -> tuple[str, ...]:
    """The states that are meant, all of which must be ends."""
    states = states_of("ended" if text == "all" else text) or ()
    for state in states:
        if state not in ENDED:
            raise InvalidRequest(
                f"--state has '{state}', which is no end; expected {', '.join(sorted(ENDED))}, "
                "ended or all. 'tgpu list --state' shows jobs that wait or run"
            )
    return states


def exit_text(job: dict[str, Any]) -> str:
    """`0`, `1`, `SIG9`, or a dash when it is not known."""
    if job.get("signal"):
        return f"SIG{job['signal']}"
    return "-" if job.get("exit_code") is None else str(job["exit_code"])


def energy_text(job: dict[str, Any]) -> str:
    """`1.25 kWh`, `3.4 Wh`, or a dash where no GPU told its power."""
    energy_wh = (job.get("measured") or {}).get("energy_wh")
    if energy_wh is None:
        return "-"
    return f"{energy_wh / 1000:.2f} kWh" if energy_wh >= WH_PER_KWH else f"{energy_wh:.2g} Wh"


def local_time(text: str | None) -> str:
    """A time of the server on the clock of whoever reads it."""
    at = seconds_at(text)
    return "-" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def _row(job: dict[str, Any], now: float) -> list[str]:
    return [
        id_text(job),
        short_name(job),
        str(job.get("user", "")),
        state_code(job),
        exit_text(job),
        local_time(job.get("ended_at")),
        clock_text(elapsed_s(job, now)),
        gpus_text(job),
        energy_text(job),
        in_local_time(str(job.get("reason") or "")),
    ]
