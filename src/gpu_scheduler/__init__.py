"""A GPU scheduler for a workstation, a cluster, a Kubernetes fleet and a simulator.

    from gpu_scheduler import Client

    job = Client().submit(["python", "train.py"], gpus=2)
    print(job.result())

The packages and the direction of their imports are described in CONTRIBUTING.md.
Nothing is imported here until it is asked for, so that every command starts fast.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_scheduler.client.async_client import AsyncClient, AsyncJobHandle
    from gpu_scheduler.client.client import Client, JobHandle
    from gpu_scheduler.client.errors import JobFailed, NoServer, TimedOut

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "Client",
    "JobFailed",
    "JobHandle",
    "NoServer",
    "TimedOut",
    "__version__",
]

_HOMES = {
    "AsyncClient": "async_client",
    "AsyncJobHandle": "async_client",
    "Client": "client",
    "JobFailed": "errors",
    "JobHandle": "client",
    "NoServer": "errors",
    "TimedOut": "errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"gpu_scheduler.client.{_HOMES[name]}"), name)
