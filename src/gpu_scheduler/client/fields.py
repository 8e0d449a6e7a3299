"""The fields of a job for type checkers; a submission does not import this module."""

from __future__ import annotations

from datetime import datetime
from os import PathLike
from typing import Any, TypedDict

Job = dict[str, Any]
"""A job as the server describes it; docs/reference/rest.md names the keys."""


Word = str | PathLike[str]
"""One word of a command."""


class JobFields(TypedDict, total=False):
    """The keyword arguments of `submit`. The names are those of the REST API."""

    gpus: float
    """GPUs, such as 2, 0.5 or 1.5; the same as `gpu_count`."""
    tenant: str
    """Id or name of the tenant; the same as `tenant_id`."""
    time_limit_seconds: float
    """The same as `max_runtime_seconds`."""
    time: float | str
    """The time limit: seconds, or text such as "2h" as on the command line."""
    estimate: float | str
    """The expected run time: seconds, or text such as "90m"."""
    capture: bool
    """Inherit environment, directory and umask of this process; the default is True."""

    name: str
    tenant_id: str
    priority: int | str
    args: list[str]
    script: str
    image: str
    environment: dict[str, str]
    captured_environment: dict[str, str]
    working_directory: str
    umask: int
    gpu_count: float
    gpu_memory_mb: int
    gpu_memory_mb_per_gpu: int
    gpu_model: str
    gpu_models: list[str]
    mig_profile: str
    allowed_gpus: list[int] | str
    exclusive: bool
    cpu_cores: float
    memory_mb: int
    node_labels: dict[str, str]
    nodes: list[str]
    exclude_nodes: list[str]
    topology: str
    contiguous: bool
    min_bandwidth_gbps: int
    gang_scheduling: bool
    members: int | list[dict[str, Any]]
    min_members: int
    same_rack: bool
    pool: str
    interactive: bool
    preemptible: bool
    max_runtime_minutes: float
    max_runtime_seconds: float
    estimate_seconds: float
    deadline: str | float | datetime
    begin_at: str | float | datetime
    dependencies: list[str | dict[str, Any]]
    array: str | dict[str, Any]
    hold: bool
    retries: int
    retry_exit_codes: list[int]
    requeue_on_node_loss: bool
    allow_idle: bool
    runner: str
    mounts: list[str]
    conda: str
    output: str
    signal: str
    grace_seconds: float
    max_processes: int
    notify: list[str]
    terminal: dict[str, Any]
