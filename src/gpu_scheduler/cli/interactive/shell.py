"""`tgpu shell`, `tgpu attach` and `tgpu screens`: jobs on a terminal.

A shell is a job on a terminal of its own. While it is pending, the command shows the reason and the
expected start, and Ctrl-C cancels it. `attach` connects to the terminal of a running
job again, or enters its tmux or screen session; `shell --job` starts another program in a job.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gpu_scheduler.cli.connection import add_server_options, client_for, print_answer, warn
from gpu_scheduler.cli.jobs.columns import elapsed_text, id_text, one_reference, short_name
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.submit.options import add_options, add_terminal_options
from gpu_scheduler.cli.text.tables import print_table
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.errors import error_of
from gpu_scheduler.client.requests import API, ENDED, exit_code_of
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, WrongState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_scheduler.cli.interactive.terminal import Connection
    from gpu_scheduler.client.client import Client


TERMINAL = "terminal"
SESSION_RUNNERS = (TERMINAL, "tmux", "screen")
WAITING = ("pending", "preempted")
FORBIDDEN = 403
EXIT_DETACHED = 0
EXIT_WAITS = 1
EXIT_INTERRUPTED = 128 + 2
RECONNECT_S = 45.0
"""How long to try to reconnect: a node or server that restarts takes less."""
STATE_DELAY_S = 1.0
"""How long the server may take to learn that a job has ended."""
_POLL_S = 0.1
_RETRY_S = 0.5
_CONNECT_TIMEOUT_S = 10.0


def register_attach(parser: ArgumentParser) -> None:
    """Add the options."""
    add = Options(parser)
    add.word("job", "JOB", "12, 12_4, last, ...", nargs="?")
    add.value("--member", whole, "N", "member of a gang; default 0", default=0)
    add.flag("--print", "print the command instead of running it")
    add.value("--socket", None, "PATH", "attach to the terminal at this path, without a job")
    add_server_options(parser, json=False)


def run_attach(args: Namespace) -> int:
    """Attach to the terminal, or run the program that enters the session."""
    if args.socket:
        return _attach_to_socket(args.socket)
    if not args.job:
        raise InvalidRequest(
            "JOB is missing; 'tgpu screens' lists the sessions that you can attach to"
        )
    with client_for(args) as client:
        reference = str(one_reference(client, args.job))
        job = client.get(reference)
        words = attach_command(job, reference)
        if args.print:
            print(shlex.join(words))
            return 0
        if job["runner"] == TERMINAL:
            code = attach_until_end(client, reference, job, member=args.member)
            if code is None:
                warn(f"{reference} is pending again; use 'tgpu attach {reference}' when it runs")
            return EXIT_WAITS if code is None else code
        address = client.connection.address
        if address is not None and address.host and not address.is_loopback:
            raise InvalidRequest(
                f"{reference} runs in {words[0]} on the machine of the server; attach to it there: "
                f"ssh -t {address.host} {shlex.quote(shlex.join(words))}"
            )
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        raise ClusterError(f"cannot run '{words[0]}': {error.strerror}") from error


def attach_command(job: dict[str, Any], reference: str) -> list[str]:
    """The command that enters the session of a job."""
    command = job.get("attach")
    if command:
        return [str(word) for word in command]
    runner = job.get("runner")
    if job.get("redacted"):
        why = f"{reference} belongs to '{job['user']}'; only that user and admins may attach to it"
        raise error_of(FORBIDDEN, {"error": why, "code": "forbidden"})
    if runner not in SESSION_RUNNERS:
        raise WrongState(
            f"{reference} has no session; submit it with '--runner terminal', tmux or screen "
            "to attach to it"
        )
    if job.get("state") != "running":
        raise WrongState(f"{reference} is {job.get('state')}; you can attach while it runs")
    if runner == TERMINAL:
        return ["tgpu", "attach", reference]
    nodes = ", ".join(dict.fromkeys(place["node"] for place in job["allocation"]))
    raise WrongState(
        f"{reference} runs in {runner} on {nodes}; attach to it on that node, or submit jobs with "
        "'--runner terminal', which you can reach from anywhere"
    )


def is_local(client: Client) -> bool:
    """Whether the server is on this machine: the client uses its Unix socket."""
    address = client.connection.address
    return address is not None and bool(address.path)


def connect(client: Client, reference: str, job: dict[str, Any], member: int = 0) -> Connection:
    """Connect to a job's terminal: by its socket if that is accessible here, else by the server."""
    from gpu_scheduler.cli.interactive import terminal

    words = attach_command(job, reference)
    has_socket = words[1:3] == ["attach", "--socket"] and is_local(client) and not member
    # The server may open a socket of another user, for an admin.
    if has_socket and os.access(os.path.dirname(words[3]), os.X_OK):  # noqa: PTH120
        return terminal.connect_locally(
            words[3],
            timeout_s=_CONNECT_TIMEOUT_S,
            is_running=lambda: _may_still_run(client, reference, job),
        )
    return terminal.connect_through_server(client, reference, member)


