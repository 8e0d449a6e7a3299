"""Builders for tests: each sets only the fields that the test is about.

Amounts are in natural units: GPUs (also 0.5 or 1.5), cores, hours; times are in milliseconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import SetNode, SetPools, SetTenant
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.policy import Order, Policy
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import AccountUsage, PoolQuota, Running, Waiting
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Job
from gpu_scheduler.model.node import Device, DeviceMode, Node
from gpu_scheduler.model.plan import Allocation, DeviceShare, Placement, Plan, Reservation
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import Quota, Tenant
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.simulator.predictors import Stated

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
GPU_MB = 80_000

Shares = Mapping[int, int] | Iterable[int]
"""Devices by index: whole ones as a list, or milli-GPU by index."""


# --- machines


def a_device(*, index: int = 0, **changes: Any) -> Device:
    """A healthy A100 with 80,000 MiB."""
    values: dict[str, Any] = {"model": "A100", "memory_mb": GPU_MB}
    return Device(index=index, **(values | changes))


def a_mig_device(*, index: int = 0, slices: Mapping[str, int] | None = None) -> Device:
    """A device in MIG mode, with seven 1g.10gb slices by default."""
    slices = slices or {"1g.10gb": 7}
    return a_device(index=index, mode=DeviceMode.MIG, mig_slices=tuple(sorted(slices.items())))


def a_node(
    *,
    ordinal: int = 0,
    gpus: int = 8,
    cpus: int = 64,
    memory_mb: int = 512_000,
    islands: int = 1,
    devices: Iterable[Device] | None = None,
    device: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Node:
    """Node `n0` with eight A100s in one island; `device` changes all of its devices."""
    if devices is None:
        size = -(-gpus // islands)
        devices = [
            a_device(**({"index": index, "island": index // size} | dict(device or {})))
            for index in range(gpus)
        ]
    values: dict[str, Any] = {"id": f"n{ordinal}"} | changes
    return Node(
        ordinal=ordinal,
        cpu_milli=cpus * 1000,
        memory_mb=memory_mb,
        devices=tuple(devices),
        **values,
    )


def a_cluster(*, nodes: int = 2, racks: int = 1, **changes: Any) -> tuple[Node, ...]:
    """Identical nodes `n0`, `n1`, ...; of several racks, `r0` has the first nodes, and so on."""
    size = -(-nodes // racks)
    return tuple(
        a_node(ordinal=ordinal, rack=f"r{ordinal // size}", **changes) for ordinal in range(nodes)
    )


# --- work


def a_request(*, gpus: float = 1, cpus: float = 0, **changes: Any) -> Request:
    """The request of one member; `gpus` may be 0, 0.5, 1.5 or 8."""
    return Request.for_gpus(round(gpus * 1000), cpu_milli=round(cpus * 1000), **changes)


_OF_REQUESTS = frozenset(
    {
        "gpu_memory_mb",
        "gpu_memory_mb_per_gpu",
        "exclusive",
        "gpu_models",
        "mig_profile",
        "memory_mb",
        "device_ids",
        "node_labels",
        "topology",
        "contiguous",
        "min_bandwidth_gbps",
    }
)


def a_job(
    *, number: int = 1, gpus: float = 1, cpus: float = 0, members: int = 1, **changes: Any
) -> Job:
    """Job `j1` of user `ada` in tenant `vision`: one GPU, expected to run for an hour.

    Every field of a job and of a request can be given by its name.
    """
    wishes = {name: changes.pop(name) for name in _OF_REQUESTS & set(changes)}
    request = a_request(gpus=gpus, cpus=cpus, **wishes)
    values: dict[str, Any] = {
        "id": f"j{number}",
        "submit_ms": 0,
        "tenant": "vision",
        "user": "ada",
        "members": (request,) * members,
        "estimate_ms": HOUR,
    }
    return Job(number=number, **(values | changes))


def an_array(*, tasks: str = "0-9", at_once: int = 0, **changes: Any) -> Job:
    """An array job; `at_once` is its concurrency limit."""
    return a_job(array=Array(tasks=IntervalSet.parse(tasks), max_running=at_once), **changes)


def after(job_id: str, kind: str = "afterok") -> tuple[Dependency, ...]:
    """A dependency on the end of another job."""
    return (Dependency(DependencyKind(kind), job_id),)


def a_tenant(*, id: str = "vision", gpus: float | None = None, **changes: Any) -> Tenant:  # noqa: A002
    """A tenant without limits, or with a quota of GPUs (further quotas by their own names)."""
    quotas = {name: changes.pop(name) for name in list(changes) if name in Quota.__slots__}
    if gpus is not None:
        quotas["gpu_milli"] = round(gpus * 1000)
    return Tenant(id=id, quota=Quota(**quotas), **changes)


def waiting(job: Job, **changes: Any) -> Waiting:
    """A queued job that is expected to run as long as its estimate."""
    values: dict[str, Any] = {
        "expected_ms": job.estimate_ms or HOUR,
        "since_ms": job.submit_ms,
        "tasks": job.array.tasks if job.array else None,
    }
    return Waiting(job=job, **(values | changes))


def on(node_id: str, devices: Shares = (), *, gpu_memory_mb: int | None = None) -> Placement:
    """A placement: `on("n0", [0, 1])` is two devices, `on("n0", {3: 500})` half of one."""
    shares = devices if isinstance(devices, Mapping) else dict.fromkeys(devices, 1000)
    return Placement(
        0,
        node_id,
        tuple(
            DeviceShare(
                index, share, GPU_MB * share // 1000 if gpu_memory_mb is None else gpu_memory_mb
            )
            for index, share in sorted(shares.items())
        ),
        cpu_milli=0,
        memory_mb=0,
    )


def running(
    job: Job, *places: Placement, start_ms: int = 0, end_ms: int = HOUR, **changes: Any
) -> Running:
    """A running job with these placements and the CPU and memory of its request."""
    allocation = Allocation(
        id=f"{job.id}.1",
        job_id=job.id,
        task=changes.pop("task", None),
        attempt=1,
        placements=tuple(
            replace(place, member=member, cpu_milli=request.cpu_milli, memory_mb=request.memory_mb)
            for member, (place, request) in enumerate(zip(places, job.members, strict=False))
        ),
        start_ms=start_ms,
    )
    return Running(job=job, allocation=allocation, expected_end_ms=end_ms, **changes)


# --- deciding


def a_policy(*, name: str = "easy", **changes: Any) -> Policy:
    """A preset with changes; those of the order by its own names (`fair_ms=...`)."""
    policy = preset(name)
    weights = {key: changes.pop(key) for key in list(changes) if key in Order.__slots__}
    return replace(policy, order=replace(policy.order, **weights), **changes)


def a_state(
    *,
    policy: Policy | None = None,
    nodes: Iterable[Node] = (),
    tenants: Iterable[Tenant] = (),
    pools: Iterable[PoolQuota] = (),
    queue: Iterable[Job | Waiting] = (),
    held: Iterable[Running] = (),
    reservations: Iterable[Reservation] = (),
    tenant_usage: Mapping[str, AccountUsage] | None = None,
    user_usage: Mapping[tuple[str, str], AccountUsage] | None = None,
) -> ClusterState:
    """A cluster state in which the jobs of `queue` wait and those of `held` run."""
    cluster = ClusterState(policy or a_policy())
    for node in nodes:
        cluster.set_node(node)
    for tenant in tenants:
        cluster.set_tenant(tenant)
    cluster.set_pools(pools)
    cluster.tenant_usage.update(tenant_usage or {})
    cluster.user_usage.update(user_usage or {})
    for allocation in held:
        cluster.start(allocation)
    for job in queue:
        cluster.enqueue(waiting(job) if isinstance(job, Job) else job)
    cluster.set_reservations(tuple(reservations))
    return cluster


def a_core(
    *,
    policy: Policy | None = None,
    nodes: Iterable[Node] = (),
    tenants: Iterable[Tenant] = (),
    pools: Iterable[PoolQuota] = (),
    predictor: Predictor | None = None,
    limits: CoreLimits | None = None,
) -> Core:
    """A control core that predicts run times by the users' estimates."""
    core = Core(policy or a_policy(), predictor or Stated(), limits)
    for node in nodes:
        core.apply(SetNode(node), 0)
    for tenant in tenants:
        core.apply(SetTenant(tenant), 0)
    for pool in pools:
        core.apply(SetPools((pool,)), 0)
    return core


# --- reading plans


def started(plan: Plan) -> list[str]:
    """The jobs that a plan starts, in its order; tasks of arrays as `j1_0`."""
    return [
        start.job_id if start.task is None else f"{start.job_id}_{start.task}"
        for start in plan.starts
    ]


def evicted(plan: Plan) -> list[str]:
    """The jobs that a plan evicts."""
    return [eviction.job_id for eviction in plan.evictions]


def places(plan: Plan, job_id: str) -> dict[str, list[int]]:
    """The placement of a started job: device indices by node."""
    found: dict[str, list[int]] = {}
    for start in plan.starts:
        if start.job_id == job_id:
            for placement in start.placements:
                indices = found.setdefault(placement.node_id, [])
                indices.extend(share.index for share in placement.devices)
    return {node: sorted(indices) for node, indices in found.items()}
