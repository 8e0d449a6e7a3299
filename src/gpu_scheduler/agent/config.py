"""The agent's configuration (agent.json): written by the server or `tgpu agent`, read once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_scheduler.agent.machine import replace_file
from gpu_scheduler.model.errors import InvalidInput

AGENT_LOCK = "agent.lock"
"""In the agent's directory. The agent holds this lock while it runs; the file contains its pid."""
AGENT_LOG = "agent.log"
LISTS = (
    *("targets", "prolog", "epilog", "ignore_programs", "ignore_users", "execution_methods"),
    *("image_stores", "allowed_images"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The fields are the JSON of agent.json: rename and remove none.

    `targets` are gRPC addresses such as `unix:/path` or `host:port`, tried in turn. `dir` is the
    state directory that agent and launcher share.
    """

    node: str
    targets: tuple[str, ...]
    dir: str
    logs_dir: str
    scratch_dir: str
    token: str = ""
    token_file: str = ""
    client_certificate: str = ""
    client_key: str = ""
    detection_method: str = "auto"
    simulate: str = ""
    most_devices: int = 0
    most_starts: int = 8
    cpu_milli: int | None = None
    memory_mb: int | None = None
    monitor_interval_s: float = 5.0
    utilization_window_s: float = 60.0
    memory_threshold: float = 0.8
    load_threshold: float = 0.8
    ignore_programs: tuple[str, ...] = ()
    ignore_users: tuple[str, ...] = ()
    sharing: str = "auto"
    release_timeout_s: float = 10.0
    release_tolerance_mb: int = 256
    read_timeout_s: float = 5.0
    breaker_failures: int = 3
    breaker_backoff_s: float = 10.0
    heartbeat_interval_s: float = 5.0
    connection_timeout_s: float = 10.0
    retry_interval_s: float = 0.05
    max_retry_interval_s: float = 5.0
    address: str = ""
    rack: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    execution_methods: tuple[str, ...] = ()
    grace_ms: int = 10_000
    log_max_bytes: int = 100 << 20
    log_files: int = 1
    log_job_bytes: int = 0
    log_user_bytes: int = 0
    log_total_bytes: int = 0
    log_free_bytes: int = 0
    logs_days: float = 0.0
    prolog: tuple[str, ...] = ()
    epilog: tuple[str, ...] = ()
    hook_timeout_ms: int = 60_000
    start_timeout_ms: int = 60_000
    engine_timeout_ms: int = 120_000
    engine_user: str = "job"
    image_stores: tuple[str, ...] = ()
    allowed_images: tuple[str, ...] = ()
    enforce_limits: bool = True
    default_memory_mb: int = 0
    most_processes: int = 0
    max_user_processes: int = 0
    max_all_processes: int = 0
    reserved_memory_mb: int = 0
    default_memory_percent: int = 0
    default_memory_floor_mb: int = 0
    log_level: str = "INFO"
    own_log_bytes: int = 100 << 20
    own_log_backups: int = 5

    @property
    def digest(self) -> str:
        """A hash of all values, to detect a changed configuration."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Write the file atomically, readable only by its owner."""
        replace_file(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> AgentConfig:
        """Read the file; raises InvalidInput."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            lists = {name: tuple(values.get(name, ())) for name in LISTS}
            return cls(**(values | lists))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"not an agent's configuration: {error}", file=str(path)) from error