def _may_still_run(client: Client, reference: str, started: Mapping[str, Any]) -> bool:
    """Whether this attempt of the job runs; also while the server does not answer."""
    try:
        return _runs(client.get(reference), started)
    except ClusterError:
        return True


def _runs(found: Mapping[str, Any], started: Mapping[str, Any]) -> bool:
    """Whether the job runs, in the same attempt as before."""
    return found["state"] == "running" and found.get("attempt") == started.get("attempt")


def attach_until_end(
    client: Client, job: str, found: dict[str, Any], *, member: int = 0
) -> int | None:
    """Attach to the terminal of a job until it ends; its exit code, or None if it is pending again.

    Reconnects after the connection through the server breaks.
    """
    from gpu_scheduler.cli.interactive.terminal import Detached, Ended, TerminalSession

    connection = connect(client, job, found, member)
    while True:
        try:
            status = TerminalSession(connection).attach()
        except Detached:
            warn(f"{job} keeps running; 'tgpu attach {job}' attaches again")
            return EXIT_DETACHED
        except Ended as ended:
            return 128 + ended.number
        if status is not None or not connection.is_through_server:
            return _result(client, job, status)
        reconnected = _reconnect(client, job, connection.reason, member)
        if reconnected is None or isinstance(reconnected, int):
            return reconnected
        connection = reconnected


def _reconnect(client: Client, job: str, reason: str, member: int) -> Connection | int | None:
    """A new connection, or the result of the job as in `attach_until_end` if it has ended."""
    because = f" ({reason})" if reason else ""
    try:
        # The server needs time to learn that the job has ended.
        found = _state_within(client, job, STATE_DELAY_S, needs_server=False)
        if found["state"] in ENDED or found["state"] in WAITING:
            return _exit_code(job, found)
        warn(
            f"connection to {job} lost{because}; reconnecting, Ctrl-C stops; the job keeps running"
        )
        give_up = time.monotonic() + RECONNECT_S
        while time.monotonic() < give_up:
            try:
                found = client.get(job)
                if found["state"] in ENDED or found["state"] in WAITING:
                    return _exit_code(job, found)
                connection = connect(client, job, found, member)
            except (ClusterError, WrongState):
                time.sleep(_RETRY_S)
                continue
            warn(f"reconnected to {job}")
            return connection
    except KeyboardInterrupt:
        warn(f"{job} keeps running; 'tgpu attach {job}' attaches again")
        return EXIT_INTERRUPTED
    raise ClusterError(
        f"lost the connection to the terminal of {job}{because} and could not reconnect within "
        f"{RECONNECT_S:.0f} s; the job keeps running, 'tgpu attach {job}' tries again"
    )


def _state_within(
    client: Client, job: str, timeout_s: float, *, needs_server: bool
) -> dict[str, Any]:
    """The job when it does not run any more, or after the timeout.

    A job counts as running while the server does not answer, unless `needs_server`.
    """
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            found = dict(client.get(job))
        except ClusterError:
            if needs_server:
                raise
            found = {"state": "running"}
        if found["state"] != "running" or time.monotonic() > give_up:
            return found
        time.sleep(_POLL_S)


def _result(client: Client, job: str, status: int | None) -> int | None:
    """The exit code of a job whose terminal is closed; from the server, if it answers."""
    from gpu_scheduler.cli.interactive.terminal import exit_code

    give_up = time.monotonic() + _CONNECT_TIMEOUT_S
    while True:
        timed_out = time.monotonic() > give_up
        try:
            found = client.get(job)
        except ClusterError:
            if timed_out and status is not None:
                warn(f"{job} has ended; the server does not answer at the moment")
                return exit_code(status)
            if timed_out:
                raise
            time.sleep(_POLL_S)
            continue
        if found["state"] in ENDED or found["state"] in WAITING:
            return _exit_code(job, found)
        if status is None and timed_out:
            raise ClusterError(
                f"lost the connection to the terminal of {job}; 'tgpu attach {job}' tries again"
            )
        time.sleep(_POLL_S)


