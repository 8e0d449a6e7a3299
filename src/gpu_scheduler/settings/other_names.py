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
    "logging.format": _log_format,
    "logging.output": _log_output,
}
WORDS = {
    "logging.level": {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR"},
}
"""Values that are written in another way elsewhere."""
GROUPS = frozenset(key.partition(".")[0] for key in (*NAMES, *UNUSED))
"""Groups that a file may have besides ours."""
