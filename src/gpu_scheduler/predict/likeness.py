"""Which jobs are alike: by program, script, arguments and name.

A job comes in; the groups of jobs that it learns from and is judged by go out, from alike to less
alike. An interpreter is known by its script: `python train.py` and `python test.py` are as unlike
as `train` and `echo`. What only launches another command (`env`, `torchrun`, `bash -c`) is looked
through. A job without a name and a command is like the other jobs of its user.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Hashable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from gpu_scheduler.model.job import Job

LONGEST_TEXT = 500
MOST_WORDS = 500
LONGEST_LINE = 2_000
"""What follows in a longer command, or line for a shell, does not identify it: every forecast reads
the commands of all jobs again, so the cost of each is bounded."""
MOST_LINES = 8_192
"""So many lines are parsed only once: more than a forecast has jobs."""
MOST_COMMANDS = 8
"""Of the commands in one line for a shell, so many identify it."""


class Likeness(StrEnum):
    """How alike the runs are that a run time is based on."""

    COMMAND = "command"
    SCRIPT = "script"
    USER = "user"
    TENANT = "tenant"


class GroupKey(NamedTuple):
    """A group of like jobs. With `of_limit` it learns run times as fractions of the limit."""

    likeness: Likeness
    key: Hashable
    of_limit: bool = False


class CommandIdentity(NamedTuple):
    """The program (of an interpreter: with its script) and the arguments that follow."""

    program: str
    arguments: str


def like_groups(job: Job) -> tuple[GroupKey, ...]:
    """The groups of a job, from alike to less alike; for all jobs of one kind as many."""
    tenant, user, limit = job.tenant, job.user, job.max_runtime_ms
    size: Hashable = ("limit", limit) if limit else (job.gpu_milli, job.members[0].cpu_milli)
    if job.command:
        program, arguments = identity_of(job.command)
        return (
            GroupKey(Likeness.COMMAND, ("same", tenant, user, job.name, program, arguments, size)),
            GroupKey(Likeness.COMMAND, ("args", tenant, user, program, arguments)),
            GroupKey(Likeness.SCRIPT, ("script", tenant, user, program)),
            GroupKey(Likeness.SCRIPT, ("others", tenant, program)),
        )
    if job.name:
        return (
            GroupKey(Likeness.COMMAND, ("name", tenant, user, job.name, size)),
            GroupKey(Likeness.COMMAND, ("name", tenant, user, job.name, bool(limit)), bool(limit)),
            GroupKey(Likeness.SCRIPT, ("name", tenant, job.name, limit or job.gpu_milli)),
            GroupKey(Likeness.SCRIPT, ("name", tenant, job.name, bool(limit)), bool(limit)),
        )
    return (
        GroupKey(Likeness.USER, ("user", tenant, user, size)),
        GroupKey(Likeness.USER, ("user", tenant, user, bool(limit)), bool(limit)),
        GroupKey(Likeness.TENANT, ("size", tenant, limit or job.gpu_milli, bool(limit))),
        GroupKey(Likeness.TENANT, ("tenant", tenant, bool(limit)), bool(limit)),
    )


_INTERPRETERS = re.compile(
    r"(python|pypy|perl|ruby|node|Rscript|julia|lua|php|bash|sh|dash|zsh|ksh|java)[\d.]*"
)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_LAUNCHERS = {
    **dict.fromkeys(("env", "nohup", "time", "exec", "setsid", "stdbuf", "nice", "ionice"), 0),
    **dict.fromkeys(
        ("torchrun", "deepspeed", "mpirun", "mpiexec", "srun", "numactl", "xvfb-run"), 0
    ),
    **dict.fromkeys(("timeout", "taskset", "chrt"), 1),
}
"""Programs that launch the command after their options and so many words."""
_LAUNCHER_VERBS = {"accelerate": "launch", "uv": "run", "poetry": "run", "conda": "run"}
_WITH_VALUE = frozenset(
    f"{'-' if len(name) < 3 else '--'}{name}"  # short options have one dash
    for name in (
        *("n", "np", "N", "c", "u", "g", "s", "k", "p", "i", "e", "o", "W", "X", "m", "name"),
        *("nproc_per_node", "nproc-per-node", "nnodes", "node_rank", "node-rank", "master_addr"),
        *("master_port", "rdzv_endpoint", "num_processes", "num_machines", "config_file"),
        *("num_gpus", "include", "hostfile", "prefix", "cwd", "with"),
    )
)
"""Options of launchers whose value is the next word."""
_SETUP = frozenset(
    {"cd", "source", ".", "export", "set", "echo", "module", "mkdir", "sleep", "true", "ulimit"}
)
"""Commands in a line for a shell that prepare or report; alone, they are what it does."""
_SEPARATORS = frozenset({"&&", "||", ";", "|", "&"})


def identity_of(command: Sequence[str]) -> CommandIdentity:
    """What a command runs."""
    command = command[:MOST_WORDS]
    words = _launched(list(command))
    if not words:
        return CommandIdentity(" ".join(command)[:LONGEST_TEXT], "")
    program = posixpath.basename(words[0])
    if not _INTERPRETERS.fullmatch(program):
        return _identity(program, words[1:])
    language = program.rstrip("0123456789.")
    options = 1
    while options < len(words) and words[options].startswith("-"):
        option = words[options]
        rest = words[options + 1 :]
        if language in _SHELLS and option.endswith("c") and rest:
            return _shell_line(rest[0][:LONGEST_LINE])
        if option in {"-m", "-c", "-e", "-jar"} and rest:
            return _identity(f"{language} {option} {rest[0]}", rest[1:])
        options += 2 if option in {"-W", "-X", "-cp"} else 1
    if options == len(words):
        return _identity(language, words[1:])
    script = posixpath.normpath(words[options])
    return _identity(f"{language} {script}", words[options + 1 :])


def _identity(program: str, arguments: Sequence[str]) -> CommandIdentity:
    return CommandIdentity(program[:LONGEST_TEXT], " ".join(arguments)[:LONGEST_TEXT])


def _launched(words: list[str]) -> list[str]:
    """The command behind launchers and assignments of variables."""
    while words:
        first = posixpath.basename(words[0])
        if "=" in first and re.fullmatch(r"\w+=.*", words[0], re.DOTALL):
            words = words[1:]
        elif first in _LAUNCHERS:
            words = _after_options(words[1:])[_LAUNCHERS[first] :]
            if first in {"torchrun", "deepspeed"}:
                return ["python", *words] if words else words
        elif len(words) > 1 and _LAUNCHER_VERBS.get(first) == words[1]:
            words = _after_options(words[2:])
            if first == "accelerate":
                return ["python", *words] if words else words
        else:
            break
    return words


def _after_options(words: list[str]) -> list[str]:
    """What follows the options of a launcher."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        if words[place] == "--":
            return words[place + 1 :]
        place += 2 if words[place] in _WITH_VALUE else 1
    return words[place:]


@lru_cache(maxsize=MOST_LINES)
def _shell_line(line: str) -> CommandIdentity:
    """What a line for a shell runs, without the commands that only prepare."""
    commands: list[list[str]] = [[]]
    for word in _words(line):
        if word in _SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(word)
    filled = [words for words in commands if words]
    working = [words for words in filled if words[0] not in _SETUP] or filled
    found = [identity_of(words) for words in working[:MOST_COMMANDS]]
    programs = "; ".join(one.program for one in found)
    return _identity(programs, [one.arguments for one in found])


def _words(line: str) -> list[str]:
    """The words and separators of a line; what cannot be parsed is split at blanks."""
    lexer = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return line.split()
