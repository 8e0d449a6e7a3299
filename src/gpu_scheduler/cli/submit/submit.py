"""`tgpu submit`: a command, script or file in, the id of a job out.

Only what a plain submission needs is imported at the top: this is the command that starts most.
"""

from __future__ import annotations

import os
import sys
import time

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.parser import Parser
from gpu_scheduler.cli.submit.body import (
    add_surroundings,
    body_of,
    check_gpus,
    command_of,
    default_name,
    is_recent,
    missing_program,
    named_dependencies,
)
from gpu_scheduler.cli.submit.options import add_options
from gpu_scheduler.cli.text.values import words_of
from gpu_scheduler.client.environment import unsendable
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from gpu_scheduler.client.client import Client

TAKES_WORDS = True
FILES = (".yaml", ".yml", ".json")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    add_server_options(parser)
    parser.add_argument("-W", "--wait", action="store_true", help="wait for the end of the job")
    parser.add_argument("-q", "--parsable", action="store_true", help="print the job id alone")


def run(args: Namespace) -> int:
    """Submit, or only show what would be submitted."""
    bodies = submissions(args)
    if args.dry_run:
        from gpu_scheduler.cli.submit.dry_run import show_dry_run

        return show_dry_run(args, bodies)
    with client_for(args) as client:
        if len(bodies) == 1:
            answer = client.call("POST", f"{API}/jobs", bodies[0], once=True)
            ids = [answer["job_id"]]
        else:
            answer = client.call("POST", f"{API}/jobs/bulk", bodies, once=True)
            ids = answer["job_ids"]
        _say(args, answer, ids, bodies[0].get("sweep", ""))
        if args.snapshot:
            from gpu_scheduler.cli.submit.snapshots import drop_old

            drop_old(client)
        return _wait(client, ids) if args.wait else 0


def submissions(args: Namespace) -> list[dict[str, Any]]:
    """What is to be submitted: usually one body, several for a sweep or a file of jobs."""
    words = args.words
    first = words[0] if words else ""
    is_lone = len(words) == 1 and not args.after_dashes
    is_file = is_lone and os.path.isfile(first)  # noqa: PTH113
    # One that is not there is a slip of the keyboard; no program is called so.
    is_missing = is_lone and not args.image and not os.path.exists(first)  # noqa: PTH110
    if (is_file or is_missing) and first.endswith(FILES):
        bodies = _from_file(first, args)
    elif is_file and first.endswith(".txt"):
        bodies = _from_jobs_file(first, args)
    else:
        bodies = [_from_words(args)]
    if args.llm:
        from gpu_scheduler.cli.submit.llm import add_model

        add_model(bodies, args)
    _name_recent_jobs(bodies, args)
    _say_what_stays_behind(args)
    for body in bodies:
        check_gpus(body, args)
        add_surroundings(body, args)
        _check(body)
    if args.snapshot and not args.dry_run:
        from gpu_scheduler.cli.submit.snapshots import add_snapshot

        add_snapshot(bodies, args)
    if args.param or args.param_file:
        bodies = _swept(bodies, args)
    elif args.sweep:
        raise InvalidRequest("--sweep names a sweep; give its parameters with --param")
    return bodies


def _swept(bodies: list[dict[str, Any]], args: Namespace) -> list[dict[str, Any]]:
    """One submission for each combination of parameters."""
    from gpu_scheduler.cli.jobs.sweeps import combinations, filled, sweep_name, unfilled

    sweep = sweep_name(args.sweep, bodies[0].get("name", ""))
    found = combinations(args.param or [], args.param_file)
    for name in unfilled(bodies[0], found[0]):
        known = ", ".join(found[0])
        warn(f"warning: {{{name}}} stays as it is: no parameter is called so; there is {known}")
    return [filled(body, values, sweep) for body in bodies for values in found]


def _name_recent_jobs(bodies: list[dict[str, Any]], args: Namespace) -> None:
    """`afterok:last` and `afterok:@~1` become the ids of the jobs that are meant."""
    asking = [body for body in bodies if any(map(is_recent, body.get("dependencies", [])))]
    if not asking:
        return
    with client_for(args) as client:
        for body in asking:
            body["dependencies"] = named_dependencies(client, body["dependencies"])


def _from_words(args: Namespace) -> dict[str, Any]:
    words = args.words
    text = None
    if words and not args.after_dashes and os.path.isfile(words[0]):  # noqa: PTH113
        from gpu_scheduler.cli.submit.files import script_text

        text = script_text(words[0])
    if text is not None:
        _hint_at_options(args, words)
        _fill_from_script(args, words[0], text)
        body = body_of(args)
        body.setdefault("name", words[0].rpartition("/")[2])
        return body | {"script": text} | ({"args": words[1:]} if words[1:] else {})
    body = body_of(args)
    if words == ["-"] and not args.after_dashes:
        raise InvalidRequest(
            "'-' is no program, and a script is not read from standard input; save it to a file "
            "that begins with '#!', and name that"
        )
    if words and not words[0]:
        raise InvalidRequest("the program is an empty word; is a variable not set?")
    if words:
        body["command"] = command_of(words)
        body.setdefault("name", default_name(body["command"]))
    elif not args.image:
        raise InvalidRequest(
            "there is nothing to run; write the command after '--', as in "
            "'tgpu submit --gpus 1 -- python train.py'"
        )
    return body


