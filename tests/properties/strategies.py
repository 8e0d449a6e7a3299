"""Hypothesis strategies: small, crowded, mixed clusters, jobs and histories."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from gpu_scheduler.control.messages import Cancel, Hold, NodeFenced, Release, Reprioritise, Retry
from gpu_scheduler.engine.policy import Feedback, Policy, Preemption, Queueing
from gpu_scheduler.engine.presets import PRESETS
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Job, Pool
from gpu_scheduler.model.node import Device, DeviceMode, Health, Node, NodeClosure
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.model.tenant import Quota, Tenant, Tier

STEP_MS = 600_000
"""Longer than an eviction takes, so that every running job can be a victim."""
BIG, SMALL = "A100", "T4"
BIG_MB, SMALL_MB = 80_000, 16_000
SLICES = (("1g.10gb", 3), ("3g.40gb", 1))
TENANTS = ("t1", "t2", "t3")
USERS = ("u1", "u2")
PRIORITIES = (250, 750, 2500)


@dataclass(frozen=True, slots=True)
class Work:
    """A job, its true run time and the exit codes of its first attempts."""

    job: Job
    run_ms: int
    exits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """After a pause: a submission, a command, or a changed node."""

    pause_ms: int
    deed: object


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run consists of."""

    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    tenants: tuple[Tenant, ...] = ()
    pools: tuple[PoolQuota, ...] = ()


# --- machines


def big(index: int, island: int = 0, *, split: bool = False) -> Device:
    return Device(
        index=index,
        model=BIG,
        memory_mb=BIG_MB,
        island=island,
        bandwidth_gbps=600,
        mode=DeviceMode.MIG if split else DeviceMode.WHOLE,
        mig_slices=SLICES if split else (),
    )


def small(index: int, island: int = 0) -> Device:
    return Device(index=index, model=SMALL, memory_mb=SMALL_MB, island=island)


HARDWARE: tuple[tuple[Device, ...], ...] = (
    (big(0),),
    (big(0), big(1)),
    (small(0), small(1), small(3, 1), small(4, 1)),
    (big(0), small(1), small(2)),
    (big(0), big(1, split=True)),
    (),
)


@st.composite
def nodes(draw: st.DrawFn, most: int = 3, *, plain: bool = False) -> tuple[Node, ...]:
    """One to a few nodes; `plain` ones are all available and have no labels or racks."""
    found = []
    for ordinal in range(draw(st.integers(1, most))):
        devices = draw(st.sampled_from(HARDWARE))
        if not plain and devices and draw(st.integers(0, 7)) == 0:
            devices = (*devices[:-1], replace(devices[-1], health=Health.UNHEALTHY))
        found.append(
            Node(
                id=f"n{ordinal}",
                ordinal=ordinal,
                cpu_milli=draw(st.sampled_from((4_000, 8_000))),
                memory_mb=64_000,
                devices=devices,
                rack="" if plain else draw(st.sampled_from(("", "r1", "r2"))),
                labels=() if plain else draw(st.sampled_from(((), (("zone", "a"),)))),
            )
        )
    return tuple(found)


def healed(node: Node) -> Node:
    """The node with every device healthy."""
    devices = tuple(replace(device, health=Health.HEALTHY) for device in node.devices)
    return replace(node, devices=devices)


def node_change(node: Node, draw: st.DrawFn) -> Node:
    """The same hardware in another condition."""
    closed = draw(st.sampled_from((None, None, NodeClosure(since_ms=0, drains=True))))
    sick = draw(st.integers(-1, len(node.devices)))
    kind = draw(st.sampled_from(("paused", "hot")))
    devices = tuple(
        replace(
            device, paused=place == sick and kind == "paused", hot=place == sick and kind == "hot"
        )
        for place, device in enumerate(node.devices)
    )
    return replace(node, closed=closed, devices=devices)


# --- requests: menus, because one draw from a list is far cheaper than many small ones

