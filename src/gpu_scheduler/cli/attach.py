"""`tgpu attach`: enter the session of a job."""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser, Namespace

from gpu_scheduler.cli.reach import add_server_options, client_for
from gpu_scheduler.cli.references import one_reference
from gpu_scheduler.model.errors import ClusterError, WrongState


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("job", metavar="JOB", help="12, 12_4, last, ...")
    parser.add_argument("--print", action="store_true", help="print the command, do not run it")
    add_server_options(parser, json=False)


def run(args: Namespace) -> int:
    """Become the program that shows the session."""
    with client_for(args) as client:
        reference = str(one_reference(client, args.job))
        job = client.get(reference)
    command = job.get("attach")
    if not command:
        if job.get("runner") not in ("tmux", "screen"):
            raise WrongState(
                f"{reference} has no session; submit it with '--runner tmux' to attach to it"
            )
        raise WrongState(f"{reference} is {job.get('state')}; one can attach while it runs")
    words = [str(word) for word in command]
    if args.print:
        print(shlex.join(words))
        return 0
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        raise ClusterError(f"cannot run '{words[0]}': {error.strerror}") from error
