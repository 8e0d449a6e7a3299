"""What the owner of the machine does not want to run, whoever asks.

A submission comes in; silence, or a refusal that names the setting, comes out.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpu_scheduler.control.messages import Series, Submit
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.settings.groups import Settings

MB_PER_GB = 1024
INTERPRETERS = ("python", "bash", "sh", "dash", "zsh", "perl", "Rscript", "julia", "node")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "env", "nice", "time", "nohup", "srun")


class SiteRules:
    """The rules of one server."""

    def __init__(self, settings: Settings) -> None:
        """Paths are resolved once."""
        security = settings.security
        self._gangs = settings.scheduler.enable_gang_scheduling
        self._most_mb = round(security.max_memory_per_job_gb * MB_PER_GB)
        self._step_milli = round(settings.gpu.allocation_precision * 1000)
        self._allowed = tuple(Path(os.path.realpath(p)) for p in security.allowed_script_paths)

    def check(self, submission: Submit | Series) -> None:
        """Refuse what is against a rule; of many jobs, with the `index` of the first bad one."""
        job, launch = submission.job, submission.launch
        if job.is_gang and not self._gangs:
            raise Forbidden(
                f"the job has {len(job.members)} members and gangs are switched off here "
                "(scheduler.enable_gang_scheduling); ask for one member"
            )
        self._check_memory(job)
        self._check_shares(job)
        if self._allowed and isinstance(submission, Series):
            self._check_scripts(submission)
        elif self._allowed and launch is not None:
            self._check_script(launch)

    def _check_memory(self, job: Job) -> None:
        asked_mb = max(member.memory_mb for member in job.members)
        if self._most_mb and asked_mb > self._most_mb:
            raise Forbidden(
                f"the job asks for {asked_mb} MiB of memory and a job may have {self._most_mb} "
                "here (security.max_memory_per_job_gb); ask for less"
            )

    def _check_shares(self, job: Job) -> None:
        for member in job.members:
            for share in (member.gpu_share_milli, member.gpu_extra_milli):
                if share % self._step_milli:
                    raise Forbidden(
                        f"the job asks for {share / 1000:g} of a GPU and shares go in steps of "
                        f"{self._step_milli / 1000:g} here (gpu.allocation_precision)"
                    )

    def _check_scripts(self, series: Series) -> None:
        for index, one in enumerate(series.each()):
            try:
                self._check_script(one.launch or series.launch)
            except Forbidden as error:
                error.index = index
                raise

    def _check_script(self, launch: Launch) -> None:
        named = _script_of(launch)
        where = ", ".join(map(str, self._allowed))
        if named is None:
            raise Forbidden(
                "the job does not name a script, and only scripts in these directories may run "
                f"here (security.allowed_script_paths): {where}"
            )
        found = Path(os.path.realpath(named))
        if not any(found.is_relative_to(allowed) for allowed in self._allowed):
            raise Forbidden(
                f"the job runs {found}, and only scripts in these directories may run here "
                f"(security.allowed_script_paths): {where}"
            )


def _script_of(launch: Launch) -> Path | None:
    """The file that a command runs: behind launchers and interpreters, the first that is named."""
    words = list(launch.argv)
    while words:
        program = Path(words[0])
        name = program.name.rstrip("0123456789.")
        if name not in INTERPRETERS and name not in LAUNCHERS:
            return Path(launch.workdir or "/") / program
        words = words[1:]
        # An interpreter's own code (-c, -m) is no file; an assignment belongs to env.
        while words and (words[0].startswith("-") or "=" in words[0]):
            if words[0] in {"-c", "-m", "-e"}:
                return None
            words = words[1:]
    return None
