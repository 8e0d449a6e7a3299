"""A job as a plain process of the launcher."""

from __future__ import annotations

from gpu_scheduler.agent.runners.interface import Command, Runner
from gpu_scheduler.agent.work import Work


class ProcessRunner(Runner):
    """The command itself is forked, signalled and waited for."""

    name = "process"

    def missing(self, work: Work) -> str:
        if work.image:
            return "an image needs the container runner, and 'process' was asked for"
        return ""

    def command(self, work: Work, environment: dict[str, str]) -> Command:
        return Command(argv=job_argv(work), environment=environment, files=job_files(work))


def job_argv(work: Work) -> tuple[str, ...]:
    """The command, or the script behind its interpreter.

    The interpreter is named, because scratch directories often lie where nothing may be executed.
    """
    if not work.script:
        return work.argv
    return (*interpreter(work.script), f"{work.scratch_dir}/script", *work.argv)


def job_files(work: Work) -> dict[str, str]:
    return {"script": work.script} if work.script else {}


def interpreter(script: str) -> tuple[str, ...]:
    """What the first line asks for, else a shell."""
    first = script.split("\n", 1)[0]
    if not first.startswith("#!") or not first[2:].strip():
        return ("/bin/sh",)
    return tuple(first[2:].strip().split(None, 1))
