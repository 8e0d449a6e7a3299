"""Paths of the server's and the agent's files: an override and variables in, paths out.

Text only, without `pathlib`, and nothing is created: every client command imports this.
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
    """All paths of one server. `state` is private to it, `runtime` is open to users.

    If both are the same directory, it has mode 700; for root 711, because users need access to the
    socket and scratch files in it, and everything else in it is private by itself.
    """

    def __init__(self, state: str, runtime: str) -> None:
        self.state = state
        self.runtime = runtime
        self.database = f"{state}/scheduler.db"
        """The SQLite file."""
        self.server_lock = f"{state}/server.lock"
        """Locked while a server runs."""
        self.server_file = f"{state}/server.json"
        """Pid, addresses and start time of the running server."""
        self.agent_socket = f"{state}/agent.sock"
        """Socket of the server for the local agent."""
        self.agent = f"{state}/agent"
        """The directory of the agent and the launcher."""
        self.launcher_socket = f"{state}/agent/launcher.sock"
        """Socket of the launcher for the agent."""
        self.attempts = f"{state}/agent/attempts"
        """The launcher's records of attempts."""
        self.logs = f"{state}/logs"
        """Logs of jobs, one directory per job."""
        self.server_socket = f"{runtime}/{SOCKET_NAME}"
        """Socket of the server for users."""
        self.scratch = f"{runtime}/scratch"
        """Scratch files of running jobs, one directory per attempt."""

    def __repr__(self) -> str:
        return f"Paths(state={self.state!r}, runtime={self.runtime!r})"


def paths(
    state_dir: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
) -> Paths:
    """The paths for an override (or `GPU_SCHEDULER_STATE_DIR`), root, or an ordinary user."""
    variables = os.environ if environ is None else environ
    return _paths_below(state_dir or variables.get(STATE_VARIABLE), "", variables, uid)


def agent_paths(
    work_dir: str | None,
    node: str,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
) -> Paths:
    """The paths of an agent without a local server, separate for each node name."""
    variables = os.environ if environ is None else environ
    return _paths_below(work_dir, f"-agent/{node}", variables, uid)


def _paths_below(
    chosen: str | None, suffix: str, variables: Mapping[str, str], uid: int | None
) -> Paths:
    if chosen:
        state = os.path.abspath(os.path.expanduser(chosen))  # noqa: PTH100, PTH111
        return Paths(state, state)
    if (os.geteuid() if uid is None else uid) == 0:
        return Paths(f"{ROOT_STATE}{suffix}", f"{ROOT_RUNTIME}{suffix}")
    state_home = _absolute(variables.get("XDG_STATE_HOME")) or f"{_home(variables)}/.local/state"
    state = f"{state_home}/{NAME}{suffix}"
    runtime_home = _absolute(variables.get("XDG_RUNTIME_DIR"))
    return Paths(state, f"{runtime_home}/{NAME}{suffix}" if runtime_home else state)


def config_candidates(environ: Mapping[str, str] | None = None) -> list[str]:
    """The default settings files; the first that exists is used."""
    variables = os.environ if environ is None else environ
    home = _absolute(variables.get("XDG_CONFIG_HOME")) or f"{_home(variables)}/.config"
    return [f"/etc/{NAME}/config.yaml", f"{home}/{NAME}/config.yaml"]


def _absolute(path: str | None) -> str:
    """The path if it is absolute: the XDG specification says to ignore relative paths."""
    return path.rstrip("/") if path and path.startswith("/") else ""


def _home(variables: Mapping[str, str]) -> str:
    return (variables.get("HOME") or os.path.expanduser("~")).rstrip("/")  # noqa: PTH111
