"""One cycle with 100,000 waiting jobs when 100 GPUs of a full cluster become free.

The jobs are of 500 shapes and 100 tenants; the cluster has 10,000 nodes with 8 GPUs each. `decide`
must give out all 100 devices. Timed is the call of `decide` alone, which leaves the state as it
was, so it can be repeated. The value is that of `fair`; `easy` and `fifo` stand beside it, and
`tree`: `fair` with a quota tree of five levels, whose 100 leaves are the tenants, and guarantees in
total and of two GPU models, so that half of the tenants may reclaim and the others hold more than
they are guaranteed. To meet the target all of them must, by CPU time, also in the ratio of many
jobs to few.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.backlog import NOW_MS, TENANTS, Backlog
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded
from benchmarks.stopwatch import Stopwatch, timed
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.quota_tree import ANY_MODEL, NodeQuota, QuotaNode, checked_tree
from gpu_scheduler.model.request import WHOLE_MILLI

TARGET_MS = 50
TARGET_RATIO = 2
FREE_GPUS = 100
FEW, MANY = 10_000, 100_000
SEED = 1
TREE = "tree"
POLICIES = ("fair", "easy", "fifo", TREE)
LEVELS = (2, 3, 5, 25, TENANTS)
"""How many nodes the quota tree has on each level, from the top."""


def quota_tree() -> tuple[QuotaNode, ...]:
    """The five levels; the last tenant is guaranteed four times as much as the first."""
    quotas = {
        (len(LEVELS) - 1, number): {ANY_MODEL: 4 * share, "A100": 2 * share, "H100": share}
        for number in range(TENANTS)
        for share in (75 + 5 * number // 2,)
    }
    nodes = []
    for level in reversed(range(len(LEVELS))):
        for number in range(LEVELS[level]):
            own = quotas[level, number]
            above = number * LEVELS[level - 1] // LEVELS[level] if level else 0
            total = quotas.setdefault((level - 1, above), {})
            for model, gpus in own.items():
                total[model] = total.get(model, 0) + gpus
            nodes.append(
                QuotaNode(
                    name=_node_name(level, number),
                    parent=_node_name(level - 1, above) if level else "",
                    quotas=tuple(
                        NodeQuota(model=model, guaranteed_milli=gpus * WHOLE_MILLI)
                        for model, gpus in own.items()
                    ),
                )
            )
    return checked_tree(nodes)


def _node_name(level: int, number: int) -> str:
    is_leaf = level == len(LEVELS) - 1
    return f"tenant-{number}" if is_leaf else f"level-{level}-{number}"


def measure(repeats: int) -> Result:
    """Take the time of a cycle under every policy, with few and with many jobs."""
    figures = {name: _figure(name, repeats) for name in POLICIES}
    fair = figures["fair"]
    return result(
        "cycle",
        fair["ms"],
        "ms",
        target=TARGET_MS,
        bound=LESS,
        also_met=all(
            figure["cpu_ms"] <= TARGET_MS and figure["ratio_to_few_cpu"] < TARGET_RATIO
            for figure in figures.values()
        ),
        floor=fair["floor_ms"],
        repeats=repeats,
        cpu_value=fair["cpu_ms"],
        ratio_target=TARGET_RATIO,
        pending=MANY,
        pending_few=FEW,
        figures=figures,
    )


def _figure(name: str, repeats: int) -> dict[str, float]:
    policy = preset("fair" if name == TREE else name)
    if name == TREE:
        policy = replace(policy, quota_tree=quota_tree())
    show(f"cycle: filling the cluster for {name}")
    backlog = Backlog(policy, SEED)
    backlog.fill()
    backlog.free_gpus(FREE_GPUS)
    state = backlog.state
    if name == "fifo":
        # Nothing passes a blocked job there, so all GPUs are given out only if the first jobs fit.
        backlog.wait(FREE_GPUS, gpus=1)
    backlog.wait(FEW - len(state.queue))
    few, _ = _timed_decide(state, repeats, f"cycle: {name}, {FEW} jobs")
    backlog.wait(MANY - FEW)
    many, plan = _timed_decide(state, repeats, f"cycle: {name}, {MANY} jobs")
    touched = len(given_devices(plan))
    if touched != FREE_GPUS:
        raise AssertionError(f"{name} gave out {touched} of {FREE_GPUS} free GPUs")
    floor = timed(lambda: _place_again(state, plan), repeats)
    return {
        "ms": rounded(many.wall * 1000),
        "cpu_ms": rounded(many.cpu * 1000),
        "usual_ms": rounded(many.usual_wall * 1000),
        "few_ms": rounded(few.wall * 1000),
        "few_cpu_ms": rounded(few.cpu * 1000),
        "ratio_to_few": rounded(many.wall / few.wall),
        "ratio_to_few_cpu": rounded(many.cpu / few.cpu),
        "floor_ms": rounded(floor.wall * 1000),
        "given_devices": touched,
        "given_gpus": rounded(given_gpus(plan)),
        "starts": len(plan.starts),
        "evictions": len(plan.evictions),
        "examined": plan.examined,
        "running": len(state.running),
    }


def given_devices(plan: Plan) -> set[tuple[str, int]]:
    """The devices of all that starts. Nothing else was free, so these are freed ones."""
    return {
        (placement.node_id, device.index)
        for start in plan.starts
        for placement in start.placements
        for device in placement.devices
    }


def given_gpus(plan: Plan) -> float:
    """GPUs of all that starts; the rest of a shared device may be too small for anybody."""
    milli = sum(placement.gpu_milli for start in plan.starts for placement in start.placements)
    return milli / WHOLE_MILLI


def _timed_decide(state: ClusterState, repeats: int, text: str) -> tuple[Stopwatch, Plan]:
    watch = Stopwatch()
    plan = Plan()
    for lap in range(repeats):
        show(f"{text}, {lap + 1} of {repeats}")
        with watch.lap():
            plan = decide(state, state.policy, NOW_MS)
    return watch, plan


def _place_again(state: ClusterState, plan: Plan) -> None:
    """The floor: place the same jobs in the same order, without asking who is next, and undo it."""
    transaction = Transaction(state.index)
    numbers = {start.job_id: int(start.job_id[1:]) for start in plan.starts}
    for start in plan.starts:
        entry = state.queue.entries[numbers[start.job_id]]
        hold = state.index.find(entry.shape.members[0])
        if hold is None:
            raise AssertionError(f"no place for {start.job_id}")
        transaction.take(hold)
    transaction.undo()
