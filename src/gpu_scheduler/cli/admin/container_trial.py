"""A trial container as an ordinary user, in the way that the launcher runs containers.

It needs no image: the container sees the programs of this machine.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.runners import rootless
from gpu_scheduler.agent.runners.container import ContainerRunner

TIMEOUT_S = 60.0
SUBUID = Path("/etc/subuid")
NO_USER = "no user has subordinate ids in /etc/subuid, which rootless podman needs"
_DIRECTORIES = ("dev", "etc", "proc", "run", "sys", "tmp", "usr")
_LINKS = ("bin", "sbin", "lib", "lib64")


def trial_user() -> pwd.struct_passwd | None:
    """The user to try it as: the caller, for root the one behind sudo or the first in subuid."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    names = [os.environ.get("SUDO_USER", "")]
    with suppress(OSError):
        names += [line.partition(":")[0] for line in SUBUID.read_text("utf-8").splitlines()]
    for name in filter(None, names):
        with suppress(KeyError):
            if (user := pwd.getpwnam(name)).pw_uid != 0:
                return user
    return None


def run_trial(user: pwd.struct_passwd) -> str:
    """Run a container that does nothing, as this user; "" if it worked, else the engine's words."""
    directory = Path(tempfile.mkdtemp(prefix="tgpu-doctor-"))
    try:
        work = _trial_work(directory, user)
        runner = ContainerRunner()
        return runner.missing(work) or _run(work, runner, directory, user)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _trial_work(directory: Path, user: pwd.struct_passwd) -> Work:
    root = directory / "root"
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    mounts = [("/usr", "/usr", True)]
    for name in _LINKS:
        place = Path("/", name)
        if place.is_symlink():
            (root / name).symlink_to(place.readlink())
        elif place.is_dir():
            (root / name).mkdir()
            mounts.append((str(place), str(place), True))
    scratch = directory / "scratch"
    # The engine would make a mount point that belongs to a subordinate id of the user.
    for made in (scratch, root / scratch.relative_to("/")):
        made.mkdir(parents=True)
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    return Work(
        allocation_id=f"doctor-{os.getpid()}",
        argv=("/usr/bin/env", "true"),
        uid=user.pw_uid,
        gid=user.pw_gid,
        runner="container",
        engine_user="job",
        image=f"rootfs:{root}",
        mounts=tuple(mounts),
        environment={"HOME": str(directory)},
        scratch_dir=str(scratch),
    )


def _run(work: Work, runner: ContainerRunner, directory: Path, user: pwd.struct_passwd) -> str:
    command = runner.command(work, {})
    links = Path(rootless.run_directory(work)).parent
    is_new = not links.exists()
    rootless.make_run_link(work)
    variables = directory / "variables"
    variables.write_text(command.stdin, encoding="utf-8")
    variables.chmod(0o644)
    try:
        with variables.open(encoding="utf-8") as stdin:
            done = _as_user(user, *command.argv, stdin=stdin, env=command.environment)
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("Error: ")] or lines[-1:]
        return "" if done.returncode == 0 else " ".join(errors) or f"exit code {done.returncode}"
    finally:
        _end_pause_process(work, user)
        rootless.remove_run_link(work)
        if is_new:
            with suppress(OSError):
                links.rmdir()


def _end_pause_process(work: Work, user: pwd.struct_passwd) -> None:
    """End the process that holds the user namespace, with the rights of that user."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        place = Path(work.scratch_dir, rootless.STATE, "run", "t", "pause.pid")
        _as_user(user, "kill", str(int(place.read_text("ascii"))))


def _as_user(
    user: pwd.struct_passwd, *argv: str, **options: object
) -> subprocess.CompletedProcess[str]:
    identity: dict[str, object] = {}
    if os.geteuid() == 0:
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]  # noqa: S603
        argv,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=TIMEOUT_S,
        **identity,
        **options,
    )