def _exit_code(job: str, found: Mapping[str, Any]) -> int | None:
    """The exit code of a job that has ended, printing the reason; None if it is pending again."""
    if found["state"] in WAITING:
        return None
    code = exit_code_of(found)
    if found["state"] == "cancelled" or (code and found.get("reason")):
        reason = f": {found['reason']}" if found.get("reason") else ""
        warn(f"{job} {found['state']}{reason}")
    return code


def _attach_to_socket(path: str) -> int:
    """Attach to a socket without asking a server."""
    from gpu_scheduler.cli.interactive import terminal
    from gpu_scheduler.cli.interactive.terminal import Detached, Ended, TerminalSession, exit_code

    try:
        status = TerminalSession(terminal.connect_locally(path)).attach()
    except Detached:
        return EXIT_DETACHED
    except Ended as ended:
        return 128 + ended.number
    if status is None:
        raise ClusterError(f"lost the connection to {path}")
    return exit_code(status)


def register_screens(parser: ArgumentParser) -> None:
    """Add the options."""
    add_server_options(parser, table=True)


def run_screens(args: Namespace) -> int:
    """List the sessions of running jobs."""
    with client_for(args) as client:
        jobs = [job for job in client.list(state="running") if job.get("runner") in SESSION_RUNNERS]
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
    headings = ("JOBID", "NAME", "USER", "IN", "TIME", "ATTACH WITH")
    return print_answer(
        args,
        {"jobs": jobs},
        (lambda: print_table(headings, rows, right=("TIME",)))
        if rows
        else "no running job has a terminal or session",
    )


START_DELAY_S = 3.0
"""How long to wait for the end of a job whose terminal could not be reached."""
ATTACH_WITHIN_S = 120
"""The launcher ends a shell if no user attaches within this time after its start."""


