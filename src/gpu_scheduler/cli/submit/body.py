"""The body of a submission request, made from the options of the command line."""

from __future__ import annotations

import os
import re

from gpu_scheduler.cli.text.values import comma_list
from gpu_scheduler.client.captured_environment import directory, exported, umask
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from typing import Any

    from gpu_scheduler.client.client import Client

PLAIN_FIELDS = {
    "nodelist": "nodes",
    "exclude": "exclude_nodes",
    "gpus": "gpu_count",
    "gpu_memory": "gpu_memory_mb",
    "gpu_memory_per_gpu": "gpu_memory_mb_per_gpu",
    "mig": "mig_profile",
    "cpus": "cpu_cores",
    "memory": "memory_mb",
    "time": "max_runtime_seconds",
    "estimate": "estimate_seconds",
    "begin": "begin_at",
    "grace": "grace_seconds",
    "tenant": "tenant_id",
    "mount": "mounts",
} | {
    name: name
    for name in (
        *("allowed_gpus", "exclusive", "topology", "contiguous", "members", "min_members"),
        *("same_rack", "max_processes", "deadline", "hold", "signal", "retries"),
        *("requeue_on_node_loss", "allow_idle", "name", "pool", "interactive", "conda"),
        *("runner", "image", "output", "array", "notify"),
    )
}
"""The field of the REST API for each option that is sent unchanged."""
_GPUS = ("gpu_count", "gpu_memory_mb", "gpu_memory_mb_per_gpu", "mig_profile")
RECENT = r"last|@(?:~\d{1,9})?"
SHORT_SCALE_TOP = 10
SHORT_SCALE_STEP = 150
_SHELLS = r"(?:ba|da|k|z|fi|a|c|tc)?sh"
_INTERPRETERS = r"python[\d.]*|Rscript|julia|node|perl|ruby"


def fields_of(args: Namespace, fields: Mapping[str, str]) -> dict[str, Any]:
    """The values of the options that were given, by the field for each option."""
    values = {field: getattr(args, option) for option, field in fields.items()}
    return {field: value for field, value in values.items() if value is not None}


def body_of(args: Namespace) -> dict[str, Any]:
    """The fields of the options that were given; an empty name counts as not given."""
    body = {field: value for field, value in fields_of(args, PLAIN_FIELDS).items() if value != ""}
    if args.gpu_model:
        body["gpu_models"] = comma_list(args.gpu_model)
    if args.no_preempt:
        body["preemptible"] = False
    if args.members and args.members > 1:
        body["gang_scheduling"] = True
    if args.image and not args.runner:
        body["runner"] = "container"
    if args.label:
        body["node_labels"] = pairs_of("--label", args.label)
    if args.retry_exit_codes:
        codes = args.retry_exit_codes.split(",")
        if not all(code.strip().isdecimal() and int(code) < 256 for code in codes):
            raise InvalidRequest(
                f"--retry-exit-codes is '{args.retry_exit_codes}'; write codes such as 1,137"
            )
        body["retry_exit_codes"] = [int(code) for code in codes]
    if args.dependency:
        body["dependencies"] = dependencies_of(args.dependency)
    if args.priority is not None:
        body["priority"] = priority_of(args.priority)
    return body


def check_gpus(body: dict[str, Any], args: Namespace) -> None:
    """Reject options that choose GPUs if no option says how many."""
    if any(body.get(field) for field in _GPUS):
        return
    for option in ("gpu_model", "allowed_gpus", "contiguous"):
        if getattr(args, option, None):
            flag = f"--{option.replace('_', '-')}"
            raise InvalidRequest(f"{flag} chooses GPUs, but the job requests none; add --gpus 1")
    if getattr(args, "topology", None) == "require_island":
        raise InvalidRequest(
            "--topology says how GPUs are connected, but the job requests none; add --gpus 2"
        )


def add_environment(body: dict[str, Any], args: Namespace) -> None:
    """Add the environment, directory and umask of the caller, and the variables of the options."""
    carried, given = exported(args.export, os.environ)
    for name in given:
        check_variable(name, "--export")
    given |= variables_of(args.env or [])
    body["captured_environment"] = carried
    if given:
        body["environment"] = {**body.get("environment", {}), **given}
    current = directory(os.environ)
    if args.chdir:
        body["working_directory"] = os.path.normpath(os.path.join(current, args.chdir))  # noqa: PTH118
    body.setdefault("working_directory", current)
    body.setdefault("umask", umask())


def priority_of(text: str) -> int:
    """The priority: a name, 0 to 10 on the short scale, or a larger number."""
    word = text.strip()
    if word.isascii() and word.isdigit() and int(word) <= SHORT_SCALE_TOP:
        # As `parse_priority`, but without loading the model.
        return int(word) * SHORT_SCALE_STEP
    from gpu_scheduler.model.job import parse_priority

    return parse_priority(text, short_scale=True)


def pairs_of(option: str, words: list[str]) -> dict[str, str]:
    """`NAME=VALUE` words as a mapping."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"{option} is '{word}'; write NAME=VALUE")
        found[name] = value
    return found


def variables_of(words: list[str]) -> dict[str, str]:
    """`--env NAME=VALUE` words as a mapping."""
    found = pairs_of("--env", words)
    for name in found:
        check_variable(name, "--env")
    return found


def check_variable(name: str, option: str) -> None:
    """Reject a name that is not valid for an environment variable."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise InvalidRequest(
            f"{option} has the variable '{name}', which is not a valid name; use letters, digits "
            "and _, and do not start with a digit"
        )


