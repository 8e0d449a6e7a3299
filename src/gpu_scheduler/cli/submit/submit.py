"""`tgpu submit` and `tgpu add`: submit a command, a script or a file of jobs, and print the job id.

Only what a plain submission needs is imported at the top, because this command is started most.
"""

from __future__ import annotations

import os
import sys
import time

from gpu_scheduler.cli.connection import add_server_options, call, client_for, print_answer, warn
from gpu_scheduler.cli.parser import Options, Parser
from gpu_scheduler.cli.submit.body import (
    add_environment,
    body_of,
    check_gpus,
    command_of,
    default_name,
    is_recent,
    missing_program,
    missing_script,
    named_dependencies,
    not_a_program,
)
from gpu_scheduler.cli.submit.options import LLM_CONFIG_HELP, LLM_HELP, add_options
from gpu_scheduler.cli.text.values import duration_text, number
from gpu_scheduler.client.captured_environment import directory, non_utf8_variables
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any


FILES = (".yaml", ".yml", ".json")
LARGEST_GB_TYPED_AS_MB = 192
"""A request for so little GPU memory is probably one in gigabytes without the unit."""


def register_submit(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)
    add_server_options(parser)
    add = Options(parser)
    add.flag("-W --wait", "wait for the end of the job")
    add.flag("-q --parsable", "print the job id alone")


def run_submit(args: Namespace) -> int:
    """Submit, or with --dry-run only show what would be submitted."""
    bodies = submissions(args)
    if args.dry_run:
        return show_dry_run(args, bodies)
    with client_for(args) as client:
        if len(bodies) == 1:
            answer = client.call("POST", f"{API}/jobs", bodies[0])
            ids = [answer["job_id"]]
        else:
            answer = client.call("POST", f"{API}/jobs/bulk", bodies)
            ids = answer["job_ids"]
        _print_ids(args, answer, ids, bodies[0].get("sweep", ""))
        if args.snapshot:
            from gpu_scheduler.cli.submit.snapshot_command import drop_old

            drop_old(client)
        if not args.wait:
            return 0
        from gpu_scheduler.cli.jobs.follow import wait_for_all

        return wait_for_all(client, ids, None)


def submissions(args: Namespace) -> list[dict[str, Any]]:
    """The bodies to submit: usually one, several for a sweep or a file of jobs."""
    words = args.words
    first = words[0] if words else ""
    is_alone = len(words) == 1 and not args.after_dashes
    is_file = is_alone and os.path.isfile(first)  # noqa: PTH113
    # No program is called x.yaml, so a missing file is a typing error.
    is_missing = is_alone and not args.image and not os.path.exists(first)  # noqa: PTH110
    is_typed = False
    if (is_file or is_missing) and first.endswith(FILES):
        bodies = _from_file(first, args)
    elif is_file and first.endswith(".txt"):
        from gpu_scheduler.cli.submit.llm import server_gpu_kinds
        from gpu_scheduler.client.jobs_file import llm_config, read_jobs_file

        given = body_of(args)
        jobs = read_jobs_file(first, llm_config(args.llm_config), server_gpu_kinds(args))
        bodies = [job | given for job in jobs]
    else:
        bodies = [_from_words(args)]
        is_typed = True
    if args.llm:
        from gpu_scheduler.cli.submit.llm import add_model

        add_model(bodies, args)
    _name_recent_jobs(bodies, args)
    if not args.export or "ALL" in args.export.upper().split(","):
        for name in sorted(non_utf8_variables(os.environ)):
            warn(f"warning: variable {name!a} is left out: it is not valid UTF-8")
    from gpu_scheduler.cli.submit.sweep_expansion import combinations, filled, sweep_name, unfilled

    has_parameters = bool(args.param or args.param_file)
    points = combinations(args.param or [], args.param_file) if has_parameters else []
    for body in bodies:
        check_gpus(body, args)
        add_environment(body, args)
        first_job = filled(body, points[0], "") if points else body
        _check(first_job, is_typed=is_typed, is_forced=bool(getattr(args, "force", False)))
    if args.snapshot and not args.dry_run:
        from gpu_scheduler.cli.submit.snapshot_command import add_snapshot

        add_snapshot(bodies, args)
    if not has_parameters:
        if args.sweep:
            raise InvalidRequest("--sweep needs parameters; add --param")
        return bodies
    sweep = sweep_name(args.sweep, bodies[0].get("name", ""))
    for name in unfilled(bodies[0], points[0]):
        known = ", ".join(points[0])
        warn(f"warning: {{{name}}} is left unchanged: it is not a parameter; known: {known}")
    return [filled(body, values, sweep) for body in bodies for values in points]


