"""`tgpu update`: change a job that waits."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpu_scheduler.cli.durations import duration, limit, moment, number, size_mb, whole
from gpu_scheduler.cli.output import print_json
from gpu_scheduler.cli.reach import add_server_options, client_for
from gpu_scheduler.cli.references import references
from gpu_scheduler.cli.submit_body import dependencies_of, named_dependencies, priority_of
from gpu_scheduler.model.errors import InvalidRequest

FIELDS = {
    "name": "name",
    "gpus": "gpu_count",
    "gpu_memory": "gpu_memory_mb",
    "cpus": "cpu_cores",
    "memory": "memory_mb",
    "time": "max_runtime_seconds",
    "estimate": "estimate_seconds",
    "begin": "begin_at",
    "deadline": "deadline",
    "retries": "retries",
}


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, last, @~1, all")
    add("-p", "--priority", metavar="P", help="as with submit")
    add("-J", "--name", metavar="NAME", help="another name")
    add("-t", "--time", type=limit("--time"), metavar="TIME", help="another limit")
    add("-G", "--gpus", type=number("--gpus"), metavar="N", help="another number of GPUs")
    add("--gpu-memory", type=size_mb("--gpu-memory"), metavar="SIZE", help="of all its GPUs")
    add("-c", "--cpus", type=number("--cpus"), metavar="N", help="CPU cores")
    add("-m", "--memory", type=size_mb("--memory"), metavar="SIZE", help="memory of the host")
    add("--estimate", type=duration("--estimate"), metavar="TIME", help="likely run time")
    add("--begin", type=moment("--begin"), metavar="WHEN", help="not before")
    add("--deadline", type=moment("--deadline"), metavar="WHEN", help="should have ended by then")
    add("--retries", type=whole("--retries"), metavar="N", help="try again so often if it fails")
    add("-d", "--dependency", action="append", metavar="KIND:ID", help="instead of what it had")
    add("--notify", action="append", metavar="WHAT[:WHO]", help="instead of what it had")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Send the changes that were asked for; none at all is a mistake."""
    changes = {
        field: getattr(args, option)
        for option, field in FIELDS.items()
        if getattr(args, option) is not None
    }
    if args.priority is not None:
        changes["priority"] = priority_of(args.priority)
    if args.dependency:
        changes["dependencies"] = dependencies_of(args.dependency)
    if args.notify:
        changes["notify"] = args.notify
    if not changes:
        raise InvalidRequest("nothing to change; give for example --priority high or --time 4h")
    with client_for(args) as client:
        if args.dependency:
            changes["dependencies"] = named_dependencies(client, changes["dependencies"])
        changed = []
        for reference in references(client, args.jobs):
            changed.append(client.update(str(reference), **changes))
            if not args.json:
                print(f"{reference} changed")
    if args.json:
        print_json(changed[0] if len(changed) == 1 else changed)
    return 0