def _hint_at_options(args: Namespace, words: list[str]) -> None:
    """Say that an option behind a script is the script's, if it could have been meant for us."""
    if not any(word.startswith("-") for word in words[1:]):
        return
    parser = Parser(prog="tgpu submit")
    register(parser)
    if found := parser.own_option(words[1:], args):
        warn(
            f"note: {found} stands behind {words[0]} and goes to it; options of tgpu stand before "
            "it"
        )


def _fill_from_script(args: Namespace, path: str, text: str) -> None:
    """Take options of the script's own lines where the command line has none."""
    from gpu_scheduler.cli.submit.files import directives, foreign_directives, read_directives

    for mark, number in foreign_directives(text).items():
        warn(
            f"warning: {path}, line {number}: {mark} lines are not read; write them as #TGPU, "
            "or give the options on the command line"
        )
    if not directives(text):
        return
    parser = Parser(prog="tgpu submit")
    register(parser)
    for name, value in vars(read_directives(parser, path, text)).items():
        if getattr(args, name, None) in (None, False):
            setattr(args, name, value)


def _from_file(path: str, args: Namespace) -> list[dict[str, Any]]:
    from gpu_scheduler.cli.submit.files import read_job_file

    bodies = read_job_file(path)
    given = body_of(args)
    for body in bodies:
        body.update(given)
        if body.get("command"):
            body.setdefault("name", default_name(body["command"]))
    return bodies


def _from_jobs_file(path: str, args: Namespace) -> list[dict[str, Any]]:
    from gpu_scheduler.cli.submit.llm import kinds_here
    from gpu_scheduler.client.jobs_file import llm_config, read_jobs_file

    given = body_of(args)
    bodies = read_jobs_file(path, llm_config(args.llm_config), kinds_here(args))
    return [body | given for body in bodies]


def _say_what_stays_behind(args: Namespace) -> None:
    if not args.export or "ALL" in args.export.upper().split(","):
        for name in sorted(unsendable(os.environ)):
            warn(f"warning: variable {name!a} is left out: it holds bytes that are no UTF-8")


def _check(body: dict[str, Any]) -> None:
    """Say at once what would only fail later."""
    _say_if_late(body)
    program = missing_program(body.get("command", []), body)
    place = body.get("working_directory", "")
    if program and os.path.isdir(os.path.join(place, program)):  # noqa: PTH112, PTH118
        raise InvalidRequest(
            f"'{program}' is a directory, and no program; name one in it, as in "
            f"{program.rstrip('/')}/run.sh, or give the directory with --chdir"
        )
    if program and "/" not in program and _is_file_here(program, body):
        warn(
            f"warning: '{program}' is a file here and no program; write './{program}' if it is "
            f"one, or what runs it, as in 'python {program}'"
        )
    elif program:
        warn(f"warning: there is no program '{program}' here; the job will need it")
    if not body.get("image") and not os.path.isdir(place):  # noqa: PTH112
        warn(f"warning: there is no directory '{place}' here; the job will need it")
    output = os.path.dirname(os.path.join(place, body.get("output", "")))  # noqa: PTH118, PTH120
    if body.get("output") and "{" not in output and "%" not in output and not os.path.isdir(output):  # noqa: PTH112
        warn(f"warning: there is no directory '{output}' here; the job's output will need it")


def _say_if_late(body: dict[str, Any]) -> None:
    """A deadline weighs and ends nothing: say so if the job may well run beyond it."""
    deadline, begin = body.get("deadline"), body.get("begin_at")
    longest_s = body.get("estimate_seconds") or body.get("max_runtime_seconds")
    if not longest_s or not isinstance(deadline, float | int):
        return
    start = max(time.time(), begin if isinstance(begin, float | int) else 0)
    if start + longest_s > deadline:
        room = f"leaves {words_of(deadline - start)}" if deadline > start else "leaves no time"
        warn(
            f"warning: the deadline {room}, and the job may run for {words_of(longest_s)}; a "
            "deadline makes it more urgent, and does not end it"
        )


def _is_file_here(name: str, body: dict[str, Any]) -> bool:
    return os.path.isfile(os.path.join(body.get("working_directory", ""), name))  # noqa: PTH113, PTH118


def _say(args: Namespace, answer: dict[str, Any], ids: list[str], sweep: str) -> None:
    if args.json:
        from gpu_scheduler.cli.text.tables import print_json

        print_json(answer)
    elif args.parsable:
        print("\n".join(ids))
    elif len(ids) == 1:
        tasks = answer.get("tasks", 1)
        print(f"submitted {ids[0]}" + (f" with {tasks:,} tasks" if tasks > 1 else ""))
    else:
        print(f"submitted {len(ids):,} jobs: {ids[0]} to {ids[-1]}")
    if sweep and not args.json and not args.parsable:
        print(f"sweep {sweep}; see 'tgpu sweep {sweep}'")
    sys.stdout.flush()


def _wait(client: Client, ids: list[str]) -> int:
    from gpu_scheduler.cli.jobs.wait import wait_for_all

    return wait_for_all(client, ids, None)