def _name_recent_jobs(bodies: list[dict[str, Any]], args: Namespace) -> None:
    """Replace `last` and `@~1` in dependencies by job ids."""
    with_recent = [body for body in bodies if any(map(is_recent, body.get("dependencies", [])))]
    if with_recent:
        with client_for(args) as client:
            for body in with_recent:
                body["dependencies"] = named_dependencies(client, body["dependencies"])


def _from_words(args: Namespace) -> dict[str, Any]:
    words = args.words
    args.is_sbatch = False
    text = None
    if words and not args.after_dashes and os.path.isfile(words[0]):  # noqa: PTH113
        from gpu_scheduler.cli.submit.files import script_text

        text = script_text(words[0])
    if text is not None:
        _fill_from_script(args, text)
        body = body_of(args)
        body.setdefault("name", words[0].rpartition("/")[2])
        if args.is_sbatch:
            from gpu_scheduler.cli.submit.sbatch import slurm_variables

            current = directory(os.environ)
            body["environment"] = slurm_variables({"working_directory": current, **body})
        return body | {"script": text} | ({"args": words[1:]} if words[1:] else {})
    body = body_of(args)
    if words == ["-"] and not args.after_dashes:
        raise InvalidRequest(
            "'-' is not a program, and tgpu does not read scripts from standard input; save the "
            "script to a file that starts with '#!'"
        )
    if words and not words[0]:
        raise InvalidRequest("the program is an empty string; is a variable not set?")
    if words:
        body["command"] = command_of(words)
        body.setdefault("name", default_name(body["command"]))
    elif not args.image:
        raise InvalidRequest(
            "no command given; write it after '--', as in 'tgpu submit --gpus 1 -- python train.py'"
        )
    return body


def _fill_from_script(args: Namespace, text: str) -> None:
    """Use the options in the script where the command line gives none.

    A note says that an option after the script goes to the script, if tgpu has the same option.
    """
    from gpu_scheduler.cli.submit.files import directives, foreign_directives, read_directives
    from gpu_scheduler.cli.submit.sbatch import has_sbatch

    path, *words = args.words
    parser = Parser(prog="tgpu submit")
    register_submit(parser)
    if option := parser.own_option(words, args):
        warn(
            f"note: {option} after {path} goes to the script; write options of tgpu before the "
            "script"
        )
    # With lines of its own for tgpu, the script says here what it needs.
    is_lenient = args.force or bool(directives(text))
    for mark, line in foreign_directives(text).items():
        problem = f"{path}, line {line}: {mark} lines are ignored; write them as #TGPU"
        if not is_lenient:
            raise InvalidRequest(f"{problem}, or give the options here and add --force")
        warn(f"warning: {problem}, or give the options on the command line")
    _fill(args, vars(read_directives(parser, path, text)))
    if has_sbatch(text):
        _fill_from_sbatch(args, parser, text, is_lenient=is_lenient)


def _fill(args: Namespace, values: dict[str, Any]) -> None:
    """Set the options that are not given yet."""
    for name, value in values.items():
        if getattr(args, name, None) in (None, False):
            setattr(args, name, value)


def _fill_from_sbatch(args: Namespace, parser: Parser, text: str, *, is_lenient: bool) -> None:
    """Use the `#SBATCH` lines where neither the command line nor `#TGPU` gives an option.

    Lines that would change what runs are rejected together, or with `is_lenient` warned about.
    """
    from gpu_scheduler.cli.submit.files import comments, read_options
    from gpu_scheduler.cli.submit.sbatch import translate

    path = args.words[0]
    found = translate(path, text, comments(text))
    if found.problems and not is_lenient:
        listed = "".join(f"\n  line {line}: {problem}" for line, problem in found.problems)
        raise InvalidRequest(
            f"{path} was not submitted: it would not run as with sbatch{listed}\n"
            "Change these lines, or add --force to submit it without them."
        )
    for line, problem in found.problems:
        warn(f"warning: {path}, line {line}: {problem}")
    for line, note in found.notes:
        warn(f"note: {path}, line {line}: {note}")
    args.is_sbatch = bool(found.options or found.problems or found.notes)
    _fill(args, vars(read_options(parser, path, found.options)))


