"""How a person on this machine enters the session of a running job."""

from __future__ import annotations

from gpu_scheduler.agent.runners.all import attach_command
from gpu_scheduler.agent.work import Work, WorkDevice
from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch


def attach_command_of(
    scratch: str, node: str, job: Job, launch: Launch, allocation: Allocation
) -> tuple[str, ...]:
    """The command for the first member; the same facts name the session as when it was made.

    None for a job on another node: what would enter its session does not lead there from here.
    """
    placement = allocation.placements[0]
    if placement.node_id != node:
        return ()
    return attach_command(
        Work(
            allocation_id=allocation.id,
            member=placement.member,
            job_id=job.id,
            task=allocation.task,
            attempt=allocation.attempt,
            name=job.name,
            uid=launch.uid,
            gid=launch.gid,
            user=launch.user,
            runner=launch.runner.value,
            image=launch.image,
            devices=tuple(WorkDevice(index=share.index) for share in placement.devices),
            scratch_dir=f"{scratch}/{allocation.id}.{placement.member}",
        )
    )
