"""`tgpu shell`: an interactive shell with GPUs, or one more inside a job that runs.

The shell is a job like any other, on a terminal of its own. While it waits, the reason and the
expected start are shown, and Ctrl-C cancels it.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.submit_options import add_options, add_terminal_options
from gpu_scheduler.client.forms import API, ENDED, exit_code_of
from gpu_scheduler.model.errors import InvalidRequest, WrongState

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

TAKES_WORDS = True
EXIT_INTERRUPTED = 128 + 2
ATTACH_WITHIN_S = 120
"""A shell whose user is gone when it starts does not hold its GPUs for longer than this."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    parser.usage = "%(prog)s [options] [-- command ...]"
    parser.epilog = "Without a command it is your $SHELL. Enter ~ d leaves it running."
    add_terminal_options(parser)
    parser.add_argument("--job", metavar="JOB", help="inside this job that runs; not a new one")
    parser.add_argument(
        "--no-pty", action="store_true", help="with --job: pipes, as when stdin is no terminal"
    )
    add_server_options(parser, json=False)
    parser.add_argument("-q", "--quiet", action="store_true", help="no notes but errors")


def run(args: Namespace) -> int:
    """Submit, wait, join; or start one more in a job."""
    if args.job:
        return _inside(args)
    if args.no_pty:
        raise InvalidRequest("--no-pty goes with --job; 'tgpu run' shows output without a terminal")
    body = shell_body(args)
    if args.dry_run:
        from gpu_scheduler.cli.output import print_json
        from gpu_scheduler.cli.submit_preview import preview

        print_json(preview(body))
        return 0
    with client_for(args) as client:
        job = submitted(client, body)
        if not args.quiet:
            warn(f"{job} submitted")
        return wait_and_join(client, job, quiet=args.quiet)


def shell_body(args: Namespace) -> dict[str, Any]:
    """The request for an interactive job on a terminal."""
    from gpu_scheduler.cli.attach import expect_here
    from gpu_scheduler.cli.submit import submissions

    expect_here(args)
    if not args.words:
        args.words = [own_shell()]
        args.after_dashes = True
    bodies = submissions(args)
    if len(bodies) != 1 or "array" in bodies[0]:
        raise InvalidRequest("this is for one job; use 'tgpu submit' for arrays and sweeps")
    body = bodies[0]
    if body.setdefault("runner", "terminal") != "terminal":
        raise InvalidRequest(
            f"a terminal goes with the runner 'terminal', not with '{body['runner']}'; leave it out"
        )
    body.setdefault("interactive", True)
    body["terminal"] = terminal_of(args)
    return body


def terminal_of(args: Namespace) -> dict[str, Any]:
    """What the job's terminal is to be like."""
    from gpu_scheduler.cli.terminal import window

    rows, columns = window()
    return {
        "rows": rows,
        "columns": columns,
        "idle_seconds": args.idle or 0,
        "attach_within_seconds": ATTACH_WITHIN_S,
        "on_disconnect": args.on_disconnect or "keep",
    }


def own_shell() -> str:
    """The caller's shell."""
    found = os.environ.get("SHELL", "")
    return found if os.access(found, os.X_OK) else "/bin/sh"


def submitted(client: Client, body: dict[str, Any]) -> str:
    """Submit, and return the id."""
    return str(client.call("POST", f"{API}/jobs", body, once=True)["job_id"])


def wait_and_join(client: Client, job: str, *, quiet: bool) -> int:
    """From the queue to the end; the exit code is the job's."""
    from gpu_scheduler.cli.attach import stay, way_in

    while True:
        found = wait_for_start(client, job, quiet=quiet)
        if found is None:
            return EXIT_INTERRUPTED
        if found["state"] in ENDED:
            return _already_over(client, found)
        try:
            path = way_in(found, job)[3]
        except WrongState:
            client.cancel(job)  # nobody could ever use it
            raise
        code = stay(client, job, path)
        if code is not None:
            return code
        if not quiet:
            warn(f"{job} was stopped to make room, and waits again")


def _already_over(client: Client, job: dict[str, Any]) -> int:
    """It was over before anybody could look: what it printed is in its log."""
    from gpu_scheduler.cli.logs import follow

    if job.get("started_at"):
        follow(client, job["id"], {})
    else:
        warn(f"{job['id']} {job['state']}: {job.get('reason') or 'it never began'}")
    return exit_code_of(job)


def _can_be_joined(job: dict[str, Any]) -> bool:
    return job["state"] in ENDED or job["state"] == "running"


def wait_for_start(client: Client, job: str, *, quiet: bool) -> dict[str, Any] | None:
    """The job once it runs or has ended; None if the caller gave up, and it is cancelled."""
    from gpu_scheduler.cli.terminal import Ended, ending_signals
    from gpu_scheduler.cli.waiting import Notes, wait_until

    notes = Notes(quiet=quiet, hint="Ctrl-C cancels")
    try:
        with ending_signals():
            found = wait_until(_can_be_joined, client, job, notes)
    except (KeyboardInterrupt, Ended) as reason:
        notes.clear()
        client.cancel(job)
        warn(f"{job} cancelled")
        if isinstance(reason, Ended):
            sys.exit(128 + reason.number)
        return None
    notes.clear()
    return found


def _inside(args: Namespace) -> int:
    """One more program in a job that runs, with its devices and limits."""
    from gpu_scheduler.cli.attach import expect_here, way_in
    from gpu_scheduler.cli.references import one_reference
    from gpu_scheduler.cli.terminal import Ended, Link, connect, exit_code
    from gpu_scheduler.client.surroundings import directory

    expect_here(args)
    with client_for(args) as client:
        reference = str(one_reference(client, args.job))
        words = way_in(client.get(reference), reference)
    if words[1:3] != ["attach", "--socket"]:
        raise InvalidRequest(
            f"{reference} runs in '{words[0]}'; another shell can be opened only in jobs with "
            "the runner 'terminal'; 'tgpu attach' enters this one"
        )
    link = Link(connect(words[3]))
    try:
        status = link.start(
            args.words or [own_shell()],
            terminal=not args.no_pty and sys.stdin.isatty(),
            directory=directory(os.environ),
        )
    except Ended as ended:
        return 128 + ended.number
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if status is None:
        warn(f"{reference} has ended")
        return 1
    return exit_code(status)
