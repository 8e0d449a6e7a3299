"""What a child is told that shall become a job: from an attempt and its runner's command."""

from __future__ import annotations

import os

from gpu_scheduler.agent.launcher import scratch
from gpu_scheduler.agent.launcher.context import Kit
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.runners.interface import Command
from gpu_scheduler.agent.spawn.spawner import Launch
from gpu_scheduler.agent.work import Work


def problem_of(kit: Kit, attempt: Attempt) -> str:
    """Why this attempt cannot even be tried; "" if nothing is known against it."""
    work = attempt.work
    if attempt.runner is None:
        known = ", ".join(sorted(kit.runners))
        return f"there is no runner called {work.runner!r}; known: {known}"
    own = os.geteuid()
    if own not in {0, work.uid}:
        return (
            f"cannot run as uid {work.uid}: the launcher runs as uid {own} and is not root; "
            "run the scheduler as root, or submit as its own user"
        )
    if work.script and not work.scratch_dir:
        return "a script needs a scratch directory"
    return attempt.runner.missing(work)


def environment_of(kit: Kit, work: Work) -> dict[str, str]:
    """The job's own, and what only the launcher knows."""
    environment = dict(work.environment)
    environment["TGPU_ALLOCATION_ID"] = work.allocation_id
    environment["TGPU_MEMBER"] = str(work.member)
    environment["TGPU_LAUNCHER"] = kit.mark
    if work.scratch_dir:
        environment["TGPU_STOP_FILE"] = f"{work.scratch_dir}/{scratch.STOP_FILE}"
        environment["TGPU_CHECKPOINT_FILE"] = f"{work.scratch_dir}/{scratch.CHECKPOINT_FILE}"
    return environment


def launch_of(kit: Kit, attempt: Attempt, command: Command, log: int) -> Launch:
    """What the child is to become, and with which rights and limits."""
    work = attempt.work
    launch = Launch(
        argv=command.argv,
        environment=command.environment,
        gid=work.gid,
        user=work.user,
        log=log,
        joins=attempt.group.join_files,
        python=command.python,
        stdin=command.stdin,
        reachable=command.reachable,
        root=command.root,
        log_of_user=work.log_path if work.log_of_user else "",
        log_umask=work.umask,
    )
    if work.runner == "container":
        launch.environment = {**launch.environment, "TGPU_HELPER": kit.mark}
        launch.reaching_uid = work.uid
    if command.as_user:
        launch.uid = work.uid
        launch.umask = work.umask
        launch.workdir = work.workdir or "/"
        launch.rlimits = kit.limits.rlimits(work)
        launch.cpus = work.cpus
    launch.says_ready = attempt.waits_at_gate and not command.job
    return launch