WHOLE = tuple(Request(gpu_count=count, cpu_milli=cpu) for cpu in (0, 3_000) for count in (1, 2, 4))
NO_GPU = (Request(cpu_milli=1_000), Request(cpu_milli=4_000, memory_mb=30_000))
SHARES = tuple(
    Request(gpu_count=count, gpu_share_milli=share, gpu_memory_mb=memory_mb, cpu_milli=cpu)
    for count, share, memory_mb, cpu in (
        (1, 500, 0, 0),
        (1, 300, 0, 0),
        (1, 600, 0, 1_000),
        (1, 100, 9_000, 0),
        (1, 500, 1_000, 3_000),
        (2, 500, 0, 0),
        (2, 300, 9_000, 0),
        (1, 0, 9_000, 0),
        (1, 0, 50_000, 0),
    )
)
ODD = (
    Request(gpu_count=1, gpu_extra_milli=500),
    Request(gpu_count=1, gpu_extra_milli=500, gpu_extra_memory_mb=9_000, cpu_milli=1_000),
    Request(gpu_count=1, mig_profile="1g.10gb"),
    Request(gpu_count=2, mig_profile="1g.10gb"),
    Request(gpu_count=1, mig_profile="3g.40gb", cpu_milli=3_000),
)
PLAIN = WHOLE + NO_GPU + SHARES + ODD
PICKY = (
    Request(gpu_count=1, gpu_models=(SMALL,)),
    Request(gpu_count=1, gpu_models=(BIG, SMALL)),
    Request(gpu_count=2, gpu_models=(SMALL,)),
    Request(gpu_count=1, gpu_share_milli=500, gpu_models=(SMALL,)),
    Request(gpu_count=1, gpu_share_milli=500, device_ids=(1,)),
    Request(gpu_count=1, device_ids=(0, 1)),
    Request(gpu_count=2, topology=Topology.REQUIRE_ISLAND),
    Request(gpu_count=3, contiguous=True),
    Request(gpu_count=2, contiguous=True, topology=Topology.ANY),
    Request(gpu_count=1, node_labels=(("zone", "a"),)),
    Request(gpu_count=1, gpu_share_milli=300, node_labels=(("zone", "a"),)),
    Request(gpu_count=1, min_bandwidth_gbps=300),
    Request(gpu_count=1, memory_mb=40_000),
)
ANY_REQUEST = PLAIN + PICKY

# --- jobs

ONE = ("one", 1, 1)
SHAPES = (ONE, ONE, ONE, ("alike", 2, 2), ("alike", 3, 1), ("mixed", 2, 2), ("mixed", 3, 2))
NO_ARRAY = (None,) * 6
ARRAYS = (
    *NO_ARRAY,
    Array(tasks=IntervalSet(((0, 4),))),
    Array(tasks=IntervalSet(((0, 3),)), max_running=1),
    Array(tasks=IntervalSet(((0, 2), (5, 6))), max_running=2),
)
MANNERS: tuple[dict[str, object], ...] = (
    {},
    {},
    {"preemptible": False},
    {"retries": 2},
    {"requeue_on_node_loss": True},
    {"retries": 1, "requeue_on_node_loss": True},
    {"hold": True},
    {"begin_ms": 3 * STEP_MS},
    {"deadline_ms": 10 * STEP_MS},
)


@st.composite
def works(
    draw: st.DrawFn,
    name: str,
    *,
    requests: tuple[Request, ...] = ANY_REQUEST,
    arrays: bool = True,
    gangs: bool = True,
    manners: bool = True,
    priorities: tuple[int, ...] = PRIORITIES,
    longest: int = 12,
) -> Work:
    """One job. Without `manners` it neither fails nor has special requests."""
    kind, most, least = draw(st.sampled_from(SHAPES)) if gangs else ONE
    members = (draw(st.sampled_from(requests)),)
    for _ in range(1, most):
        members += members[:1] if kind == "alike" else (draw(st.sampled_from(requests)),)
    run_ms = draw(st.integers(1, longest)) * STEP_MS
    job = Job(
        id=name,
        number=0,
        submit_ms=0,
        tenant=draw(st.sampled_from(TENANTS)),
        user=draw(st.sampled_from(USERS)),
        members=members,
        min_members=least,
        priority=draw(st.sampled_from(priorities)),
        pool=draw(st.sampled_from(tuple(Pool))),
        array=draw(st.sampled_from(ARRAYS)) if arrays else None,
    )
    if not manners:
        return Work(job, run_ms)
    manner = draw(st.sampled_from(MANNERS))
    limit_ms = draw(st.sampled_from((0, run_ms)))
    rack = most > 1 and draw(st.booleans())
    job = replace(job, same_rack=rack, max_runtime_ms=limit_ms, **manner)
    return Work(job, run_ms, draw(st.sampled_from(((), (), (1,), (1, 1)))))


@st.composite
def tenants(draw: st.DrawFn, *, limits: bool = True) -> tuple[Tenant, ...]:
    """Three different tenants, some with a quota, strict or elastic."""
    found = []
    for name in TENANTS:
        quota = Quota()
        if limits and draw(st.booleans()):
            quota = Quota(
                gpu_milli=draw(st.sampled_from((None, 1_000, 2_000, 3_000))),
                gpu_memory_mb=draw(st.sampled_from((None, None, 10_000))),
                cpu_milli=draw(st.sampled_from((None, None, 4_000))),
                memory_mb=draw(st.sampled_from((None, None, 30_000))),
                concurrent_jobs=draw(st.sampled_from((None, 1, 2))),
                gpu_milli_ms=draw(st.sampled_from((None, None, 20_000 * STEP_MS))),
            )
        found.append(
            Tenant(
                id=name,
                quota=quota,
                tier=draw(st.sampled_from((Tier.LOW, Tier.MEDIUM, Tier.HIGH))),
                weight_milli=draw(st.sampled_from((500, 1_000, 3_000))),
                elastic=limits and draw(st.booleans()),
                allow_preemption=draw(st.integers(0, 4)) > 0,
                can_preempt_others=draw(st.integers(0, 4)) > 0,
            )
        )
    return tuple(found)