def _from_file(path: str, args: Namespace) -> list[dict[str, Any]]:
    from gpu_scheduler.cli.submit.files import read_job_file

    bodies = read_job_file(path)
    given = body_of(args)
    for body in bodies:
        body.update(given)
        if body.get("command"):
            body.setdefault("name", default_name(body["command"]))
    return bodies


def _check(body: dict[str, Any], *, is_typed: bool, is_forced: bool) -> None:
    """Reject or warn of what would fail when the job runs.

    `is_typed` is a command from the command line, not from a file of jobs.
    """
    _warn_of_deadline(body)
    for field in ("gpu_memory_mb", "gpu_memory_mb_per_gpu"):
        size = body.get(field, 0)
        if is_typed and 0 < size <= LARGEST_GB_TYPED_AS_MB:
            warn(f"warning: the job requests {size} MB of GPU memory; write {size}G for gigabytes")
    program = missing_program(body.get("command", []), body)
    place = body.get("working_directory", "")
    if program and os.path.isdir(os.path.join(place, program)):  # noqa: PTH112, PTH118
        raise InvalidRequest(
            f"'{program}' is a directory, not a program; name a program in it, such as "
            f"{program.rstrip('/')}/run.sh, or give the directory with --chdir"
        )
    typing_error = missing_script(body, program) if is_typed else ""
    if problem := not_a_program(body, program) or typing_error:
        if not is_forced:
            raise InvalidRequest(f"{problem}, or add --force to submit it as it is")
        warn(f"warning: {problem}")
    elif program:
        warn(f"warning: program '{program}' not found on this machine; the job will need it")
    if not body.get("image") and not os.path.isdir(place):  # noqa: PTH112
        warn(f"warning: directory '{place}' does not exist on this machine; the job will need it")
    output = os.path.dirname(os.path.join(place, body.get("output", "")))  # noqa: PTH118, PTH120
    if body.get("output") and "{" not in output and "%" not in output and not os.path.isdir(output):  # noqa: PTH112
        warn(
            f"warning: the output directory '{output}' does not exist on this machine; the job "
            "will need it"
        )


def _warn_of_deadline(body: dict[str, Any]) -> None:
    """Warn if the job may run past its deadline, which only raises its priority."""
    deadline, begin = body.get("deadline"), body.get("begin_at")
    longest_s = body.get("estimate_seconds") or body.get("max_runtime_seconds")
    if not longest_s or not isinstance(deadline, float | int):
        return
    start = max(time.time(), begin if isinstance(begin, float | int) else 0)
    if start + longest_s > deadline:
        room = f"leaves {duration_text(deadline - start)}" if deadline > start else "leaves no time"
        warn(
            f"warning: the deadline {room}, but the job may run for {duration_text(longest_s)}; a "
            "deadline raises the priority and does not stop the job"
        )


def _print_ids(args: Namespace, answer: dict[str, Any], ids: list[str], sweep: str) -> None:
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


