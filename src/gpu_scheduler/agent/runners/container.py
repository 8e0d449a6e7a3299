"""A job in a container of docker or podman.

The engine's client is forked like a process and waits for the container; signals, exit code and
removal go through the engine. The client runs as the launcher's user, the container's process as
the job's user and without a way to gain privileges. Nothing of the job's environment reaches the
client: the variables go through its standard input, where other users cannot change them.
"""

from __future__ import annotations

import json
import os
import re
import resource
import zlib
from typing import Any, cast

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.runners.interface import (
    Command,
    Ending,
    Runner,
    find_program,
    job_argv,
    job_files,
)

ROOTFS = "rootfs:"
_CDI = ("/etc/cdi", "/var/run/cdi")
_NVIDIA = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_PODMAN_INITS = tuple(
    f"{place}/podman/catatonit"
    for place in ("/usr/libexec", "/usr/lib", "/usr/local/libexec", "/usr/local/lib")
)
_INITS = ("catatonit", "tini", "dumb-init")
_NEVER = "0001-01-01T00:00:00Z"
_FORMAT = "{{json .State}}"
_SIGNAL_OFFSET = 128
_REMOVE_TIMEOUT_S = "1"
_MAX_ANSWER = 200
NO_INIT = "podman has no init on this node, so signals would not reach a job; install catatonit"
BAD_ANSWER = "the container engine's answer cannot be parsed, so the exit code is unknown"


def container_name(work: Work) -> str:
    """`tgpu-<allocation>-<checksum>`, with the member's number between for all but the first.

    The checksum is that of the directory of all scratch directories: another scheduler on this
    machine has jobs of the same names, and its containers must not be removed.
    """
    name = work.allocation_id if work.member == 0 else f"{work.allocation_id}-{work.member}"
    if work.scratch_dir:
        name = f"{name}-{zlib.crc32(os.path.dirname(work.scratch_dir).encode()):08x}"
    return "tgpu-" + re.sub(r"[^A-Za-z0-9_.-]", "-", name)


def podman_init() -> tuple[str, ...]:
    """The options that make podman use an init (docker brings its own); empty if there is none.

    The first process of a container has no default signal actions: a job in its place would not end
    by SIGTERM, nor by a signal of its own.
    """
    if any(map(os.path.exists, _PODMAN_INITS)):
        return ("--init",)
    found = next(filter(None, map(find_program, _INITS)), "")
    return ("--init", "--init-path", found) if found else ()


class ContainerRunner(Runner):
    """Docker where its engine can be reached, else podman."""

    name = "container"

    def __init__(self) -> None:
        self.engine, self._global = _engine()

    def missing(self, work: Work) -> str:
        if not self.engine:
            return "there is no container engine on this node; install podman or docker"
        if self.is_podman and not podman_init():
            return NO_INIT
        if not work.image:
            return "the container runner needs an image"
        if work.image.startswith(ROOTFS):
            if not self.is_podman:
                return "a root file system as image needs podman, and this node uses docker"
        elif work.image.startswith("-"):
            return f"{work.image[:80]!r} is not the name of an image"
        return _bad_path(work)

    @property
    def is_podman(self) -> bool:
        return os.path.basename(self.engine) == "podman"

    def command(self, work: Work, environment: dict[str, str]) -> Command:
        kept, left_out = _split_passable(environment)
        listing = "".join(f"{name}={value}\n" for name, value in sorted(kept.items()))
        argv = (
            *self._base(),
            *("run", "--name", container_name(work), "--network", "host"),
            *(podman_init() if self.is_podman else ("--init",)),
            *("--user", f"{work.uid}:{work.gid}", "--security-opt", "no-new-privileges"),
            *("--env-file", "/dev/stdin"),
            *_left_out_note(left_out),
            *self._limits(work),
            *_mounts(work),
            *self._gpus(work),
            *(("--workdir", work.workdir) if work.workdir else ()),
            *self._image(work),
            *job_argv(work),
        )
        return Command(
            argv=argv,
            environment=_own_environment(work),
            as_user=False,
            stdin=listing,
            reachable=tuple(source for source, _, _ in work.mounts),
            root=work.image[len(ROOTFS) :] if work.image.startswith(ROOTFS) else "",
            files=job_files(work),
        )

    def attach_command(self, work: Work) -> tuple[str, ...]:
        return (*self._base(), "exec", "-it", container_name(work), "/bin/sh")

    def signal_command(self, work: Work, name: str) -> tuple[str, ...]:
        return (*self._base(), "kill", "--signal", name, container_name(work))

    def inspect_command(self, work: Work) -> tuple[str, ...]:
        return (*self._base(), "container", "inspect", "--format", _FORMAT, container_name(work))

    def clear_command(self, work: Work) -> tuple[str, ...]:
        extra = ("--time", _REMOVE_TIMEOUT_S) if self.is_podman else ()
        return (*self._base(), "rm", "--force", "--volumes", *extra, container_name(work))

    def ending(self, work: Work, inspected: str) -> Ending:
        """Engines report a signal as exit code 128 + n."""
        state = _state(inspected)
        if state is None:
            answer = " ".join(inspected.split())[:_MAX_ANSWER]
            return Ending(detail=f"{BAD_ANSWER}: {answer}")
        code = int(state["ExitCode"])
        if str(state.get("StartedAt", "")).startswith(_NEVER[:19]):
            return Ending(ran=False, detail=str(state.get("Error") or "the container never began"))
        if state.get("Running"):
            # Its exit code is 0 until it ends; its processes are killed now.
            return Ending(detail="its client ended while the container ran: exit code unknown")
        detail = ""
        if state.get("OOMKilled"):
            detail = f"killed by the kernel: used more than its {work.memory_mb} MB"
        if _SIGNAL_OFFSET < code < _SIGNAL_OFFSET + 65:
            return Ending(signal=code - _SIGNAL_OFFSET, detail=detail)
        return Ending(exit_code=code, detail=detail)

    def _base(self) -> tuple[str, ...]:
        return (self.engine, *self._global)

    def _image(self, work: Work) -> tuple[str, ...]:
        if work.image.startswith(ROOTFS):
            return ("--rootfs", "--", work.image[len(ROOTFS) :])
        return ("--", work.image)

    def _limits(self, work: Work) -> tuple[str, ...]:
        found: list[str] = []
        if work.cpu_milli:
            found += ["--cpus", f"{work.cpu_milli / 1000:.3f}"]
        if work.cpus:
            found += ["--cpuset-cpus", ",".join(map(str, work.cpus))]
        if work.memory_mb:
            found += ["--memory", f"{work.memory_mb}m", "--memory-swap", f"{work.memory_mb}m"]
        if work.max_processes:
            found += ["--pids-limit", str(work.max_processes)]
        return (*found, *_ulimits())

    def _gpus(self, work: Work) -> tuple[str, ...]:
        names = [device.mig_uuid or device.uuid or str(device.index) for device in work.devices]
        if not names:
            return ()
        if not self.is_podman:
            return ("--gpus", '"device=' + ",".join(names) + '"')
        if _has_cdi():
            return tuple(part for name in names for part in ("--device", f"nvidia.com/gpu={name}"))
        nodes = [device.path for device in work.devices if device.path]
        nodes += [path for path in _NVIDIA if os.path.exists(path)]
        return tuple(part for path in nodes for part in ("--device", path))


