"""Real containers for tests: what they need, and small root file systems and images of busybox."""

import os
import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from gpu_scheduler.agent.runners.container import NO_INIT, ContainerRunner, podman_init
from tests import linux_accounts

TOOLS = "sh echo sleep env id cat kill setsid pwd touch test ls ln rm mkdir wc"
DIRECTORIES = ("bin", "etc", "proc", "sys", "dev", "tmp", "run")


@cache
def why_no_containers() -> str:
    """Why root cannot run containers here; empty if it can."""
    if not shutil.which("busybox"):
        return "a static busybox is needed as root file system"
    if os.geteuid() != 0:
        return "containers are tried as root only"
    engine = ContainerRunner()
    if not engine.engine or not engine.is_podman:
        return "podman is not installed"
    return "" if podman_init() else NO_INIT


@cache
def why_not_rootless() -> str:
    """Why users cannot run containers here; empty if they can."""
    if not linux_accounts.CAN_MAKE:
        return linux_accounts.WHY_NOT
    if not shutil.which("newuidmap"):
        return "rootless podman needs newuidmap (package uidmap)"
    return why_no_containers()


def a_root_file_system(root: Path) -> Path:
    """Make a root file system with some tools at this path."""
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for tool in TOOLS.split():
        (root / "bin" / tool).symlink_to("busybox")
    return root


def an_image_archive(path: Path, name: str, message: str) -> Path:
    """Make a `docker-archive` of an image of this name that holds `/message`."""
    build = Path(tempfile.mkdtemp(prefix="img-"))  # short: podman takes at most 50 characters
    root = a_root_file_system(build / "root")
    (root / "message").write_text(message, encoding="utf-8")
    with tarfile.open(build / "layer.tar", "w") as layer:
        layer.add(root, arcname=".", filter=_of_root)
    places = ("--root", str(build / "store"), "--runroot", str(build / "run"))
    podman = ("podman", "--storage-driver", "vfs", *places)
    _run(*podman, "import", "--quiet", str(build / "layer.tar"), name)
    _run(*podman, "save", "--quiet", "--output", str(path), name)
    shutil.rmtree(build, ignore_errors=True)
    return path


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
