"""`tgpu wait`: until jobs have ended. The exit code is that of the first job that failed."""

from __future__ import annotations

import time

from gpu_scheduler.cli.durations import duration
from gpu_scheduler.cli.output import print_json
from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.references import references
from gpu_scheduler.client.forms import exit_code_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable
    from typing import Any

    from gpu_scheduler.client.client import Client


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, last, @~1, all")
    add(
        "--timeout",
        type=duration("--timeout", plain="s"),
        metavar="TIME",
        help="give up after this, with exit code 124; a plain number is seconds",
    )
    add("-q", "--quiet", action="store_true", help="print nothing")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Wait for the ends of jobs, and say how the first bad one ended."""
    with client_for(args) as client:
        names = [str(reference) for reference in references(client, args.jobs)]
        if not names and not args.quiet:
            warn("no job of yours waits or runs, so there is nothing to wait for")
        ended: list[dict[str, Any]] = []
        code = wait_for_all(client, names, args.timeout, None if args.quiet else ended)
    if args.json:
        print_json(ended)
    else:
        for job in ended:
            print(f"{job['id']} {job['state']} {exit_code_of(job)}")
    return code


def wait_for_all(
    client: Client,
    names: Iterable[str],
    timeout_s: float | None,
    ended: list[dict[str, Any]] | None = None,
) -> int:
    """Wait for each; the first exit code that is not 0."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    code = 0
    for name in names:
        left = None if end is None else max(0.0, end - time.monotonic())
        job = client.wait(name, left)
        code = code or exit_code_of(job)
        if ended is not None:
            ended.append(job)
    return code
