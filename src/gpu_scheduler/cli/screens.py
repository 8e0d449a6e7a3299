"""`tgpu screens`: the sessions that one can attach to."""

from __future__ import annotations

import shlex
import time
from argparse import ArgumentParser, Namespace

from gpu_scheduler.cli.jobs_view import elapsed_text, id_text, short_name
from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.cli.reach import add_server_options, client_for

SESSIONS = ("terminal", "tmux", "screen")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_server_options(parser)


def run(args: Namespace) -> int:
    """List the sessions of jobs that run."""
    with client_for(args) as client:
        jobs = [job for job in client.list(state="running") if job.get("runner") in SESSIONS]
    if args.json:
        print_json({"jobs": jobs})
        return 0
    now = time.time()
    rows = [
        [
            id_text(job),
            short_name(job),
            str(job.get("user", "")),
            str(job.get("runner")),
            elapsed_text(job, now),
            shlex.join(job.get("attach") or []) or f"tgpu attach {id_text(job)}",
        ]
        for job in jobs
    ]
    print_table(("JOBID", "NAME", "USER", "IN", "TIME", "ATTACH WITH"), rows, right=("TIME",))
    return 0