def dependencies_of(words: list[str], option: str = "--dependency") -> list[str]:
    """`afterok:1:2,afterany:job-3` as one entry for each job; an id alone means afterok.

    `last` and `@~1` stay as they are: `named_dependencies` asks the server for them.
    """
    found = []
    for part in ",".join(words).split(","):
        kind, *ids = part.strip().split(":")
        if not ids:
            kind, ids = "afterok", [kind]
        for name in ids:
            match = re.fullmatch(rf"(?:job-)?(\d+)|{RECENT}", name, re.ASCII)
            if kind not in ("afterok", "afterany", "afternotok") or match is None:
                raise InvalidRequest(
                    f"{option} has '{part}'; write afterok:12, afterany:3:4, afternotok:5 or "
                    "afterok:last"
                )
            found.append(f"{kind}:job-{match[1]}" if match[1] else f"{kind}:{name}")
    return found


def is_recent(dependency: object) -> bool:
    """Whether the dependency is on `last` or `@~N`."""
    name = dependency.partition(":")[2] if isinstance(dependency, str) else ""
    return re.fullmatch(RECENT, name, re.ASCII) is not None


def named_dependencies(client: Client, dependencies: list[Any]) -> list[Any]:
    """The dependencies with job ids in place of `last` and `@~1`."""
    from gpu_scheduler.cli.jobs.columns import one_reference

    named = []
    for entry in dependencies:
        if is_recent(entry):
            kind, _, name = entry.partition(":")
            named.append(f"{kind}:{one_reference(client, name).job_id}")
        else:
            named.append(entry)
    return named


def command_of(words: list[str]) -> list[str]:
    """The command; a single word `cmd=...` is run by a shell."""
    if len(words) == 1 and words[0].startswith("cmd="):
        return ["/bin/sh", "-c", words[0].removeprefix("cmd=")]
    return words


def default_name(words: list[str]) -> str:
    """The name of the program: train.py for `python -u train.py`.

    For code on the command line (`python -c ...`) it is the interpreter, and for a shell command
    the name of its first word.
    """
    first = words[0].rpartition("/")[2]
    is_shell = re.fullmatch(_SHELLS, first) is not None
    if not is_shell and not re.fullmatch(_INTERPRETERS, first):
        return first
    code_follows = r"-\w*c" if is_shell or "python" in first else r"-\w*[eE]|--eval|--print"
    for place, word in enumerate(words[1:], start=1):
        if not word.startswith("-"):
            return word.rpartition("/")[2]
        if re.fullmatch(code_follows, word):
            line = words[place + 1].split() if is_shell and words[place + 1 :] else []
            return default_name(line) if line and re.search(r"\w", line[0]) else first
    return first


def missing_program(command: list[str], body: dict[str, Any]) -> str:
    """The program if it is not found on this machine; the job may still find it."""
    if not command or body.get("image") or body.get("conda"):
        return ""
    program = command[0]
    place = body.get("working_directory", "")
    if "/" in program:
        return "" if os.path.isfile(os.path.join(place, program)) else program  # noqa: PTH113, PTH118
    search = body.get("captured_environment", {}).get("PATH")
    if search is None:
        return ""
    found = any(
        os.access(os.path.join(place, part, program), os.X_OK)  # noqa: PTH118
        for part in search.split(":")
    )
    return "" if found else program


def missing_script(body: dict[str, Any], missing: str) -> str:
    """Why a command whose program was not found is a typing error; else an empty text.

    Other programs may exist on the nodes alone, and a job before this one may write a script.
    """
    command = body.get("command", [])
    if missing and "--" in command[1:]:
        return (
            f"there is no program '{missing}', and '--' comes after it; quote a value with spaces, "
            f"as in --time '2 hours', and write the command after '--'"
        )
    if missing and len(command) == 1 and re.search(r"\s", missing):
        import shlex

        needs_shell = re.search(r"[|&;<>()$`*?\n]", missing)
        without_quotes = "" if needs_shell else "without the quotes, or "
        return (
            f"there is no program '{missing}'; write the command {without_quotes}as "
            f"sh -c {shlex.quote(missing)}"
        )
    place = body.get("working_directory", "")
    is_script = re.search(r"\.(?:sh|bash|py|sbatch|slurm|job|pl|R|jl)$", missing)
    if body.get("dependencies"):
        return ""
    if is_script and not missing.startswith("/") and os.path.isdir(place):  # noqa: PTH112
        return f"there is no file '{missing}' in {place}; check the name"
    return ""


def not_a_program(body: dict[str, Any], missing: str) -> str:
    """Why the command names a file of this machine that cannot be started; else an empty text.

    `missing` is the program if it was not found. The kernel starts files that may be executed and
    begin with `#!` or as a binary.
    """
    command = body.get("command")
    if not command or body.get("image"):
        return ""
    program = command[0]
    path = os.path.join(body.get("working_directory", ""), program)  # noqa: PTH118
    if ("/" not in program and not missing) or not os.path.isfile(path):  # noqa: PTH113
        return ""
    with_interpreter = f"the program that runs it, as in 'python {program}'"
    if missing:
        return (
            f"'{program}' is a file, not a program on the PATH; write './{program}', or "
            f"{with_interpreter}"
        )
    if not os.access(path, os.X_OK):
        return (
            f"'{program}' is not executable; make it so with chmod +x, or write {with_interpreter}"
        )
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            start = stream.read(4)
    except OSError:  # may be executed but not read
        return ""
    if start.startswith((b"#!", b"\x7fELF")):
        return ""
    return f"'{program}' does not start with '#!' and is not a binary; write {with_interpreter}"