def register_shell(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    parser.usage = "%(prog)s [options] [-- command ...]"
    parser.epilog = (
        "Without a command it runs your $SHELL. Enter ~ d detaches and leaves it running."
    )
    add_terminal_options(parser)
    add = Options(parser)
    add.value("--job", None, "JOB", "open it inside this running job")
    add.value("--member", whole, "N", "member of a gang; default 0", default=0)
    add.flag("--no-pty", "with --job: use pipes, as when stdin is no terminal")
    add_server_options(parser, json=False)
    add.flag("-q --quiet", "print only errors")


def run_shell(args: Namespace) -> int:
    """Submit, wait and attach; or start another program in a job."""
    if args.job:
        return _run_inside(args)
    if args.no_pty:
        raise InvalidRequest("--no-pty needs --job; 'tgpu run' shows output without a terminal")
    return open_terminal(args, shell_body(args))


def open_terminal(args: Namespace, body: dict[str, Any]) -> int:
    """Submit a job on a terminal, wait for it and attach; or show what would be submitted."""
    if args.dry_run:
        from gpu_scheduler.cli.submit.submit import show_dry_run

        return show_dry_run(args, [body])
    with client_for(args) as client:
        job = submitted(client, body, quiet=args.quiet)
        return wait_and_attach(client, job, quiet=args.quiet)


def shell_body(args: Namespace) -> dict[str, Any]:
    """The request for an interactive job on a terminal."""
    from gpu_scheduler.cli.interactive.terminal import window_size
    from gpu_scheduler.cli.submit.submit import submissions

    if not args.words:
        args.words = [own_shell()]
        args.after_dashes = True
    bodies = submissions(args)
    if len(bodies) != 1 or "array" in bodies[0]:
        raise InvalidRequest(
            "only one job can have this terminal; use 'tgpu submit' for arrays and sweeps"
        )
    body = bodies[0]
    if body.setdefault("runner", "terminal") != "terminal":
        raise InvalidRequest(
            f"a terminal needs the runner 'terminal', not '{body['runner']}'; leave out --runner"
        )
    body.setdefault("interactive", True)
    rows, columns = window_size()
    body["terminal"] = {
        "rows": rows,
        "columns": columns,
        "idle_seconds": args.idle or 0,
        "attach_within_seconds": ATTACH_WITHIN_S,
        "on_disconnect": args.on_disconnect or "keep",
    }
    return body


def own_shell() -> str:
    """The caller's shell."""
    found = os.environ.get("SHELL", "")
    return found if os.access(found, os.X_OK) else "/bin/sh"


def submitted(client: Client, body: dict[str, Any], *, quiet: bool) -> str:
    """Submit and return the id, after a check that its terminal can be reached."""
    require_reachable(client, body)
    job = str(client.call("POST", f"{API}/jobs", body)["job_id"])
    if not quiet:
        warn(f"{job} submitted")
    return job


def require_reachable(client: Client, body: dict[str, Any]) -> None:
    """Restrict the job to nodes whose terminals the server can reach."""
    from gpu_scheduler.model.node import TERMINAL_LABEL

    nodes = client.nodes()
    old = [node for node in nodes if node["labels"].get(TERMINAL_LABEL) != "yes"]
    if not old or (len(nodes) == 1 and is_local(client)):
        return
    if len(old) == len(nodes):
        named = ", ".join(f"{node['id']} ({node.get('version') or 'unknown'})" for node in old[:5])
        raise WrongState(
            f"no node supports terminals: the agents are too old, for example on {named}; "
            "update gpu-scheduler there, or submit a batch job and read its log"
        )
    body.setdefault("node_labels", {})[TERMINAL_LABEL] = "yes"


def wait_and_attach(client: Client, job: str, *, quiet: bool) -> int:
    """Wait until the job runs, attach until it ends; its exit code."""
    while True:
        started = wait_for_start(client, job, quiet=quiet)
        if started is None:
            return EXIT_INTERRUPTED
        if started["state"] in ENDED:
            return _print_log(client, started)
        try:
            code = attach_until_end(client, job, started)
        except (WrongState, ClusterError) as error:
            # The job may have ended before its terminal was opened.
            found = _state_within(client, job, START_DELAY_S, needs_server=True)
            if found["state"] in ENDED:
                return _print_log(client, found)
            if not _runs(found, started):
                code = None
            elif isinstance(error, WrongState):
                client.cancel(job)  # it can never be used
                raise
            else:
                raise ClusterError(
                    f"{error}; {job} keeps running, 'tgpu attach {job}' tries again"
                ) from error
        if code is not None:
            return code
        if not quiet:
            warn(f"{job} was preempted and is pending again")


def _print_log(client: Client, job: dict[str, Any]) -> int:
    """Print the log of a job that ended before its terminal was opened; its exit code."""
    from gpu_scheduler.cli.jobs.follow import follow

    if job.get("started_at"):
        follow(client, job["id"], {})
    reason = job.get("reason") or ("" if job.get("started_at") else "it never started")
    if reason:
        warn(f"{job['id']} {job['state']}: {reason}")
    return exit_code_of(job)


def wait_for_start(client: Client, job: str, *, quiet: bool) -> dict[str, Any] | None:
    """Wait until the job runs or has ended; on Ctrl-C cancel it and return None."""
    from gpu_scheduler.cli.interactive.terminal import Ended, ending_signals
    from gpu_scheduler.cli.jobs.follow import StatusLine, wait_until

    status = StatusLine(quiet=quiet, hint="Ctrl-C cancels")
    try:
        with ending_signals():
            found = wait_until(
                lambda one: one["state"] in ENDED or one["state"] == "running", client, job, status
            )
    except (KeyboardInterrupt, Ended) as reason:
        status.clear()
        client.cancel(job)
        warn(f"{job} cancelled")
        if isinstance(reason, Ended):
            sys.exit(128 + reason.number)
        return None
    status.clear()
    return found


def _run_inside(args: Namespace) -> int:
    """Run another program inside a running job, with the devices and limits of the job."""
    from gpu_scheduler.cli.interactive.terminal import Ended, TerminalSession, exit_code
    from gpu_scheduler.client.captured_environment import directory

    with client_for(args) as client:
        reference = str(one_reference(client, args.job))
        job = client.get(reference)
        if job["runner"] in SESSION_RUNNERS and job["runner"] != TERMINAL:
            raise InvalidRequest(
                f"{reference} runs in '{job['runner']}'; shells can be opened only in jobs "
                "with the runner 'terminal'; use 'tgpu attach'"
            )
        connection = connect(client, reference, job, args.member)
    try:
        status = TerminalSession(connection).start(
            args.words or [own_shell()],
            terminal=not args.no_pty and sys.stdin.isatty(),
            directory=directory(os.environ),
        )
    except Ended as ended:
        return 128 + ended.number
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if status is None:
        warn(f"lost the connection to {reference}: {connection.reason or 'it has ended'}")
        return 1
    return exit_code(status)
