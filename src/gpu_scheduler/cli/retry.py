"""`tgpu retry`: put jobs that failed or were cancelled back into the queue."""

from __future__ import annotations

from gpu_scheduler.cli.output import cut, print_json
from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.references import NONE, references
from gpu_scheduler.cli.several import for_each

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping
    from typing import Any

    from gpu_scheduler.cli.references import Reference

MOST_TASKS_SHOWN = 60
"""Characters; --json has all."""


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, last, @~1, all")
    add(
        "--cancelled",
        action="store_true",
        help="of an array also the tasks that were cancelled, beside those that failed",
    )
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Retry each; one that cannot be retried does not stop the others."""
    answers = []
    with client_for(args) as client:
        found = references(client, args.jobs)
        if not found:
            warn(NONE)

        def retry(reference: Reference) -> None:
            answers.append(client.retry(str(reference), cancelled=args.cancelled))
            if not args.json:
                print(f"{reference} {done(answers[-1])}")

        exit_code = for_each(found, retry)
    if args.json:
        print_json(answers)
    return exit_code


def done(answer: Mapping[str, Any]) -> str:
    """What waits again, and what of an array does not."""
    tasks, left = answer.get("tasks"), answer.get("left")
    which = f": tasks {cut(tasks, MOST_TASKS_SHOWN)}" if tasks else ""
    if not left:
        return f"queued again{which}"
    return f"queued again{which}; {left:,} cancelled not, add --cancelled for these, too"
