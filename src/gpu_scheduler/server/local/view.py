"""A job as a program sees it: plain values, taken at one moment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_scheduler.model.states import JobState

JobStatus = JobState
"""pending, scheduled, running, completed, failed, cancelled, preempted."""


@dataclass(slots=True, kw_only=True)
class Job:
    """What is known of a job. Changing it changes nothing but this object."""

    script_path: str = ""
    args: list[str] = field(default_factory=list)
    priority: int = 1
    job_id: str = ""
    name: str = ""
    status: JobStatus = JobStatus.PENDING
    required_gpus: float = 0.0
    gpu_ids: list[int] = field(default_factory=list)
    reason: str = ""
    attempt: int = 0
    exit_code: int | None = None
    signal: int | None = None
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None

    def update_status(self, status: JobStatus | str) -> None:
        """Set the status of this object, and the time that goes with it."""
        self.status = JobStatus(status)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if self.status is JobStatus.RUNNING:
            self.started_at = now
        elif self.is_over:
            self.ended_at = now

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.status in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self) | {"status": self.status.value}


def job_of(form: Mapping[str, Any]) -> Job:
    """A job from the form in which the API shows it."""
    command = list(form["command"])
    is_python = len(command) > 1 and command[0].rpartition("/")[2].startswith("python")
    script = command[1] if is_python else "".join(command[:1])
    held = {gpu["index"] for place in form["allocation"] for gpu in place["gpus"]}
    return Job(
        job_id=form["id"],
        name=form["name"],
        script_path=script,
        args=command[2:] if is_python else command[1:],
        priority=form["priority"],
        status=JobStatus(form["state"]),
        required_gpus=form["gpu_count"],
        gpu_ids=sorted(held),
        reason=form["reason"],
        attempt=form["attempt"],
        exit_code=form["exit_code"],
        signal=form["signal"],
        submitted_at=form["submitted_at"],
        started_at=form["started_at"],
        ended_at=form["ended_at"],
    )
