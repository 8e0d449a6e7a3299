"""Where the server keeps its files: an override and variables in, paths out.

Text only, no `pathlib` and nothing created: a client asks for this on every start.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_VARIABLE = "GPU_SCHEDULER_STATE_DIR"
ROOT_STATE = "/var/lib/gpu-scheduler"
ROOT_RUNTIME = "/run/gpu-scheduler"
NAME = "gpu-scheduler"
SOCKET_NAME = "server.sock"


class Paths:
    """Every path of one server. `state` is private to it, `runtime` is open to users.

    Where both are one, it has mode 700; for root 711, as users must get to what is theirs, and
    everything in it is private for itself.
    """

    __slots__ = ("runtime", "state")

    def __init__(self, state: str, runtime: str) -> None:
        self.state = state
        self.runtime = runtime

    def __repr__(self) -> str:
        return f"Paths(state={self.state!r}, runtime={self.runtime!r})"

    @property
    def database(self) -> str:
        """The SQLite file."""
        return f"{self.state}/scheduler.db"

    @property
    def server_lock(self) -> str:
        """Held for as long as a server lives."""
        return f"{self.state}/server.lock"

    @property
    def server_file(self) -> str:
        """What runs: pid, ports, socket, when it started."""
        return f"{self.state}/server.json"

    @property
    def agent_socket(self) -> str:
        """Where the server listens for the agent."""
        return f"{self.state}/agent.sock"

    @property
    def agent(self) -> str:
        """The directory of the agent and the launcher."""
        return f"{self.state}/agent"

    @property
    def launcher_socket(self) -> str:
        """Where the launcher listens for the agent."""
        return f"{self.state}/agent/launcher.sock"

    @property
    def launcher_lock(self) -> str:
        """Held for as long as a launcher lives."""
        return f"{self.state}/agent/launcher.lock"

    @property
    def attempts(self) -> str:
        """What the launcher knows of each attempt."""
        return f"{self.state}/agent/attempts"

    @property
    def logs(self) -> str:
        """Output of jobs, one directory for each job."""
        return f"{self.state}/logs"

    @property
    def server_socket(self) -> str:
        """Where users reach the server."""
        return f"{self.runtime}/{SOCKET_NAME}"

    @property
    def scratch(self) -> str:
        """Small files of running jobs, one directory for each attempt."""
        return f"{self.runtime}/scratch"


def paths(
    state_dir: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
) -> Paths:
    """The paths for an override (or `GPU_SCHEDULER_STATE_DIR`), root, or an ordinary user."""
    variables = os.environ if environ is None else environ
    user = os.geteuid() if uid is None else uid
    chosen = state_dir or variables.get(STATE_VARIABLE)
    if chosen:
        state = os.path.abspath(os.path.expanduser(chosen))  # noqa: PTH100, PTH111
        return Paths(state, state)
    if user == 0:
        return Paths(ROOT_STATE, ROOT_RUNTIME)
    state_home = _absolute(variables.get("XDG_STATE_HOME")) or f"{_home(variables)}/.local/state"
    state = f"{state_home}/{NAME}"
    runtime_home = _absolute(variables.get("XDG_RUNTIME_DIR"))
    return Paths(state, f"{runtime_home}/{NAME}" if runtime_home else state)


def agent_paths(
    work_dir: str | None,
    node: str,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
) -> Paths:
    """The paths of an agent that has its server elsewhere; each node name has its own."""
    variables = os.environ if environ is None else environ
    user = os.geteuid() if uid is None else uid
    if work_dir:
        state = os.path.abspath(os.path.expanduser(work_dir))  # noqa: PTH100, PTH111
        return Paths(state, state)
    if user == 0:
        return Paths(f"{ROOT_STATE}-agent/{node}", f"{ROOT_RUNTIME}-agent/{node}")
    state_home = _absolute(variables.get("XDG_STATE_HOME")) or f"{_home(variables)}/.local/state"
    state = f"{state_home}/{NAME}-agent/{node}"
    runtime_home = _absolute(variables.get("XDG_RUNTIME_DIR"))
    return Paths(state, f"{runtime_home}/{NAME}-agent/{node}" if runtime_home else state)


def config_candidates(environ: Mapping[str, str] | None = None) -> list[str]:
    """The files that are looked for when none is named, the first that exists wins."""
    variables = os.environ if environ is None else environ
    home = _absolute(variables.get("XDG_CONFIG_HOME")) or f"{_home(variables)}/.config"
    return [f"/etc/{NAME}/config.yaml", f"{home}/{NAME}/config.yaml"]


def _absolute(path: str | None) -> str:
    """The base directory specification says that relative paths are to be ignored."""
    return path.rstrip("/") if path and path.startswith("/") else ""


def _home(variables: Mapping[str, str]) -> str:
    return (variables.get("HOME") or os.path.expanduser("~")).rstrip("/")  # noqa: PTH111
