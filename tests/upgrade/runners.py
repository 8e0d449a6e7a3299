"""The runners that upgrade tests try, and how to ask `tgpu submit` for each."""

from __future__ import annotations

import os
import shutil

import pytest

from gpu_scheduler.agent.runners.container import ContainerRunner, podman_init
from tests.upgrade.workstation import Workstation

RUNNERS = ("process", "terminal", "tmux", "screen", "container")
SESSIONS = ("terminal", "tmux", "screen")


def why_not(runner: str) -> str:
    """Why this machine cannot run jobs with a runner; empty if it can."""
    if runner in {"tmux", "screen"} and not shutil.which(runner):
        return f"{runner} is not installed"
    if runner == "container":
        engine = ContainerRunner()
        if os.geteuid() != 0 or not engine.engine or not engine.is_podman or not podman_init():
            return "containers are tried as root, with podman and its init"
        if not shutil.which("busybox"):
            return "a static busybox is needed as root file system"
    return ""


def needs(runner: str) -> None:
    if reason := why_not(runner):
        pytest.skip(reason)


def options(workstation: Workstation, runner: str) -> list[str]:
    """How to ask for a runner."""
    if runner != "container":
        return ["-G", "1", "--runner", runner]
    root = workstation.directory / "root"
    if not root.exists():
        for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "run"):
            (root / name).mkdir(parents=True)
        shutil.copy(str(shutil.which("busybox")), root / "bin" / "busybox")
        for tool in ("sh", "echo", "sleep"):
            (root / "bin" / tool).symlink_to("busybox")
    here = str(workstation.work)
    return ["--runner", runner, "--image", f"rootfs:{root}", "--mount", f"{here}:{here}"]