@st.composite
def pools(draw: st.DrawFn) -> tuple[PoolQuota, ...]:
    """Mostly none; else both pools share by percentages."""
    if draw(st.integers(0, 2)):
        return ()
    online = draw(st.sampled_from((25, 50, 75)))
    return (
        PoolQuota(pool=Pool.ONLINE, percent=online, elastic=draw(st.booleans())),
        PoolQuota(pool=Pool.BATCH, percent=100 - online, elastic=draw(st.booleans())),
    )


# --- histories

PAUSES = (0, 0, 1, STEP_MS // 2, STEP_MS, 3 * STEP_MS)


@st.composite
def scenarios(
    draw: st.DrawFn,
    *,
    most_jobs: int = 8,
    limits: bool = True,
    changes: bool = True,
    plain: bool = False,
) -> Scenario:
    """Everything at once: all kinds of jobs, commands, quotas and changing nodes.

    `plain` leaves out gangs and arrays.
    """
    machines = draw(nodes())
    steps: list[Step] = []
    names: list[str] = []
    for number in range(draw(st.integers(1, most_jobs))):
        pause_ms = draw(st.sampled_from(PAUSES))
        work = draw(works(f"j{number}", gangs=not plain, arrays=not plain))
        if names and draw(st.integers(0, 5)) == 0:
            kind = draw(st.sampled_from(tuple(DependencyKind)))
            dependency = Dependency(kind, draw(st.sampled_from(names)))
            work = replace(work, job=replace(work.job, dependencies=(dependency,)))
        steps.append(Step(pause_ms, work))
        names.append(work.job.id)
        if changes and draw(st.integers(0, 2)) == 0:
            pause_ms = draw(st.sampled_from(PAUSES))
            steps.append(Step(pause_ms, draw(actions(machines, names))))
    # In the end everything works and nothing is held, so that everything can end.
    steps += [Step(0, healed(node)) for node in machines]
    steps += [Step(0, Release(name)) for name in names]
    return Scenario(
        nodes=machines,
        steps=tuple(steps),
        tenants=draw(tenants(limits=limits)),
        pools=draw(pools()) if limits else (),
    )


@st.composite
def actions(draw: st.DrawFn, machines: tuple[Node, ...], names: list[str]) -> object:
    """A command, a changed node or a dead one."""
    name = draw(st.sampled_from(names))
    tasks = draw(st.sampled_from((None, IntervalSet(((0, 1),)))))
    node = draw(st.sampled_from(machines))
    kind = draw(st.integers(0, 8))
    if kind <= 1:
        return Cancel(name, tasks)
    if kind == 2:
        return Hold(name)
    if kind == 3:
        return Release(name)
    if kind == 4:
        return Reprioritise(name, draw(st.sampled_from(PRIORITIES)))
    if kind == 5:
        return Retry(name)
    if kind == 6:
        return NodeFenced(node.id)
    return node_change(node, draw)


# --- policies


def brisk(policy: Policy) -> Policy:
    """The same policy with shortened times, so that short histories reach them."""
    order = replace(
        policy.order,
        short_cap_ms=min(policy.order.short_cap_ms, 4 * STEP_MS),
        fair_ms=min(policy.order.fair_ms, STEP_MS),
        user_fair_ms=min(policy.order.user_fair_ms, STEP_MS // 2),
        deadline_ms=min(policy.order.deadline_ms, STEP_MS),
        class_point_ms=min(policy.order.class_point_ms, STEP_MS // 500),
    )
    old = policy.feedback
    feedback = Feedback(
        thresholds_ms=(2 * STEP_MS,) if old.thresholds_ms else (),
        adapts=old.adapts,
        by_gpus=old.by_gpus,
        quantum_ms=min(old.quantum_ms, STEP_MS // 2),
        protect_after_ms=min(old.protect_after_ms, 8 * STEP_MS),
        protect_percent=old.protect_percent,
        protect_at_latest_ms=min(old.protect_at_latest_ms, 12 * STEP_MS),
        tick_ms=STEP_MS,
    )
    after_ms = min(policy.reserve_after_ms, 8 * STEP_MS)
    return replace(policy, order=order, feedback=feedback, reserve_after_ms=after_ms)


BRISK: dict[str, Policy] = {name: brisk(policy) for name, policy in PRESETS.items()}
EVERY_POLICY = tuple(BRISK)
RESERVING = tuple(n for n, p in BRISK.items() if p.queueing is Queueing.RESERVE)
PREEMPTING = tuple(n for n, p in BRISK.items() if p.preemption is not Preemption.NONE)


def policies(choices: tuple[str, ...] = EVERY_POLICY) -> st.SearchStrategy[str]:
    """The name of one of the presets; `BRISK` has it with shortened times."""
    return st.sampled_from(choices)