def show_dry_run(args: Namespace, bodies: list[dict[str, Any]]) -> int:
    """Print what would be submitted, without secrets; then print the server's answer on stderr."""
    from gpu_scheduler.cli.jobs.show import expected_end_text, expected_start_text
    from gpu_scheduler.cli.text.tables import print_json, visible
    from gpu_scheduler.client.errors import NoServer

    if getattr(args, "json", False):
        print_json([_preview(body) for body in bodies])
    elif len(bodies) > 1:
        _print_sweep(bodies)
    else:
        print_json(_preview(bodies[0]))
    try:
        with client_for(args) as client:
            request = bodies[0] if len(bodies) == 1 else bodies
            answer = client.call("POST", f"{API}/jobs/validate", request)
    except NoServer as error:
        warn(f"not checked by a server: {error}")
        return 0
    for warning in answer["warnings"]:
        warn(f"warning: {visible(str(warning))}")
    count = answer["count"]
    warn("the server would accept " + ("the job" if count == 1 else f"all {count:,} jobs"))
    now = time.time()
    which = "" if count == 1 else " of the first job"
    position = answer["position"]
    for name, text in (
        ("queue position", "" if position is None else str(position)),
        ("expected start", expected_start_text(answer, now)),
        ("expected end", expected_end_text(answer, now)),
    ):
        if text:
            warn(f"{name}{which}: {text}")
    return 0


def _preview(body: dict[str, Any]) -> dict[str, Any]:
    """A submission without the captured environment, which may hold secrets."""
    from gpu_scheduler.client.captured_environment import described

    shown = dict(body)
    carried = shown.pop("captured_environment", {})
    found = described(os.environ) if carried else ""
    shown["captured_environment"] = f"{len(carried)} variables" + (f", {found}" if found else "")
    return shown


def _print_sweep(bodies: list[dict[str, Any]]) -> None:
    """One line for each job: its parameters and its command."""
    import shlex

    from gpu_scheduler.cli.text.tables import print_table

    names = list(dict.fromkeys(name for body in bodies for name in body.get("params", {})))
    rows = [
        [
            *(body.get("params", {}).get(name, "") for name in names),
            str(body.get("gpu_count", 0)),
            shlex.join(body.get("command", [])) or str(body.get("name", "")),
        ]
        for body in bodies
    ]
    print_table([*names, "GPUS", "COMMAND"], rows)
    print(f"{len(bodies)} jobs would be submitted")


def register_add(parser: ArgumentParser) -> None:
    """Add the options of `tgpu add`."""
    from gpu_scheduler.client.jobs_file import PRIORITIES

    add = Options(parser)
    add.word("script", "SCRIPT", "what to run; python runs a .py")
    add.value("--args", None, "TEXT", "its arguments, in quotes", default="")
    add.choice("--priority", tuple(PRIORITIES), "0 high, 1 normal, 2 low", default="1")
    add.value("--conda-env --conda", None, "ENV", "conda environment", dest="conda", default="")
    add.value("--gpus", None, "LIST", "allowed devices, such as 0,1 or 0-3", default="")
    add.value("--gpu-count", number, "N", "number of GPUs; default: by the model")
    add.value("--llm", None, "MODEL", LLM_HELP)
    add.value("--llm-config", None, "FILE", LLM_CONFIG_HELP)
    add.flag("--screen", "run it in a screen session")
    add_server_options(parser)


def run_add(args: Namespace) -> int:
    """Submit one script, with the columns of jobs.txt as options."""
    import shlex

    from gpu_scheduler.cli.submit.llm import add_model
    from gpu_scheduler.client.captured_environment import capture
    from gpu_scheduler.client.jobs_file import PRIORITIES, llm_config, model_named, script_job
    from gpu_scheduler.sizing.model import can_be_sized

    try:
        arguments = shlex.split(args.args)
    except ValueError as error:
        raise InvalidRequest(f"--args is '{args.args}': {error}") from None
    body = script_job(
        args.script,
        arguments,
        conda=args.conda,
        allowed=args.gpus,
        models=llm_config(args.llm_config),
    )
    body["priority"] = PRIORITIES[args.priority]
    if args.gpu_count is not None:
        body["gpu_count"] = args.gpu_count
    else:
        named = model_named(arguments)
        args.llm = args.llm or (named if can_be_sized(named) and "," not in named else "")
        if args.llm:
            add_model([body], args, stated=())
    if args.screen:
        body["runner"] = "screen"
    body |= capture()
    missing = missing_program(body["command"], body)
    if args.script.endswith(".py") and not os.path.exists(args.script):  # noqa: PTH110
        missing = args.script
    if missing:
        warn(f"warning: '{missing}' not found on this machine; the job will need it")
    answer = call(args, "POST", f"{API}/jobs", body)
    return print_answer(args, answer, f"submitted {answer['job_id']}")
