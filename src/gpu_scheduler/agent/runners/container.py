"""A job in a container of podman or docker.

By default podman runs as the job's user, inside the job's control group: see `rootless`. Signals
and the exit code need no engine then.

Where the site has chosen so (`agent.container_engine_user: root`), and for root's own jobs, the
engine runs as root. Its client is forked like a process and waits for the container; signals, exit
code and removal go through the engine. What root's engine is given by other users is checked here:
an image from the site's list, no root file system, and mounts that the child has opened as the user
and bound below `STAGE`, which only root can reach.

Nothing of the job's environment reaches the client: the variables go through its standard input,
where other users cannot change them.
"""

from __future__ import annotations

import json
import os
import re
import resource
import zlib
from fnmatch import fnmatchcase
from typing import Any, cast

from gpu_scheduler.agent.cgroups import controllers_for_root
from gpu_scheduler.agent.launcher_protocol import (
    Work,
    WorkDevice,
    in_rootless_container,
    memory_limit_mb,
)
from gpu_scheduler.agent.runners import rootless
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
_CDI_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?nvidia\.com/gpu(?![\w./-])""")
_CDI_NAME = re.compile(
    r"""(?:^|[\s{,-])["']?name["']?\s*:\s*["']?([A-Za-z0-9][\w.:-]*)""", re.MULTILINE
)
_NVIDIA = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_PODMAN_INITS = tuple(
    f"{place}/podman/catatonit"
    for place in ("/usr/libexec", "/usr/lib", "/usr/local/libexec", "/usr/local/lib")
)
_INITS = ("catatonit", "tini", "dumb-init")
_NEVER = "0001-01-01T00:00:00Z"
_FORMAT = "{{json .State}}"
_PODMAN_FORMAT = _FORMAT + '{{"\\n"}}{{.ImageDigest}}'
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SIGNAL_OFFSET = 128
_IMAGE_NAME = re.compile(
    r"[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9._-]+)+(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?"
)
"""Registry, path, tag, digest. A transport such as `docker-archive:` or `dir:` does not match."""
_NAME_AND_TAG = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9._-]+)+(:[A-Za-z0-9._-]+)?")
"""A name without a digest, which an earlier attempt may have resolved."""
_REMOVE_TIMEOUT_S = "1"
_MAX_ANSWER = 200
STAGE = "/run/gpu-scheduler-mounts"
"""Mounts of containers of root's engine, in one directory for each container."""
NO_PODMAN = (
    "podman is not installed on this node, and docker runs as root; install podman, or set "
    "agent.container_engine_user to root"
)
NO_INIT = "podman has no init on this node, so signals would not reach a job; install catatonit"
NO_CGROUPS = (
    "no control groups are mounted on this node, without which podman's runtimes run no container"
)
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


def _podman_problem() -> str:
    """Why podman runs no container on this node; "" if it does."""
    if not podman_init():
        return NO_INIT
    return NO_CGROUPS if controllers_for_root() is None else ""


class ContainerRunner(Runner):
    """Podman as the job's user; as root docker where its engine can be reached, else podman."""

    name = "container"

    def __init__(self) -> None:
        self.engine, self._global = _engine()
        self.podman = _podman()

    def missing(self, work: Work) -> str:
        is_rootless = in_rootless_container(work)
        if not self.engine:
            return "there is no container engine on this node; install podman or docker"
        if is_rootless and not self.podman:
            return NO_PODMAN
        if (is_rootless or self.is_podman) and (problem := _podman_problem()):
            return problem
        if is_rootless and not work.scratch_dir:
            return "a container needs a scratch directory"
        if not work.image:
            return "the container runner needs an image"
        if work.image.startswith(ROOTFS):
            if not is_rootless and not self.is_podman:
                return "a root file system as image needs podman, and this node uses docker"
        elif work.image.startswith("-"):
            return f"{work.image[:80]!r} is not the name of an image"
        return _bad_path(work) or ("" if is_rootless else _refused_by_root(work))

    @property
    def is_podman(self) -> bool:
        return os.path.basename(self.engine) == "podman"

    def command(self, work: Work, environment: dict[str, str]) -> Command:
        kept, left_out = _split_passable(environment)
        listing = "".join(f"{name}={value}\n" for name, value in sorted(kept.items()))
        if in_rootless_container(work):
            return self._rootless_command(work, environment, listing, left_out)
        staged = stage_directory(work)
        argv = (
            *self._base(),
            *("run", "--name", container_name(work), "--network", "host"),
            *(podman_init() if self.is_podman else ("--init",)),
            *("--user", f"{work.uid}:{work.gid}", "--security-opt", "no-new-privileges"),
            *("--env-file", "/dev/stdin"),
            *_left_out_note(left_out),
            *self._limits(work),
            *_mounts(work, staged),
            *_gpus(work, by_name=not self.is_podman),
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
            stage=staged,
            root=work.image[len(ROOTFS) :] if work.image.startswith(ROOTFS) else "",
            files=job_files(work),
        )

    def _rootless_command(
        self, work: Work, environment: dict[str, str], listing: str, left_out: list[str]
    ) -> Command:
        """The user is the same inside and outside; the limits are those of the control group."""
        options = (
            *("--name", container_name(work), "--network", "host", *podman_init()),
            *("--userns", "keep-id", "--user", f"{work.uid}:{work.gid}"),
            *("--security-opt", "no-new-privileges", "--env-file", "/dev/stdin"),
            *_cgroup_options(self.podman),
            *_left_out_note(left_out),
            *_ulimits(work),
            *_mounts(work),
            *_gpus(work),
            *(("--workdir", work.workdir) if work.workdir else ()),
        )
        marks = ("TGPU_ALLOCATION_ID", "TGPU_MEMBER", "TGPU_LAUNCHER")
        own = {name: environment[name] for name in marks if name in environment}
        root = work.image[len(ROOTFS) :] if work.image.startswith(ROOTFS) else ""
        return Command(
            argv=rootless.run_command(work, self.podman, options, job_argv(work), root=root),
            environment={**rootless.environment(work), **own},
            workdir="/",
            stdin=listing,
            files=job_files(work),
        )

    def attach_command(self, work: Work) -> tuple[str, ...]:
        if in_rootless_container(work):
            variables = (f"{name}={value}" for name, value in rootless.environment(work).items())
            base = rootless.engine(work, self.podman)
            return ("env", *variables, *base, "exec", "-it", container_name(work), "/bin/sh")
        return (*self._base(), "exec", "-it", container_name(work), "/bin/sh")

    def signal_command(self, work: Work, name: str) -> tuple[str, ...]:
        if in_rootless_container(work):
            return ()
        return (*self._base(), "kill", "--signal", name, container_name(work))

    def inspect_command(self, work: Work) -> tuple[str, ...]:
        if in_rootless_container(work):
            return ()
        form = _PODMAN_FORMAT if self.is_podman else _FORMAT
        return (*self._base(), "container", "inspect", "--format", form, container_name(work))

    def image_command(self, work: Work) -> tuple[str, ...]:
        """Fails while root's engine does not have the image."""
        if work.image.startswith(ROOTFS):
            return ("true",)
        find = ("exists",) if self.is_podman else ("inspect", "--format", "{{.Id}}")
        return (*self._base(), "image", *find, "--", _pinned(work))

    def clear_command(self, work: Work) -> tuple[str, ...]:
        if in_rootless_container(work):
            return ()
        extra = ("--time", _REMOVE_TIMEOUT_S) if self.is_podman else ()
        return (*self._base(), "rm", "--force", "--volumes", *extra, container_name(work))

    def ending(self, work: Work, inspected: str) -> Ending:
        """Engines report a signal as exit code 128 + n."""
        state = _state(inspected)
        if state is None:
            answer = " ".join(inspected.split())[:_MAX_ANSWER]
            return Ending(detail=f"{BAD_ANSWER}: {answer}")
        digest = _digest_of(inspected)
        code = int(state["ExitCode"])
        if str(state.get("StartedAt", "")).startswith(_NEVER[:19]):
            return Ending(ran=False, detail=str(state.get("Error") or "the container never began"))
        if state.get("Running"):
            # Its exit code is 0 until it ends; its processes are killed now.
            detail = "its client ended while the container ran: exit code unknown"
            return Ending(detail=detail, image_digest=digest)
        detail = ""
        if state.get("OOMKilled"):
            detail = f"killed by the kernel: used more than its {memory_limit_mb(work)} MB"
        if _SIGNAL_OFFSET < code < _SIGNAL_OFFSET + 65:
            return Ending(signal=code - _SIGNAL_OFFSET, detail=detail, image_digest=digest)
        return Ending(exit_code=code, detail=detail, image_digest=digest)

    def _base(self) -> tuple[str, ...]:
        return (self.engine, *self._global)

    def _image(self, work: Work) -> tuple[str, ...]:
        if work.image.startswith(ROOTFS):
            return ("--rootfs", "--", work.image[len(ROOTFS) :])
        return ("--", _pinned(work))

    def _limits(self, work: Work) -> tuple[str, ...]:
        found: list[str] = []
        controllers = controllers_for_root()
        if work.cpu_milli:
            found += ["--cpus", f"{work.cpu_milli / 1000:.3f}"]
        if work.cpus:
            found += ["--cpuset-cpus", ",".join(map(str, work.cpus))]
        if work.memory_mb or (work.default_memory_mb and "memory" in (controllers or ())):
            limit = f"{memory_limit_mb(work)}m"
            found += ["--memory", limit, "--memory-swap", limit]
        if self.is_podman and controllers is not None and "pids" not in controllers:
            found += ["--pids-limit", "0"]  # podman's own default would fail
        elif work.max_processes:
            found += ["--pids-limit", str(work.max_processes)]
        return (*found, *_ulimits(work))


def stage_directory(work: Work) -> str:
    """Where the mounts of a container of root's engine are bound; "" if they need no staging."""
    if not work.mounts or in_rootless_container(work) or work.uid == 0 or os.geteuid() != 0:
        return ""
    return f"{STAGE}/{container_name(work)}"


def _gpus(work: Work, *, by_name: bool = False) -> tuple[str, ...]:
    """The options for the GPUs: by the vendor's CDI specification if it has all, else by nodes.

    `by_name`: by docker's own option.
    """
    if not work.devices:
        return ()
    if by_name:
        names = [device.mig_uuid or device.uuid or str(device.index) for device in work.devices]
        return ("--gpus", '"device=' + ",".join(names) + '"')
    known = _cdi_names()
    found = [_cdi_name(device, known) for device in work.devices]
    if all(found):
        return tuple(part for name in found for part in ("--device", f"nvidia.com/gpu={name}"))
    nodes = [device.path for device in work.devices if device.path]
    nodes += [path for path in _NVIDIA if os.path.exists(path)]
    return tuple(part for path in nodes for part in ("--device", path))


def _refused_by_root(work: Work) -> str:
    """Why root's engine does not run this for another user; "" if it does."""
    if work.uid == 0 or os.geteuid() != 0:
        return ""
    if work.engine_user != "root":
        return "the order does not name who runs the container engine; update the agent"
    if work.image.startswith(ROOTFS):
        return (
            "a root file system as image needs rootless podman, and this node runs its engine as "
            "root (agent.container_engine_user)"
        )
    registry, _, path = work.image.partition("/")
    is_full_name = bool(path) and ("." in registry or ":" in registry) and registry[-1:] != ":"
    if not is_full_name or not _IMAGE_NAME.fullmatch(work.image):
        return (
            f"image {work.image[:80]!r} must be a full name with its registry, such as "
            "registry.example.org/ml/torch:2.4, as this node runs its engine as root"
        )
    if not any(fnmatchcase(work.image, pattern) for pattern in work.allowed_images):
        return (
            f"image {work.image[:80]!r} matches no pattern of agent.container_allowed_images on "
            "this node"
        )
    return ""


def _pinned(work: Work) -> str:
    """The image by the digest of an earlier attempt, whatever its tag means by now."""
    if not _DIGEST.fullmatch(work.image_digest) or not _NAME_AND_TAG.fullmatch(work.image):
        return work.image
    path, _, name = work.image.rpartition("/")
    return f"{path}/{name.partition(':')[0]}@{work.image_digest}"


def _digest_of(inspected: str) -> str:
    """The image's digest in a line of its own, as podman reports it; "" if it does not."""
    lines = map(str.strip, inspected.splitlines())
    return next(filter(_DIGEST.fullmatch, lines), "")


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
    runc = "" if _is_pure_v2() else find_program("runc")
    return podman, ("--runtime", runc) if runc else ()


def _podman() -> tuple[str, ...]:
    """Rootless podman and its options; empty if it is not installed.

    The driver is named, as podman cannot mix stores of several drivers. Without fuse-overlayfs
    podman copies an image to give its files the ids of the user inside.
    """
    podman = find_program("podman")
    if not podman:
        return ()
    runtime = find_program("crun" if _is_pure_v2() else "runc") or find_program("crun")
    fuse = find_program("fuse-overlayfs") if _is_open_to_all("/dev/fuse") else ""
    return (
        *(podman, "--log-level", "error", "--cgroup-manager", "cgroupfs"),
        *(("--runtime", runtime) if runtime else ()),
        *("--storage-driver", "overlay"),
        *(("--storage-opt", f"overlay.mount_program={fuse}") if fuse else ()),
    )


def _is_open_to_all(path: str) -> bool:
    try:
        return os.stat(path).st_mode & 0o006 == 0o006
    except OSError:
        return False


def _is_pure_v2() -> bool:
    """Whether the host has only v2. On hosts with both versions crun refuses to run, not runc."""
    return os.path.exists("/sys/fs/cgroup/cgroup.controllers")


def _cgroup_options(podman: tuple[str, ...]) -> tuple[str, ...]:
    """Keep the container in the group of its job. runc does so where it may make no group."""
    return ("--cgroups", "disabled") if any(word.endswith("/crun") for word in podman) else ()


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
    """Reject paths that an engine would parse as more than a path.

    Podman writes the working directory into the container's `passwd`, one line for each user.
    """
    if _has_control(work.workdir) or _has_control(work.image):
        return "the image or the working directory holds a control character; remove it"
    for path in (path for source, target, _ in work.mounts for path in (source, target)):
        if not path.startswith("/") or ":" in path or _has_control(path):
            return (
                f"cannot mount {path!r}: a path must be absolute and hold no colon and no control "
                "character"
            )
    root = work.image[len(ROOTFS) :]
    if work.image.startswith(ROOTFS) and (root[:1] != "/" or not root.strip("/") or ":" in root):
        return f"no root file system at {root!r}; name a directory that holds one"
    return ""


def _has_control(text: str) -> bool:
    return any(character < " " or character == "\x7f" for character in text)


def _mounts(work: Work, staged: str = "") -> tuple[str, ...]:
    """The scratch directory has the same path inside, for the stop and checkpoint files.

    `staged`: the directory in which the child has bound the sources, named by their numbers.
    """
    places = [
        (f"{staged}/{number}" if staged else source, target, read_only)
        for number, (source, target, read_only) in enumerate(work.mounts)
    ]
    if work.scratch_dir:
        places.append((work.scratch_dir, work.scratch_dir, False))
    return tuple(
        part
        for source, target, read_only in places
        for part in ("--volume", f"{source}:{target}" + (":ro" if read_only else ""))
    )


def _ulimits(work: Work) -> tuple[str, ...]:
    """Our own limits: the engine's defaults may be more than it is allowed to set.

    Podman first lowers its own process limit to the number of pids, so more is not possible either.
    Podman of the job's user cannot exceed the user's limit of processes.
    """
    highest = {"nofile": 1 << 20, "nproc": _max_pids()}
    of_user = work.max_user_processes if work.uid else 0
    found: list[str] = []
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        _, hard = resource.getrlimit(number)
        limits = [] if hard == resource.RLIM_INFINITY else [hard, highest[name]]
        if of_user and name == "nproc":
            limits.append(of_user)
        if limits:
            found += ["--ulimit", f"{name}={min(limits)}:{min(limits)}"]
    return tuple(found)


def _max_pids() -> int:
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 1 << 15


def _cdi_name(device: WorkDevice, known: set[str]) -> str:
    """What the specification calls a device: a UUID, or the index of a whole GPU; "" if neither."""
    if device.mig_uuid:
        return device.mig_uuid if device.mig_uuid in known else ""
    return next((name for name in (device.uuid, str(device.index)) if name in known), "")


def _cdi_names() -> set[str]:
    """The names of all GPUs in the CDI specifications (YAML or JSON) of this node.

    Names are found by their key, as the launcher loads no YAML parser.
    """
    names: set[str] = set()
    for directory in _CDI:
        try:
            files = [name for name in os.listdir(directory) if name.endswith((".yaml", ".json"))]
        except OSError:
            continue
        for name in files:
            try:
                with open(f"{directory}/{name}", encoding="utf-8") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue
            if _CDI_KIND.search(text):
                names.update(_CDI_NAME.findall(text))
    return names
