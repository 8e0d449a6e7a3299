"""What the owner of the machine does not want to run, whoever asks.

A submission comes in; the submission as it is to run, or a refusal that names the setting, comes
out.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from gpu_scheduler.control.messages import Series, Submit
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.job import Job
from gpu_scheduler.server.notifications import check_notify
from gpu_scheduler.server.script_rule import ScriptRule
from gpu_scheduler.settings.groups import Settings

MB_PER_GB = 1024


class SiteRules:
    """What the settings of a server allow in a submission."""

    def __init__(self, settings: Settings) -> None:
        """Paths are resolved once."""
        security = settings.security
        self._gangs = settings.scheduler.enable_gang_scheduling
        self._most_mb = round(security.max_memory_per_job_gb * MB_PER_GB)
        self._step_milli = round(settings.gpu.allocation_precision * 1000)
        self._most_processes = security.max_processes_per_job
        self._notifications = settings.notifications
        self._forbidden = security.forbidden_environment
        allowed = security.allowed_script_paths
        self._scripts = ScriptRule(allowed, security.conda_roots) if allowed else None

    def check(self, submission: Submit | Series) -> Submit | Series:
        """Refuse what is against a rule; of many jobs, with the `index` of the first bad one."""
        job = submission.job
        if job.is_gang and not self._gangs:
            raise Forbidden(
                f"the job has {len(job.members)} members and gangs are switched off here "
                "(scheduler.enable_gang_scheduling); ask for one member"
            )
        self._check_memory(job)
        self._check_processes(submission)
        self._check_shares(job)
        if job.notify:
            check_notify(job, self._notifications)
        if self._forbidden:
            self._check_variables(submission)
        if self._scripts is None:
            return submission
        return _check_scripts(self._scripts, submission)

    def _check_variables(self, submission: Submit | Series) -> None:
        named = () if submission.launch is None else submission.launch.environment
        captured = () if submission.environment is None else submission.environment.variables
        for variables, where in ((named, "sets"), (captured, "brings along")):
            for name, _ in variables:
                if any(fnmatchcase(name, pattern) for pattern in self._forbidden):
                    raise Forbidden(
                        f"the job {where} the variable {name[:80]!r}, which is not allowed here "
                        "(security.forbidden_environment); unset it, or leave it out with --export"
                    )

    def _check_memory(self, job: Job) -> None:
        asked_mb = max(member.memory_mb for member in job.members)
        if self._most_mb and asked_mb > self._most_mb:
            raise Forbidden(
                f"the job asks for {asked_mb} MiB of memory and a job may have {self._most_mb} "
                "here (security.max_memory_per_job_gb); ask for less"
            )

    def _check_processes(self, submission: Submit | Series) -> None:
        asked = 0 if submission.launch is None else submission.launch.max_processes
        if self._most_processes and asked > self._most_processes:
            raise Forbidden(
                f"the job asks for {asked} processes and a job may have {self._most_processes} "
                "here (security.max_processes_per_job); ask for fewer"
            )

    def _check_shares(self, job: Job) -> None:
        for member in job.members:
            for share in (member.gpu_share_milli, member.gpu_extra_milli):
                if share % self._step_milli:
                    raise Forbidden(
                        f"the job asks for {share / 1000:g} of a GPU and shares go in steps of "
                        f"{self._step_milli / 1000:g} here (gpu.allocation_precision)"
                    )


def _check_scripts(rule: ScriptRule, submission: Submit | Series) -> Submit | Series:
    jobs = submission.each() if isinstance(submission, Series) else (submission,)
    allowed = submission.launch
    for index, one in enumerate(jobs):
        if one.launch is None:
            continue
        captured = None if one.environment is None else dict(one.environment.variables)
        try:
            allowed = rule.check(one.launch, captured)
        except Forbidden as error:
            error.index = index
            raise
    if allowed is None or not allowed.conda or submission.launch is None:
        return submission
    # Jobs of a series differ in their commands only.
    site = replace(submission.launch, conda=allowed.conda, conda_exe=allowed.conda_exe)
    return replace(submission, launch=site)