def _state(inspected: str) -> dict[str, Any] | None:
    """The engine's state of a container, among warnings before and after it; None if missing."""
    decoder = json.JSONDecoder()
    for begin in re.finditer(r"^\{", inspected, re.MULTILINE):
        try:
            state, _ = decoder.raw_decode(inspected, begin.start())
        except ValueError:
            continue
        if type(state.get("ExitCode")) is int:
            return cast(dict[str, Any], state)
    return None


def _engine() -> tuple[str, tuple[str, ...]]:
    docker, podman = find_program("docker"), find_program("podman")
    if docker and os.access("/var/run/docker.sock", os.W_OK):
        return docker, ()
    if not podman:
        return "", ()
    # crun refuses hosts with control groups of both versions; runc accepts them.
    pure_v2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    runc = "" if pure_v2 else find_program("runc")
    return podman, ("--runtime", runc) if runc else ()


def _own_environment(work: Work) -> dict[str, str]:
    kept = ("HOME", "PATH", "XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINER_HOST", "LANG")
    own = {name: os.environ[name] for name in kept if name in os.environ}
    own.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    own.setdefault("HOME", "/root" if os.geteuid() == 0 else "/")
    own["TGPU_ALLOCATION_ID"] = work.allocation_id
    own["TGPU_MEMBER"] = str(work.member)
    return own


def _split_passable(environment: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Engines read one variable per line, so a value with a line break cannot be passed.

    Nor a name that they would read as a comment, or refuse.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if "\n" not in value and not name.startswith("#") and name.split() == [name]
    }
    return kept, sorted(environment.keys() - kept.keys())


def _left_out_note(names: list[str]) -> tuple[str, ...]:
    return ("--env", "TGPU_LEFT_OUT=" + ",".join(names)) if names else ()


def _bad_path(work: Work) -> str:
    """Reject paths that an engine would parse as more than a path."""
    for path in (path for source, target, _ in work.mounts for path in (source, target)):
        if not path.startswith("/") or ":" in path:
            return f"cannot mount {path!r}: a path must be absolute and hold no colon"
    root = work.image[len(ROOTFS) :]
    if work.image.startswith(ROOTFS) and (root[:1] != "/" or not root.strip("/") or ":" in root):
        return f"no root file system at {root!r}; name a directory that holds one"
    return ""


def _mounts(work: Work) -> tuple[str, ...]:
    """The scratch directory has the same path inside, for the stop and checkpoint files."""
    places = list(work.mounts)
    if work.scratch_dir:
        places.append((work.scratch_dir, work.scratch_dir, False))
    return tuple(
        part
        for source, target, read_only in places
        for part in ("--volume", f"{source}:{target}" + (":ro" if read_only else ""))
    )


def _ulimits() -> tuple[str, ...]:
    """Our own limits: the engine's defaults may be more than it is allowed to set.

    Podman first lowers its own process limit to the number of pids, so more is not possible either.
    """
    highest = {"nofile": 1 << 20, "nproc": _max_pids()}
    found: list[str] = []
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            amount = min(hard, highest[name])
            found += ["--ulimit", f"{name}={amount}:{amount}"]
    return tuple(found)


def _max_pids() -> int:
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 1 << 15


def _has_cdi() -> bool:
    for directory in _CDI:
        if os.path.isdir(directory) and any("nvidia" in name for name in os.listdir(directory)):
            return True
    return False
