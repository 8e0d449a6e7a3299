"""`tgpu code`: an editor on another machine, with GPUs here.

Either a tunnel that the `code` program opens from inside the job, or an entry for ssh that leads
into the job. Prints what to do.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for, my_name, warn
from gpu_scheduler.cli.interactive.shell import shell_body, submitted, wait_and_join, wait_for_start
from gpu_scheduler.cli.submit.options import add_options, add_terminal_options
from gpu_scheduler.client.requests import ENDED, exit_code_of
from gpu_scheduler.model.errors import InvalidRequest

TAKES_WORDS = True
EXIT_INTERRUPTED = 128 + 2
HOLDER = ["sleep", "infinity"]
"""Runs in the job while editors come and go."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    parser.usage = "%(prog)s [options] [-- options of 'code tunnel' ...]"
    parser.epilog = (
        "One GPU unless --gpus says otherwise. Give a --time: it holds its GPUs so long."
    )
    add_terminal_options(parser)
    group = parser.add_argument_group("the way in")
    ways = group.add_mutually_exclusive_group()
    ways.add_argument(
        "--tunnel", action="store_const", dest="way", const="tunnel", help="by 'code tunnel'"
    )
    ways.add_argument("--ssh", action="store_const", dest="way", const="ssh", help="by ssh")
    group.add_argument(
        "--host", metavar="NAME", help="how your machine calls this one; default: its own name"
    )
    add_server_options(parser, json=False)
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is to be used")


def run(args: Namespace) -> int:
    """Open the way that there is."""
    way = args.way or ("tunnel" if shutil.which("code") else "ssh")
    if way == "tunnel" and not shutil.which("code"):
        raise InvalidRequest(
            "there is no 'code' on your PATH; install the VS Code command line, or use --ssh"
        )
    _check_words(args, way)
    is_far = way == "ssh" and _is_far(args)
    if is_far and not args.host:
        raise InvalidRequest(
            "the server is on another machine, and an editor comes by ssh to one on which 'tgpu' "
            "reaches it; name that one with --host, or run this command there"
        )
    body = _body(args, way)
    if args.dry_run:
        from gpu_scheduler.cli.submit.dry_run import show_dry_run

        return show_dry_run(args, [body])
    with client_for(args) as client:
        job = submitted(client, body, quiet=args.quiet)
        if way == "tunnel":
            if not args.quiet:
                warn("follow what 'code' says; Enter ~ d leaves the tunnel open, Ctrl-C closes it")
            return wait_and_join(client, job, quiet=args.quiet)
        found = wait_for_start(client, job, quiet=args.quiet)
    if found is None:
        return EXIT_INTERRUPTED
    if found["state"] in ENDED:
        warn(f"{job} {found['state']}: {found.get('reason') or 'it never began'}")
        return exit_code_of(found)
    _tell(args, job, ["tgpu"] if is_far else _program())
    return 0


def _check_words(args: Namespace, way: str) -> None:
    """Only `code tunnel` takes words, behind dashes; a job that is there cannot be named."""
    if not args.words:
        return
    word = args.words[0]
    if args.after_dashes and way == "tunnel":
        return
    if args.after_dashes:
        raise InvalidRequest(
            f"'{word}' is for 'code tunnel', and means nothing with --ssh; leave it out"
            if args.way
            else f"'{word}' is for 'code tunnel', but there is no 'code' on your PATH; install "
            "the VS Code command line, or leave it out and come by ssh"
        )
    if re.fullmatch(r"(job-)?\d+(_\d+)?|last|@(~\d+)?", word, re.ASCII):
        raise InvalidRequest(
            f"'tgpu code' starts a job of its own and takes none that is there, such as '{word}'; "
            f"'tgpu shell --job {word}' opens a shell in a job that runs on a terminal"
        )
    raise InvalidRequest(
        f"'{word}' is one word too many; options of 'code tunnel' stand after '--', and "
        "'tgpu code --help' shows what else is expected"
    )


def _is_far(args: Namespace) -> bool:
    """Whether the server is not on this machine."""
    from gpu_scheduler.client.address import candidates

    first = candidates(args.server)[0]
    return bool(first.host) and not first.is_loopback


def _body(args: Namespace, way: str) -> dict[str, Any]:
    if way == "tunnel":
        args.words = ["code", "tunnel", "--accept-server-license-terms", *args.words]
    else:
        args.words = list(HOLDER)
    args.after_dashes = True
    args.gpus = 1 if args.gpus is None else args.gpus
    args.name = args.name or f"code-{way}"
    body = shell_body(args)
    if way == "ssh":
        body["terminal"]["attach_within_seconds"] = 0
    return body


def _tell(args: Namespace, job: str, program: list[str]) -> None:
    host = args.host or socket.gethostname()
    print(ssh_entry(job, host, args.server, program), end="", flush=True)
    if args.quiet:
        return
    name = _name(job)
    warn("what to do:")
    for line in (
        "1. put the lines above into ~/.ssh/config of the machine that you sit at",
        f"2. a shell there: 'ssh -t {name}'",
        "3. VS Code there: set remote.SSH.enableRemoteCommand and remote.SSH.useLocalServer to",
        f"   true, then 'Remote-SSH: Connect to Host...' and {name}",
        f"4. 'tgpu cancel {job}' gives the GPUs back",
    ):
        print(f"  {line}", file=sys.stderr)


def ssh_entry(job: str, host: str, server: str | None, program: list[str]) -> str:
    """Lines for ~/.ssh/config that lead into a job: a shell there has its GPUs and limits."""
    words = [*program, "shell"]
    address = server or os.environ.get("TGPU_SERVER")
    if address:
        is_path = address.startswith(("/", "./", "~"))
        words += ["--server", os.path.abspath(address) if is_path else address]  # noqa: PTH100
    # ssh reads % as the beginning of a name of its own.
    command = shlex.join([*words, "--job", job]).replace("%", "%%")
    return f"Host {_name(job)}\n  HostName {host}\n  User {my_name()}\n  RemoteCommand {command}\n"


def _name(job: str) -> str:
    return f"tgpu-{job.removeprefix('job-')}"


def _program() -> list[str]:
    """This very program, by its whole path: ssh has another PATH than we."""
    found = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "tgpu" else None  # noqa: PTH119
    return [os.path.abspath(found)] if found else [sys.executable, "-m", "gpu_scheduler"]  # noqa: PTH100
