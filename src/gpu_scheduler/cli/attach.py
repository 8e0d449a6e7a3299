"""`tgpu attach`: enter the session of a job, or come back to its terminal."""

from __future__ import annotations

import os
import shlex
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.references import one_reference
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, WrongState

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

SESSIONS = ("terminal", "tmux", "screen")
EXIT_DETACHED = 0
EXIT_WAITS = 1
_LOOK_S = 0.1
_PATIENCE_S = 10.0


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="12, 12_4, last, ...")
    parser.add_argument("--print", action="store_true", help="print the command, do not run it")
    parser.add_argument("--socket", metavar="PATH", help="the terminal at this path, without a job")
    add_server_options(parser, json=False)


def run(args: Namespace) -> int:
    """Show the terminal, or become the program that shows the session."""
    if args.socket:
        return _at_socket(args.socket)
    if not args.job:
        raise InvalidRequest("JOB is missing; 'tgpu screens' lists what one can attach to")
    if not args.print:
        expect_here(args)
    with client_for(args) as client:
        reference = str(one_reference(client, args.job))
        words = way_in(client.get(reference), reference)
        if args.print:
            print(shlex.join(words))
            return 0
        if words[1:3] == ["attach", "--socket"]:
            code = stay(client, reference, words[3])
            if code is None:
                warn(f"{reference} waits again; 'tgpu attach {reference}' comes back once it runs")
            return EXIT_WAITS if code is None else code
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        raise ClusterError(f"cannot run '{words[0]}': {error.strerror}") from error


def expect_here(args: Namespace) -> None:
    """Terminals are joined on the machine where the job runs, not over the network."""
    from gpu_scheduler.client.address import candidates

    for address in candidates(args.server):
        if address.host and not address.is_loopback:
            raise InvalidRequest(
                f"the server at {address} is another machine, and terminals are joined where jobs "
                f"run; log in there first: 'ssh -t {address.host} tgpu ...'"
            )


def way_in(job: dict[str, Any], reference: str) -> list[str]:
    """The command that enters the session of a job."""
    command = job.get("attach")
    if not command:
        if job.get("runner") not in SESSIONS:
            raise WrongState(
                f"{reference} has no session; submit it with '--runner terminal', tmux or screen "
                "to attach to it"
            )
        if job.get("state") == "running":
            nodes = ", ".join(dict.fromkeys(place["node"] for place in job["allocation"]))
            raise WrongState(
                f"{reference} runs on {nodes}, and terminals are joined only on a machine whose "
                f"server runs jobs itself (tgpu up); 'tgpu logs {reference}' shows what it writes"
            )
        raise WrongState(f"{reference} is {job.get('state')}; one can attach while it runs")
    return [str(word) for word in command]


def stay(client: Client, job: str, path: str) -> int | None:
    """Join the terminal of a job until its end; its exit code, or None if it waits again."""
    from gpu_scheduler.cli.terminal import Ended, Left, Link, connect

    link = Link(connect(path, patience_s=_PATIENCE_S))
    try:
        status = link.attach()
    except Left:
        warn(f"{job} goes on; 'tgpu attach {job}' comes back to it")
        return EXIT_DETACHED
    except Ended as ended:
        return 128 + ended.number
    return _after(client, job, status)


def _after(client: Client, job: str, status: int | None) -> int | None:
    """What became of a job whose terminal is gone, by the server's word if it can be had."""
    from gpu_scheduler.cli.terminal import exit_code
    from gpu_scheduler.client.forms import ENDED, exit_code_of

    give_up = time.monotonic() + _PATIENCE_S
    while True:
        late = time.monotonic() > give_up
        try:
            found = client.get(job)
        except ClusterError:
            if late and status is not None:
                warn(f"{job} has ended; the server, which does not answer, will learn of it")
                return exit_code(status)
            if late:
                raise
            time.sleep(_LOOK_S)
            continue
        if found["state"] in ENDED:
            break
        if found["state"] in ("pending", "preempted"):
            return None
        if status is None and late:
            raise ClusterError(
                f"the connection to the terminal of {job} broke; 'tgpu attach {job}' tries again"
            )
        time.sleep(_LOOK_S)
    code = exit_code_of(found)
    if code and (found.get("reason") or found["state"] == "cancelled"):
        reason = f": {found['reason']}" if found.get("reason") else ""
        warn(f"{job} {found['state']}{reason}")
    return code


def _at_socket(path: str) -> int:
    """The same without a server to ask."""
    from gpu_scheduler.cli.terminal import Ended, Left, Link, connect, exit_code

    try:
        status = Link(connect(path)).attach()
    except Left:
        return EXIT_DETACHED
    except Ended as ended:
        return 128 + ended.number
    if status is None:
        raise ClusterError(f"the connection to {path} broke")
    return exit_code(status)
