"""`tgpu attach`: enter the session of a job, or come back to its terminal."""

from __future__ import annotations

import os
import shlex
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import elapsed_text, id_text, one_reference, short_name
from gpu_scheduler.cli.text.tables import print_json, print_table
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.errors import error_of
from gpu_scheduler.client.requests import ENDED
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, WrongState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_scheduler.cli.interactive.terminal import Way
    from gpu_scheduler.client.client import Client

TERMINAL = "terminal"
SESSIONS = (TERMINAL, "tmux", "screen")
WAITING = ("pending", "preempted")
FORBIDDEN = 403
EXIT_DETACHED = 0
EXIT_WAITS = 1
EXIT_INTERRUPTED = 128 + 2
BACK_S = 45.0
"""So long a terminal is looked for that was lost: a node or a server that comes back is quicker."""
SETTLES_S = 1.0
_LOOK_S = 0.1
_LOOK_AGAIN_S = 0.5
_PATIENCE_S = 10.0


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="12, 12_4, last, ...")
    add_member_option(parser)
    parser.add_argument("--print", action="store_true", help="print the command, do not run it")
    parser.add_argument("--socket", metavar="PATH", help="the terminal at this path, without a job")
    add_server_options(parser, json=False)


def add_member_option(parser: ArgumentParser) -> None:
    """`--member`."""
    parser.add_argument(
        "--member", type=whole("--member"), default=0, metavar="N", help="of a gang; default 0"
    )


def run(args: Namespace) -> int:
    """Show the terminal, or become the program that shows the session."""
    if args.socket:
        return _at_socket(args.socket)
    if not args.job:
        raise InvalidRequest("JOB is missing; 'tgpu screens' lists what one can attach to")
    with client_for(args) as client:
        reference = str(one_reference(client, args.job))
        job = client.get(reference)
        words = way_in(job, reference)
        if args.print:
            print(shlex.join(words))
            return 0
        if job["runner"] == TERMINAL:
            code = stay(client, reference, job, member=args.member)
            if code is None:
                warn(f"{reference} waits again; 'tgpu attach {reference}' comes back once it runs")
            return EXIT_WAITS if code is None else code
        _expect_near(client, reference, words)
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        raise ClusterError(f"cannot run '{words[0]}': {error.strerror}") from error


def way_in(job: dict[str, Any], reference: str) -> list[str]:
    """The command that enters the session of a job."""
    command = job.get("attach")
    if command:
        return [str(word) for word in command]
    runner = job.get("runner")
    if job.get("redacted"):
        why = f"{reference} belongs to '{job['user']}'; only that user and admins may come to it"
        raise error_of(FORBIDDEN, {"error": why, "code": "forbidden"})
    if runner not in SESSIONS:
        raise WrongState(
            f"{reference} has no session; submit it with '--runner terminal', tmux or screen "
            "to attach to it"
        )
    if job.get("state") != "running":
        raise WrongState(f"{reference} is {job.get('state')}; one can attach while it runs")
    if runner == TERMINAL:
        return ["tgpu", "attach", reference]
    nodes = ", ".join(dict.fromkeys(place["node"] for place in job["allocation"]))
    raise WrongState(
        f"{reference} runs in {runner} on {nodes}, and such sessions are entered on their own "
        "node; submit with '--runner terminal' what is to be reached from anywhere"
    )


def _expect_near(client: Client, reference: str, words: list[str]) -> None:
    """Sessions of other programs are entered where they are."""
    address = client.connection.address
    if address is not None and address.host and not address.is_loopback:
        raise InvalidRequest(
            f"{reference} runs in {words[0]} on the machine of the server, and such sessions are "
            f"entered there: ssh -t {address.host} {shlex.quote(shlex.join(words))}"
        )


def is_near(client: Client) -> bool:
    """Whether the server is certainly on this machine: it was reached by its Unix socket."""
    address = client.connection.address
    return address is not None and bool(address.path)


def way_to(client: Client, reference: str, job: dict[str, Any], member: int = 0) -> Way:
    """The way to a job's terminal: by its socket if it is here and ours, else by the server."""
    from gpu_scheduler.cli.interactive import terminal

    words = way_in(job, reference)
    has_socket = words[1:3] == ["attach", "--socket"] and is_near(client) and not member
    # Of somebody else's the server may open it, for an admin.
    if has_socket and os.access(os.path.dirname(words[3]), os.X_OK):  # noqa: PTH120
        return terminal.here(words[3], patience_s=_PATIENCE_S)
    return terminal.relayed(client, reference, member)


