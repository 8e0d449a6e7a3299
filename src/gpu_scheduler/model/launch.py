"""How a job is run, apart from what it asks for. The engine never looks at this."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.model.errors import InvalidRequest

# --- How a replica of a service shows that it can be used.


class ProbeKind(StrEnum):
    """How a replica shows that it can be used."""

    HTTP = "http"
    TCP = "tcp"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A check that the agent makes on the node, again and again.

    One good answer makes a replica ready; `failures` bad ones in a row make it not ready any more.
    Before the first good one it has `grace_ms` to begin.
    """

    kind: ProbeKind
    path: str = "/"
    argv: tuple[str, ...] = ()
    interval_ms: int = 5_000
    timeout_ms: int = 2_000
    failures: int = 3
    grace_ms: int = 60_000

    def __post_init__(self) -> None:
        """Refuse a check that could never be made."""
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


# --- How a job is run, apart from what it asks for. The engine never looks at this.


class Runner(StrEnum):
    """In what a job's processes live."""

    PROCESS = "process"
    TMUX = "tmux"
    SCREEN = "screen"
    CONTAINER = "container"
    TERMINAL = "terminal"


ROOTFS = "rootfs:"
"""Before the path of a root file system that stands in the place of an image."""
EVERYWHERE = frozenset({Runner.PROCESS, Runner.TERMINAL})
"""Ways of running that need nothing but the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The terminal of a job that has one of its own, as it is at first.

    The job is ended after `idle_ms` in which nobody typed, nothing was printed and next to no CPU
    time was used, and if nobody has come to the terminal `attach_within_ms` after the start (0:
    never). It goes on when the last person's connection breaks, unless `keep` is false.
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
        """Refuse what an engine would read as something else than two paths."""
        for path in (self.source, self.target):
            if not path.startswith("/") or ":" in path or _has_control(path):
                raise InvalidRequest(
                    f"mount {path!r}: both sides must be absolute paths without colons or control "
                    "characters"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSnapshot:
    """The code as it was at submit: where the copy lies, and what it is a copy of.

    Only told, never followed: the job's directory is named apart, and opened as its user.
    """

    path: str
    source: str
    tree: str
    commit: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything an agent must know to run a job, besides the devices.

    `uid` and `gid` are those of the caller, never taken from a request. `environment` holds what
    was asked for by name; `captured` names a whole environment that is kept apart, as it can hold
    secrets. `script` is the text of a submitted script, run by its own first line with the job's
    command as its arguments. `sweep` names the sweep that the job belongs to, `params` are its
    place in it. `probe` is how a replica of a service is asked whether it can be used. `conda_exe`
    is set by the rules of a site, and then enters the environment, whatever its submitter has.
    Without `limits_cpu` a member that holds one core has asked for none: it may use others as well.
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
        """Refuse what no agent could run."""
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


def _check_image(image: str) -> None:
    """An image is a word of an engine's command line, and the engine may run as root."""
    rootfs = image.startswith(ROOTFS)
    path = image[len(ROOTFS) :]
    if image.startswith("-") or _has_control(image) or (not rootfs and " " in image):
        raise InvalidRequest(
            f"image {image[:80]!r} is no name of an image: it must not begin with a dash or hold "
            "spaces or control characters"
        )
    if rootfs and (not path.startswith("/") or ":" in path):
        raise InvalidRequest(
            f"image {image[:80]!r}: write rootfs:/path, an absolute path without colons"
        )


def _has_control(text: str) -> bool:
    return any(character < " " or character == "\x7f" for character in text)


# --- Commands that a site runs around every attempt, and that they failed.

PROLOG = "prolog"
EPILOG = "epilog"


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A hook failed on a node, for one member of an attempt; `detail` says how."""

    node_id: str
    hook: str
    detail: str
