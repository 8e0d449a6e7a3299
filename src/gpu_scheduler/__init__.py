"""A GPU scheduler for a workstation, a cluster, a Kubernetes fleet and a simulator.

    from gpu_scheduler import Client

    job = Client().submit(["python", "train.py"], gpus=2)
    print(job.result())

The packages and the direction of their imports are described in CONTRIBUTING.md.
Modules are imported on first use, so that every command starts fast.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_scheduler.client.async_client import AsyncClient, AsyncJobHandle
    from gpu_scheduler.client.client import Client, JobHandle
    from gpu_scheduler.client.errors import JobFailed, NoServer, TimedOut
    from gpu_scheduler.server.in_process.providers import (
        FileSystemProvider,
        GPUProvider,
        GPUStats,
        HealthMonitor,
        MetricsProvider,
    )
    from gpu_scheduler.server.in_process.scheduler import (
        Job,
        JobStatus,
        LocalScheduler,
        SchedulerConfig,
    )
    from gpu_scheduler.server.in_process.scheduler import LocalScheduler as UltraGPUScheduler

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "Client",
    "FileSystemProvider",
    "GPUProvider",
    "GPUStats",
    "HealthMonitor",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobStatus",
    "LocalScheduler",
    "MetricsProvider",
    "NoServer",
    "SchedulerConfig",
    "TimedOut",
    "UltraGPUScheduler",
    "__version__",
]

_CLIENT, _LOCAL = "gpu_scheduler.client", "gpu_scheduler.server.in_process"
_MODULES = {
    "AsyncClient": f"{_CLIENT}.async_client",
    "AsyncJobHandle": f"{_CLIENT}.async_client",
    "Client": f"{_CLIENT}.client",
    "FileSystemProvider": f"{_LOCAL}.providers",
    "GPUProvider": f"{_LOCAL}.providers",
    "GPUStats": f"{_LOCAL}.providers",
    "HealthMonitor": f"{_LOCAL}.providers",
    "Job": f"{_LOCAL}.scheduler",
    "JobFailed": f"{_CLIENT}.errors",
    "JobHandle": f"{_CLIENT}.client",
    "JobStatus": f"{_LOCAL}.scheduler",
    "LocalScheduler": f"{_LOCAL}.scheduler",
    "MetricsProvider": f"{_LOCAL}.providers",
    "NoServer": f"{_CLIENT}.errors",
    "SchedulerConfig": f"{_LOCAL}.scheduler",
    "TimedOut": f"{_CLIENT}.errors",
    "UltraGPUScheduler": f"{_LOCAL}.scheduler",
}
_ALIASES = {"UltraGPUScheduler": "LocalScheduler"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_MODULES[name]), _ALIASES.get(name, name))
