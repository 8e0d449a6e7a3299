"""Settings under the names that people bring from elsewhere, read at the edge as ours.

A key and its value come in, our keys with their values go out. A file with these names says the
same as one with ours; `tgpu config show` has only ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest

Read = Callable[[Any], dict[str, Any]]

UNUSED = {
    "scheduler.snapshot_interval": "state is in a database, and every change is kept at once",
    "storage.snapshot_dir": "state is in a database; `database` and `files.state_dir` say where",
    "storage.shared_storage": "who leads is settled in PostgreSQL, not on a shared disk",
    "executor.docker.socket": "docker is used where it listens at /var/run/docker.sock, and else "
    "podman",
    "executor.docker.default_image": "a job names its image itself (--image); one without an image "
    "runs as a process, on nodes whose agent.execution_methods have that or are empty",
}
"""Read, and of no use: said once, at the start."""


def _as(key: str) -> Read:
    return lambda value: {key: value}


def _milliseconds(value: Any) -> dict[str, Any]:
    return {"scheduler.scheduling_interval_ms": round(_number(value, "schedule_interval") * 1000)}


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} is {value!r}; write a number")
    return float(value)


def _percent(name: str) -> Read:
    def read(value: Any) -> dict[str, Any]:
        part = _number(value, name)
        if not 0 <= part <= 1:
            raise InvalidRequest(
                f"quota.{name} is {value!r}; write a part between 0.0 and 1.0, or per cent as "
                f"policy.{name}"
            )
        return {f"policy.{name}": round(part * 100)}

    return read


def _http_address(value: Any) -> dict[str, Any]:
    host, port = _address(value, "http_address")
    return {"api.http_port": port} | ({"api.host": host} if host else {})


def _grpc_address(value: Any) -> dict[str, Any]:
    _, port = _address(value, "grpc_address")
    return {"api.grpc_port": port}


def _address(value: Any, name: str) -> tuple[str, int]:
    """Read `host:port` or `:port`. Without a host it stays as it is: loopback, unless told."""
    host, colon, port = str(value).rpartition(":")
    if not colon or not port.isdecimal():
        raise InvalidRequest(f"server.{name} is {value!r}; write host:port, or :port")
    return host.strip("[]"), int(port)


def _log_format(value: Any) -> dict[str, Any]:
    if value not in {"json", "text"}:
        raise InvalidRequest(f"logging.format is {value!r}; write json or text")
    return {"logging.structured": value == "json"}


def _log_output(value: Any) -> dict[str, Any]:
    """Services write to standard error, whichever of the two streams is named."""
    return {"files.log_file": "" if value in {"stdout", "stderr"} else value}


def _server(value: Any) -> dict[str, Any]:
    """One of the servers of an agent; an empty one is none."""
    if not isinstance(value, str):
        raise InvalidRequest(f"the address of a server is {value!r}; write host:port")
    return {"agent.servers": [value] if value else []}


def _execution_method(value: Any) -> dict[str, Any]:
    if value not in {"docker", "process"}:
        raise InvalidRequest(f"executor.execution_method is {value!r}; write docker or process")
    return {"agent.execution_methods": ["container" if value == "docker" else value]}


def _docker(value: Any) -> dict[str, Any]:
    """A group in a group, of which nothing is needed; a word that nobody knows is a mistake."""
    known = [key for key in UNUSED if key.startswith("executor.docker.")]
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"executor.docker is {value!r}; known are {', '.join(known)}")
    read = {f"executor.docker.{name}": "" for name in value or ()}
    for key in read:
        if key not in known:
            raise InvalidRequest(f"there is no setting '{key}'; known are {', '.join(known)}")
    return read


NAMES: dict[str, Read] = {
    "server.http_address": _http_address,
    "server.grpc_address": _grpc_address,
    "scheduler.role": _as("server.role"),
    "scheduler.schedule_interval": _milliseconds,
    "replication.heartbeat_interval": _as("replication.heartbeat_interval_s"),
    "replication.heartbeat_timeout": _as("replication.heartbeat_timeout_s"),
    "quota.online_percent": _percent("online_percent"),
    "quota.batch_percent": _percent("batch_percent"),
    "agent.heartbeat_timeout": _as("nodes.suspect_after_s"),
    "agent.id": _as("agent.node_name"),
    "agent.heartbeat_interval": _as("agent.heartbeat_interval_s"),
    "scheduler.master_address": _server,
    "scheduler.standby_address": _server,
    "scheduler.connection_timeout": _as("agent.connection_timeout_s"),
    "scheduler.retry_interval": _as("agent.retry_interval_s"),
    "scheduler.max_retry_interval": _as("agent.max_retry_interval_s"),
    "gpu.health_check_interval": _as("gpu.monitor_interval_s"),
    "executor.execution_method": _execution_method,
    "executor.work_dir": _as("agent.work_directory"),
    "executor.docker": _docker,
    "logging.format": _log_format,
    "logging.output": _log_output,
}
TOGETHER = frozenset({"scheduler.master_address", "scheduler.standby_address"})
"""Names that add to one list of ours, in the order in which they stand."""
WORDS = {
    "logging.level": {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR"},
}
"""Values that are written in another way elsewhere."""
GROUPS = frozenset(key.partition(".")[0] for key in (*NAMES, *UNUSED))
"""Groups that a file may have besides ours."""
