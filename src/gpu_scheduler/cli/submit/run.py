"""`tgpu run`: submit a job, show its output and exit with its exit code.

While the job is pending, the command shows the reason and the expected start. Ctrl-C asks what to
do with the job; without a terminal it cancels the job. The output of a cancelled job is shown until
the job has ended; a second Ctrl-C does not wait for that.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.follow import WAITING, Attempts, StatusLine, wait_until
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.submit.options import add_options, add_terminal_options
from gpu_scheduler.cli.submit.submit import submissions
from gpu_scheduler.client.requests import API, exit_code_of
from gpu_scheduler.model.errors import InvalidRequest, WrongState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping
    from typing import Any

    from gpu_scheduler.client.client import Client

EXIT_INTERRUPTED = 128 + 2
EXIT_DETACHED = 0
STANDARD_INPUT = 0
ABOUT_INPUT = """\
The standard input of the job is empty, even if you pipe data into tgpu run: let
the job read a file, as in sh -c 'CMD < FILE'. With --pty the job gets what you
type or pipe in, as on a terminal."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    add_server_options(parser, json=False)
    parser.epilog = f"{parser.epilog}\n\n{ABOUT_INPUT}"
    add = Options(parser)
    add.flag("-q --quiet", "print only the output of the job")
    add.flag("--json", "as --quiet, and print the job as one JSON line on stderr")
    add.flag("--pty", "on a terminal, as 'tgpu shell': for interactive programs")
    add_terminal_options(parser)


def run(args: Namespace) -> int:
    """Submit one job and wait until it ends."""
    args.quiet = args.quiet or args.json
    if args.pty:
        from gpu_scheduler.cli.interactive.shell import open_terminal, shell_body

        if args.json:
            raise InvalidRequest("--json does not go with --pty; leave out one of them")
        if not args.words:
            raise InvalidRequest("no command given; 'tgpu shell' opens a shell")
        return open_terminal(args, shell_body(args))
    body = _body(args)
    if args.dry_run:
        from gpu_scheduler.cli.submit.submit import show_dry_run

        return show_dry_run(args, [body])
    if has_input(STANDARD_INPUT):
        warn(
            "warning: the job does not get your standard input; let it read a file, as in "
            "sh -c 'CMD < FILE', or use --pty; '< /dev/null' if it needs no input"
        )
    with client_for(args) as client:
        job = client.call("POST", f"{API}/jobs", body)["job_id"]
        if not args.quiet:
            warn(f"{job} submitted")
        return _follow(args, client, job, has_log=not body.get("output"))


def _follow(args: Namespace, client: Client, job: str, *, has_log: bool) -> int:
    """Show the output until the job has ended, or the user detaches; returns the exit code.

    A job that writes its output to a file of its own has no log to show.
    """
    status = StatusLine(quiet=args.quiet, hint="Ctrl-C asks" if _can_ask() else "Ctrl-C cancels")
    attempts = Attempts(client, job, status) if has_log else None
    cancelled = False
    while True:
        try:
            wait_until(
                lambda found: found["state"] not in WAITING or bool(found.get("attempt")),
                client,
                job,
                status,
            )
            status.clear()
            ended = client.wait(job) if attempts is None else attempts.copy_until_end()
            break
        except KeyboardInterrupt:
            status.clear()
        if cancelled:
            status.print(f"{job} has not ended yet; 'tgpu wait {job}' waits for it")
            return EXIT_INTERRUPTED
        decision = ask(client, job)
        if decision == EXIT_DETACHED:
            return decision
        cancelled = decision is not None
    if args.json:
        print(json.dumps(ended), file=sys.stderr, flush=True)
    elif ended["state"] != "completed" and not args.quiet:
        warn(f"{job} {ending_text(ended)}")
    is_cancelled = cancelled and ended["state"] == "cancelled"
    return EXIT_INTERRUPTED if is_cancelled else exit_code_of(ended)


def ending_text(ended: Mapping[str, Any]) -> str:
    """`failed with exit code 3`, `failed by signal 9: used more GPU memory than ...`."""
    how = ""
    if ended["state"] == "failed" and ended.get("signal"):
        how = f" by signal {ended['signal']}"
    elif ended["state"] == "failed" and ended.get("exit_code") is not None:
        how = f" with exit code {ended['exit_code']}"
    if "exit code" in str(ended.get("reason")):
        how = ""  # the reason says it
    return f"{ended['state']}{how}" + (f": {ended['reason']}" if ended.get("reason") else "")


def _body(args: Namespace) -> dict[str, Any]:
    """The one job to run."""
    if args.idle or args.on_disconnect:
        raise InvalidRequest("--idle and --on-disconnect need a terminal; add --pty")
    if not args.words and not args.image:
        raise InvalidRequest(
            "no command given; write it after '--', as in 'tgpu run --gpus 1 -- python train.py'"
        )
    bodies = submissions(args)
    if len(bodies) != 1 or "array" in bodies[0]:
        raise InvalidRequest("'tgpu run' takes one job; use 'tgpu submit' for arrays and sweeps")
    return bodies[0]


def has_input(number: int) -> bool:
    """Whether a pipe, socket or file has data to read.

    A terminal or another device counts as empty: it is rarely meant as input.
    """
    import stat

    try:
        found = os.fstat(number)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > os.lseek(number, 0, os.SEEK_CUR)
        if not stat.S_ISFIFO(found.st_mode) and not stat.S_ISSOCK(found.st_mode):
            return False
        import fcntl
        import struct
        import termios

        size = fcntl.ioctl(number, termios.FIONREAD, bytes(4))
    except OSError:
        return False
    return bool(struct.unpack("i", size)[0])


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(client: Client, job: str) -> int | None:
    """Ask what to do with the job; the exit code, or None to go on watching it."""
    if not _can_ask():
        _cancel(client, job)
        return EXIT_INTERRUPTED
    question = f"\n{job} has not ended: [c]ancel it, [d]etach, or Enter to go on? "
    try:
        print(question, end="", file=sys.stderr, flush=True)
        choice = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        choice = "c"
    if choice.startswith("c"):
        _cancel(client, job)
        warn(f"{job} cancelling")
        return EXIT_INTERRUPTED
    if choice.startswith("d"):
        warn(f"{job} keeps running; 'tgpu logs -f {job}' shows its output")
        return EXIT_DETACHED
    return None


def _cancel(client: Client, job: str) -> None:
    with suppress(WrongState):  # it has ended in the meantime
        client.cancel(job)