def stay(client: Client, job: str, found: dict[str, Any], *, member: int = 0) -> int | None:
    """Join the terminal of a job until its end; its exit code, or None if it waits again."""
    from gpu_scheduler.cli.interactive.terminal import Ended, Left, Link

    way = way_to(client, job, found, member)
    while True:
        try:
            status = Link(way).attach()
        except Left:
            warn(f"{job} goes on; 'tgpu attach {job}' comes back to it")
            return EXIT_DETACHED
        except Ended as ended:
            return 128 + ended.number
        if status is not None or not way.is_relayed:
            return _after(client, job, status)
        back = _come_back(client, job, way.why, member)
        if back is None or isinstance(back, int):
            return back
        way = back


def _come_back(client: Client, job: str, why: str, member: int) -> Way | int | None:
    """The way to a terminal that was lost in between, or what became of the job, as `stay`."""
    because = f" ({why})" if why else ""
    try:
        found = _settled(client, job)
        if found["state"] in ENDED or found["state"] in WAITING:
            return _told(job, found)
        warn(f"the connection to {job} broke{because}; it goes on, and is looked for; Ctrl-C stops")
        give_up = time.monotonic() + BACK_S
        while time.monotonic() < give_up:
            try:
                found = client.get(job)
                if found["state"] in ENDED or found["state"] in WAITING:
                    return _told(job, found)
                way = way_to(client, job, found, member)
            except (ClusterError, WrongState):
                time.sleep(_LOOK_AGAIN_S)
                continue
            warn(f"back at {job}")
            return way
    except KeyboardInterrupt:
        warn(f"{job} goes on; 'tgpu attach {job}' comes back to it")
        return EXIT_INTERRUPTED
    raise ClusterError(
        f"the connection to the terminal of {job} broke{because} and did not come back within "
        f"{BACK_S:.0f} s; the job goes on, and 'tgpu attach {job}' tries again"
    )


def _settled(client: Client, job: str) -> dict[str, Any]:
    """The job, when the server has had a moment to hear that it ended, if it did."""
    give_up = time.monotonic() + SETTLES_S
    while True:
        try:
            found = client.get(job)
        except ClusterError:
            found = {"state": "running"}
        if found["state"] != "running" or time.monotonic() > give_up:
            return dict(found)
        time.sleep(_LOOK_S)


def _after(client: Client, job: str, status: int | None) -> int | None:
    """What became of a job whose terminal is gone, by the server's word if it can be had."""
    from gpu_scheduler.cli.interactive.terminal import exit_code

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
        if found["state"] in ENDED or found["state"] in WAITING:
            return _told(job, found)
        if status is None and late:
            raise ClusterError(
                f"the connection to the terminal of {job} broke; 'tgpu attach {job}' tries again"
            )
        time.sleep(_LOOK_S)


def _told(job: str, found: Mapping[str, Any]) -> int | None:
    """How a job has ended; None if it waits again."""
    from gpu_scheduler.client.requests import exit_code_of

    if found["state"] in WAITING:
        return None
    code = exit_code_of(found)
    if code and (found.get("reason") or found["state"] == "cancelled"):
        reason = f": {found['reason']}" if found.get("reason") else ""
        warn(f"{job} {found['state']}{reason}")
    return code


def _at_socket(path: str) -> int:
    """The same without a server to ask."""
    from gpu_scheduler.cli.interactive import terminal
    from gpu_scheduler.cli.interactive.terminal import Ended, Left, Link, exit_code

    try:
        status = Link(terminal.here(path)).attach()
    except Left:
        return EXIT_DETACHED
    except Ended as ended:
        return 128 + ended.number
    if status is None:
        raise ClusterError(f"the connection to {path} broke")
    return exit_code(status)


# --- `tgpu screens`: the sessions that one can attach to.

SESSION_RUNNERS = ("terminal", "tmux", "screen")


def register_screens(parser: ArgumentParser) -> None:
    """Add the options."""
    add_server_options(parser)


def screens(args: Namespace) -> int:
    """List the sessions of jobs that run."""
    with client_for(args) as client:
        jobs = [job for job in client.list(state="running") if job.get("runner") in SESSION_RUNNERS]
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
