"""`tgpu shell`: an interactive shell with GPUs, or one more inside a job that runs.

The shell is a job like any other, on a terminal of its own. While it waits, the reason and the
expected start are shown, and Ctrl-C cancels it.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.interactive.attach import add_member_option
from gpu_scheduler.cli.submit.options import add_options, add_terminal_options
from gpu_scheduler.client.requests import API, ENDED, exit_code_of
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, WrongState

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

TAKES_WORDS = True
EXIT_INTERRUPTED = 128 + 2
SETTLES_S = 3.0
_LOOK_S = 0.1
ATTACH_WITHIN_S = 120
"""A shell whose user is gone when it starts does not hold its GPUs for longer than this."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    parser.usage = "%(prog)s [options] [-- command ...]"
    parser.epilog = "Without a command it is your $SHELL. Enter ~ d leaves it running."
    add_terminal_options(parser)
    parser.add_argument("--job", metavar="JOB", help="inside this job that runs; not a new one")
    add_member_option(parser)
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
    return open_terminal(args, shell_body(args))


def open_terminal(args: Namespace, body: dict[str, Any]) -> int:
    """Submit a job on a terminal, wait for it and join it; or show what would be submitted."""
    if args.dry_run:
        from gpu_scheduler.cli.submit.dry_run import show_dry_run

        return show_dry_run(args, [body])
    with client_for(args) as client:
        job = submitted(client, body, quiet=args.quiet)
        return wait_and_join(client, job, quiet=args.quiet)


def shell_body(args: Namespace) -> dict[str, Any]:
    """The request for an interactive job on a terminal."""
    from gpu_scheduler.cli.submit.submit import submissions

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
    from gpu_scheduler.cli.interactive.terminal import window

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


def submitted(client: Client, body: dict[str, Any], *, quiet: bool) -> str:
    """Submit, and return the id; refused before that if nobody could come to its terminal."""
    only_reachable(client, body)
    job = str(client.call("POST", f"{API}/jobs", body, once=True)["job_id"])
    if not quiet:
        warn(f"{job} submitted")
    return job


def only_reachable(client: Client, body: dict[str, Any]) -> None:
    """Let the job go only to nodes whose terminals the server can reach."""
    from gpu_scheduler.cli.interactive.attach import is_near
    from gpu_scheduler.model.node import TERMINAL_LABEL

    nodes = client.nodes()
    old = [node for node in nodes if node["labels"].get(TERMINAL_LABEL) != "yes"]
    if not old or (len(nodes) == 1 and is_near(client)):
        return
    if len(old) == len(nodes):
        named = ", ".join(f"{node['id']} ({node.get('version') or 'unknown'})" for node in old[:5])
        raise WrongState(
            f"terminals cannot be reached on any node: the agents are too old, as on {named}; "
            "update gpu-scheduler there, or submit a batch job and read its log"
        )
    body.setdefault("node_labels", {})[TERMINAL_LABEL] = "yes"


def wait_and_join(client: Client, job: str, *, quiet: bool) -> int:
    """From the queue to the end; the exit code is the job's."""
    from gpu_scheduler.cli.interactive.attach import stay

    while True:
        found = wait_for_start(client, job, quiet=quiet)
        if found is None:
            return EXIT_INTERRUPTED
        if found["state"] in ENDED:
            return _already_over(client, found)
        try:
            code = stay(client, job, found)
        except (WrongState, ClusterError) as error:
            found = _a_moment_later(client, job)
            if found["state"] in ENDED:
                return _already_over(client, found)
            if isinstance(error, WrongState):
                client.cancel(job)  # nobody could ever use it
                raise
            raise ClusterError(
                f"{error}; {job} goes on, and 'tgpu attach {job}' tries again"
            ) from error
        if code is not None:
            return code
        if not quiet:
            warn(f"{job} was stopped to make room, and waits again")


def _a_moment_later(client: Client, job: str) -> dict[str, Any]:
    """The job, which may have ended before anybody came to its terminal."""
    give_up = time.monotonic() + SETTLES_S
    while True:
        found = dict(client.get(job))
        if found["state"] != "running" or time.monotonic() > give_up:
            return found
        time.sleep(_LOOK_S)


def _already_over(client: Client, job: dict[str, Any]) -> int:
    """It was over before anybody could look: what it printed is in its log."""
    from gpu_scheduler.cli.jobs.logs import follow

    if job.get("started_at"):
        follow(client, job["id"], {})
    reason = job.get("reason") or ("" if job.get("started_at") else "it never began")
    if reason:
        warn(f"{job['id']} {job['state']}: {reason}")
    return exit_code_of(job)


def _can_be_joined(job: dict[str, Any]) -> bool:
    return job["state"] in ENDED or job["state"] == "running"


def wait_for_start(client: Client, job: str, *, quiet: bool) -> dict[str, Any] | None:
    """The job once it runs or has ended; None if the caller gave up, and it is cancelled."""
    from gpu_scheduler.cli.interactive.terminal import Ended, ending_signals
    from gpu_scheduler.cli.jobs.wait import Notes, wait_until

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
    from gpu_scheduler.cli.interactive.attach import SESSIONS, TERMINAL, way_to
    from gpu_scheduler.cli.interactive.terminal import Ended, Link, exit_code
    from gpu_scheduler.cli.jobs.columns import one_reference
    from gpu_scheduler.client.environment import directory

    with client_for(args) as client:
        reference = str(one_reference(client, args.job))
        job = client.get(reference)
        if job["runner"] in SESSIONS and job["runner"] != TERMINAL:
            raise InvalidRequest(
                f"{reference} runs in '{job['runner']}'; another shell can be opened only in jobs "
                "with the runner 'terminal'; 'tgpu attach' enters this one"
            )
        way = way_to(client, reference, job, args.member)
    try:
        status = Link(way).start(
            args.words or [own_shell()],
            terminal=not args.no_pty and sys.stdin.isatty(),
            directory=directory(os.environ),
        )
    except Ended as ended:
        return 128 + ended.number
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if status is None:
        warn(f"the connection to {reference} broke: {way.why or 'it has ended'}")
        return 1
    return exit_code(status)
