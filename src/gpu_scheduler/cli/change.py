"""`tgpu hold` and `release`: small commands about jobs."""

from __future__ import annotations

from gpu_scheduler.cli.output import print_json
from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.references import NONE, references
from gpu_scheduler.cli.several import for_each
from gpu_scheduler.client.forms import job_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gpu_scheduler.cli.references import Reference


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, last, @~1, all")
    add_server_options(parser)


def hold(args: Namespace) -> int:
    """Keep jobs from starting."""
    return _each(args, "hold", "held")


def release(args: Namespace) -> int:
    """Let held jobs start."""
    return _each(args, "release", "released")


def _each(args: Namespace, deed: str, done: str) -> int:
    answers = []
    with client_for(args) as client:
        found = references(client, args.jobs)
        if not found:
            warn(NONE)

        def change(reference: Reference) -> None:
            answers.append(client.call("POST", job_path(str(reference), deed)))
            if not args.json:
                print(f"{reference} {done}")

        exit_code = for_each(found, change)
    if args.json:
        print_json(answers)
    return exit_code
