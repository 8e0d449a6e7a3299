"""How a job is run: command, environment, runner, probe, hooks. The engine does not read this."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest


class ProbeKind(StrEnum):
    """The kind of a readiness probe."""

    HTTP = "http"
    TCP = "tcp"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A readiness probe, which the agent runs on the node at an interval.

    One success makes a replica ready; `failures` failures in a row make it not ready. For its first
    success it has `grace_ms`.
    """

    kind: ProbeKind
    path: str = "/"
    argv: tuple[str, ...] = ()
    interval_ms: int = 5_000
    timeout_ms: int = 2_000
    failures: int = 3
    grace_ms: int = 60_000

    def __post_init__(self) -> None:
        """Reject an invalid probe."""
        if self.kind is ProbeKind.HTTP and not _is_path(self.path):
            raise InvalidRequest(
                f"the readiness path is {self.path[:80]!r}; write an absolute path such as /health"
            )
        if (self.kind is ProbeKind.COMMAND) != bool(self.argv):
            raise InvalidRequest("a readiness check by command needs a command, and no other does")
        if any("\0" in word for word in self.argv):
            raise InvalidRequest("the readiness command holds a NUL character; remove it")
        if self.interval_ms < 100 or self.timeout_ms < 10 or self.failures < 1 or self.grace_ms < 0:
            raise InvalidRequest(
                "the readiness check needs an interval of 0.1 s or more, a timeout of 0.01 s or "
                "more, 1 failure or more, and no negative grace"
            )


def _is_path(path: str) -> bool:
    return path.startswith("/") and path.isascii() and path.isprintable() and " " not in path


class Runner(StrEnum):
    """What runs the processes of a job."""

    PROCESS = "process"
    TMUX = "tmux"
    SCREEN = "screen"
    CONTAINER = "container"
    TERMINAL = "terminal"


ROOTFS = "rootfs:"
"""Prefix of an image that is the path of a root file system."""
EVERYWHERE = frozenset({Runner.PROCESS, Runner.TERMINAL})
"""Runners that need only the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The initial terminal of a job with runner `terminal`.

    The job is stopped after `idle_ms` without input, output and CPU use, and if no user attaches
    within `attach_within_ms` of the start (0: never). It keeps running when the last connection
    breaks, unless `keep` is false.
    """

    rows: int = 24
    columns: int = 80
    idle_ms: int = 0
    attach_within_ms: int = 0
    keep: bool = True


PLAIN_TERMINAL = Terminal()


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the host that a container sees."""

    source: str
    target: str
    read_only: bool = False

    def __post_init__(self) -> None:
        """Reject paths that a container engine would misread."""
        for path in (self.source, self.target):
            if not path.startswith("/") or ":" in path or _has_control(path):
                raise InvalidRequest(
                    f"mount {path!r}: both sides must be absolute paths without colons or control "
                    "characters"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSnapshot:
    """The copy of the code at submission: its path, and its source.

    For information only: the job's directory is a separate field.
    """

    path: str
    source: str
    tree: str
    commit: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything an agent needs to run a job, except the devices.

    `uid` and `gid` are those of the caller, never from a request. `environment` has the requested
    variables; `captured` names a complete environment that is stored separately, since it can hold
    secrets. `script` is the text of a submitted script, run by its interpreter line with the job's
    command as arguments. `sweep` and `params` identify the job in a sweep. `conda_exe` is set by
    the site's rules and overrides that of the submitter. Without `limits_cpu` the job asked for no
    CPU: it may use more than the one core it holds.
    """

    argv: tuple[str, ...] = ()
    script: str = ""
    workdir: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    captured: str = ""
    uid: int = 0
    gid: int = 0
    user: str = ""
    umask: int = 0o022
    runner: Runner = Runner.PROCESS
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    conda: str = ""
    conda_exe: str = ""
    output: str = ""
    warn_signal: str = ""
    warn_before_ms: int = 0
    grace_ms: int | None = None
    max_processes: int = 0
    limits_cpu: bool = True
    sweep: str = ""
    params: tuple[tuple[str, str], ...] = ()
    snapshot: CodeSnapshot | None = None
    terminal: Terminal = PLAIN_TERMINAL
    probe: Probe | None = None

    def __post_init__(self) -> None:
        """Reject what no agent could run."""
        if not self.argv and not self.script and not self.image:
            raise InvalidRequest("there is nothing to run; give a command, a script or an image")
        if (self.runner is Runner.CONTAINER) != bool(self.image):
            raise InvalidRequest("the container runner and an image go together; give both or none")
        if self.terminal != PLAIN_TERMINAL and self.runner is not Runner.TERMINAL:
            raise InvalidRequest("'terminal' is for jobs with runner 'terminal'; give both")
        if any("\0" in text for text in (*self.argv, self.workdir, self.output)):
            raise InvalidRequest("a command or path holds a NUL character; remove it")
        if self.image:
            _check_image(self.image)


_PLACEHOLDER = re.compile("%([jAax%])")


def output_file(pattern: str, number: str, name: str) -> str:
    """Return an output file with Slurm's placeholders (%j, %A, %a, %x) replaced.

    `number` is the job's number as in tables: `12`, or `12_4` for a task of an array.
    """
    job, _, task = number.partition("_")
    values = {"j": number, "A": job, "a": task or "0", "x": name.replace("/", "_"), "%": "%"}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], pattern)


def _check_image(image: str) -> None:
    """Reject an image that a container engine, perhaps run as root, could read as an option."""
    rootfs = image.startswith(ROOTFS)
    path = image[len(ROOTFS) :]
    if image.startswith("-") or _has_control(image) or (not rootfs and " " in image):
        raise InvalidRequest(
            f"image {image[:80]!r} is not a valid image: it must not begin with a dash or hold "
            "spaces or control characters"
        )
    if rootfs and (not path.startswith("/") or ":" in path):
        raise InvalidRequest(
            f"image {image[:80]!r}: write rootfs:/path, an absolute path without colons"
        )


def _has_control(text: str) -> bool:
    return any(character < " " or character == "\x7f" for character in text)


PROLOG = "prolog"
EPILOG = "epilog"


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A failed prolog or epilog of one member; `detail` says how it failed."""

    node_id: str
    hook: str
    detail: str
