"""`tgpu run`: submit, show the output, end as the job ends.

While the job waits, the reason and the expected start are shown.
Ctrl-C asks what to do with the job; without a terminal it cancels it, as it would a command. What
a cancelled job writes on its way out is shown, too; another Ctrl-C does not wait for that.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.logs import WAITING, Attempts
from gpu_scheduler.cli.jobs.wait import Notes, wait_until
from gpu_scheduler.cli.submit.options import add_options, add_terminal_options
from gpu_scheduler.cli.submit.submit import TAKES_WORDS, submissions
from gpu_scheduler.client.requests import API, exit_code_of
from gpu_scheduler.model.errors import InvalidRequest, WrongState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping
    from typing import Any

    from gpu_scheduler.client.client import Client

__all__ = ["TAKES_WORDS", "register", "run"]

EXIT_INTERRUPTED = 128 + 2
EXIT_DETACHED = 0
STANDARD_INPUT = 0
ON_INPUT = """\
The job's standard input is empty, also if something is piped in here: let it
read a file, as in sh -c 'CMD < FILE'. With --pty it gets what is typed, or
piped in, as on a terminal."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    add_server_options(parser, json=False)
    parser.epilog = f"{parser.epilog}\n\n{ON_INPUT}"
    parser.add_argument("-q", "--quiet", action="store_true", help="only the output of the job")
    parser.add_argument(
        "--json", action="store_true", help="--quiet, and the job as one JSON line on stderr"
    )
    parser.add_argument(
        "--pty", action="store_true", help="on a terminal, as 'tgpu shell': for what asks for keys"
    )
    add_terminal_options(parser)


def run(args: Namespace) -> int:
    """Submit one job and stay with it."""
    args.quiet = args.quiet or args.json
    if args.pty:
        return _on_a_terminal(args)
    body = _body(args)
    if args.dry_run:
        from gpu_scheduler.cli.submit.dry_run import show_dry_run

        return show_dry_run(args, [body])
    if has_input(STANDARD_INPUT):
        warn(
            "warning: the job gets nothing of what comes on standard input; let it read a file, "
            "as in sh -c 'CMD < FILE', or give --pty; '< /dev/null' if it needs none"
        )
    with client_for(args) as client:
        job = client.call("POST", f"{API}/jobs", body, once=True)["job_id"]
        if not args.quiet:
            warn(f"{job} submitted")
        notes = Notes(quiet=args.quiet, hint="Ctrl-C asks" if _canask() else "Ctrl-C cancels")
        shown = _Shown(client, job, notes, is_elsewhere=bool(body.get("output")))
        return _stay(args, client, job, notes, shown)


def _stay(args: Namespace, client: Client, job: str, notes: Notes, shown: _Shown) -> int:
    """Until the job has ended, or the person has had enough."""
    cancelled = False
    while True:
        try:
            ended = shown.until_its_end()
            break
        except KeyboardInterrupt:
            notes.clear()
        if cancelled:
            notes.tell(f"{job} has not ended yet; 'tgpu wait {job}' waits for it")
            return EXIT_INTERRUPTED
        decided = ask(client, job)
        if decided == EXIT_DETACHED:
            return decided
        cancelled = decided is not None
    _say_its_end(args, job, ended, was_cancelled=cancelled)
    is_cancelled = cancelled and ended["state"] == "cancelled"
    return EXIT_INTERRUPTED if is_cancelled else exit_code_of(ended)


def _say_its_end(
    args: Namespace, job: str, ended: Mapping[str, Any], *, was_cancelled: bool = False
) -> None:
    if args.json:
        print(json.dumps(ended), file=sys.stderr, flush=True)
    elif (exit_code_of(ended) or was_cancelled) and not args.quiet:
        reason = f": {ended['reason']}" if ended.get("reason") else ""
        warn(f"{job} {ended['state']}{reason}")


def _body(args: Namespace) -> dict[str, Any]:
    """The one job that is to be run."""
    if args.idle or args.on_disconnect:
        raise InvalidRequest("--idle and --on-disconnect are about a terminal; give --pty too")
    if not args.words and not args.image:
        raise InvalidRequest(
            "there is nothing to run; write the command after '--', as in "
            "'tgpu run --gpus 1 -- python train.py'"
        )
    bodies = submissions(args)
    if len(bodies) != 1 or "array" in bodies[0]:
        raise InvalidRequest("run takes one job; use 'tgpu submit' for arrays and sweeps")
    return bodies[0]


class _Shown:
    """The output of a job. What it sends to a file of its own is not in its log."""

    def __init__(self, client: Client, job: str, notes: Notes, *, is_elsewhere: bool) -> None:
        self._client = client
        self._job = job
        self._notes = notes
        self._attempts = None if is_elsewhere else Attempts(client, job, notes)

    def until_its_end(self) -> Mapping[str, Any]:
        """The job when it is over."""
        wait_until(_has_had_its_turn, self._client, self._job, self._notes)
        self._notes.clear()
        if self._attempts is None:
            return self._client.wait(self._job)
        return self._attempts.until_its_end()


def _has_had_its_turn(job: dict[str, Any]) -> bool:
    return job["state"] not in WAITING or bool(job.get("attempt"))


def has_input(number: int) -> bool:
    """Whether something is there to be read: from a pipe by now, from a file behind its position.

    A terminal or another device is none of these: nobody has given that on purpose.
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


def _on_a_terminal(args: Namespace) -> int:
    from gpu_scheduler.cli.interactive.shell import open_terminal, shell_body

    if args.json:
        raise InvalidRequest("--json is for jobs whose output is copied; leave out --pty")
    if not args.words:
        raise InvalidRequest("there is nothing to run; 'tgpu shell' opens a shell")
    return open_terminal(args, shell_body(args))


def _canask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(client: Client, job: str) -> int | None:
    """What to do with the job; None means to go on watching it."""
    if not _canask():
        _cancel(client, job)
        return EXIT_INTERRUPTED
    question = f"\n{job} is still there: [c]ancel it, [d]etach, or Enter to go on? "
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
        warn(f"{job} goes on; 'tgpu logs -f {job}' shows it again")
        return EXIT_DETACHED
    return None


def _cancel(client: Client, job: str) -> None:
    with suppress(WrongState):  # it has ended meanwhile
        client.cancel(job)
