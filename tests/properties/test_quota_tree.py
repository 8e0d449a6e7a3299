"""Guarantee: preemption along any quota tree ends, overshoots nothing and keeps all guarantees."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.quota.node_shares import node_shares
from gpu_scheduler.model.plan import PreemptionReason
from gpu_scheduler.model.quota_tree import NodeQuota, QuotaNode, ancestors
from tests.builders import MINUTE, a_node
from tests.effort import examples
from tests.quota_lab import QuotaLab

MODELS = ("A100", "H100")
EACH = 4
"""GPUs of each model."""
SIZES = (0.5, 1, 2, 3)
GANGS = (1, 1, 2)


RESOURCES = (("*",), MODELS, (*MODELS, "*"))
"""Trees limit GPUs in total, by model, or both."""


@st.composite
def trees(draw: st.DrawFn, *, resources: tuple[str, ...]) -> tuple[QuotaNode, ...]:
    """Trees of up to four levels whose guarantees fit into the cluster."""
    whole = dict.fromkeys(MODELS, EACH) | {"*": EACH * len(MODELS)}
    left = {"": whole}
    nodes = []
    levels = {"": 0}
    for number in range(draw(st.integers(2, 6))):
        parents = [name for name, level in levels.items() if level < 3]
        parent = draw(st.sampled_from(parents))
        name = f"t{number}"
        levels[name] = levels[parent] + 1
        quotas = []
        own = dict.fromkeys(whole, 0)
        for resource in resources:
            by_model = own["*"]
            part = draw(st.integers(0, min(left[parent][resource], left[parent]["*"])))
            left[parent][resource] -= part
            own[resource] += part
            if resource == "*":
                part += by_model
            else:
                left[parent]["*"] -= part
                own["*"] += part
            most = draw(st.none() | st.integers(part, 2 * EACH))
            lends = draw(st.none() | st.integers(0, part))
            borrows = draw(st.none() | st.none() | st.integers(0, EACH))
            quotas.append(
                NodeQuota(
                    model=resource,
                    guaranteed_milli=part * 1000,
                    maximum_milli=None if most is None else most * 1000,
                    lending_limit_milli=None if lends is None else lends * 1000,
                    borrowing_limit_milli=None if borrows is None else borrows * 1000,
                )
            )
        left[name] = own
        weight = draw(st.sampled_from((None, 500, 1000, 3000)))
        node = QuotaNode(name=name, parent=parent, quotas=tuple(quotas), weight_milli=weight)
        nodes.append(node)
    return tuple(nodes)


@st.composite
def labs(
    draw: st.DrawFn,
    *,
    sizes: tuple[float, ...] = (1,),
    members: tuple[int, ...] = (1,),
    grace_ms: int = 0,
) -> tuple[QuotaLab, list[Any]]:
    """A cluster with a random tree, and waves of jobs for it."""
    tree = draw(trees(resources=draw(st.sampled_from(RESOURCES))))
    nodes = [
        a_node(ordinal=0, gpus=EACH),
        a_node(ordinal=1, gpus=EACH, device={"model": "H100"}),
    ]
    job = st.fixed_dictionaries(
        {
            "tenant": st.sampled_from([node.name for node in tree] + ["guests"]),
            "gpus": st.sampled_from(sizes),
            "members": st.sampled_from(members),
            "priority": st.sampled_from((0, 50, 100)),
            "preemptible": st.sampled_from((True, True, True, False)),
            "gpu_models": st.sampled_from([(), *((model,) for model in MODELS)]),
            "member_models": st.sampled_from([(), (), MODELS] if max(members) > 1 else [()]),
        }
    )
    waves = draw(st.lists(st.lists(job, max_size=8), min_size=1, max_size=3))
    return QuotaLab(*tree, nodes=nodes, grace_ms=grace_ms), waves


def subtree(lab: QuotaLab, name: str) -> set[str]:
    nodes = lab.state.quota_nodes.values()
    below = {node.name for node in nodes if node.parent == name}
    return {name}.union(*(subtree(lab, each) for each in below))


def held_in(lab: QuotaLab, name: str, model: str, *, firm: bool = False) -> int:
    """What the jobs of a subtree hold; only those that cannot be preempted, if `firm`."""
    inside = subtree(lab, name)
    return sum(
        entry.amounts.of(model)
        for entry in lab.state.running.values()
        if entry.running.job.tenant in inside and not (firm and entry.running.job.preemptible)
    )


def check_shares(lab: QuotaLab) -> None:
    """On every level, what is borrowed less what is lent is that of the parent; 0 at the root."""
    shares = node_shares(lab.state)
    for share in shares:
        assert share.used_milli + share.free_milli == (
            share.guaranteed_milli + share.borrowed_milli - share.lent_milli
        )
        assert min(share.used_milli, share.free_milli, share.lent_milli) >= 0
        if share.level == 0:
            assert share.borrowed_milli == share.lent_milli == 0
        name = "" if share.level == 0 else share.name
        of_model = [each for each in shares if each.model == share.model and each.level]
        below = [each for each in of_model if each.parent == name]
        if below and not share.name.startswith("("):
            net = sum(each.borrowed_milli - each.lent_milli for each in below)
            assert net == share.borrowed_milli - share.lent_milli, share.name
            used = sum(each.used_milli for each in below if each.name != "(missing)")
            assert used == share.used_milli, share.name


def check_limits(lab: QuotaLab) -> None:
    for node in lab.state.quota_nodes.values():
        for model, quota in node.by_model.items():
            held = held_in(lab, node.name, model)
            assert quota.most_milli is None or held <= quota.most_milli, (node.name, held)


@settings(max_examples=examples(60), deadline=None)
@given(labs(sizes=SIZES, members=GANGS))
def test_preemption_ends_and_no_limit_is_exceeded(found: tuple[QuotaLab, list[Any]]) -> None:
    lab, waves = found
    for wave in waves:
        for job in wave:
            lab.submit(**job)
        lab.settle()
        check_limits(lab)
        check_shares(lab)


@settings(max_examples=examples(60), deadline=None)
@given(labs(sizes=SIZES, members=GANGS))
def test_every_eviction_lets_a_waiting_job_start(found: tuple[QuotaLab, list[Any]]) -> None:
    lab, waves = found
    for wave in waves:
        for job in wave:
            lab.submit(**job)
        lab.settle()
    for now, after in zip(lab.plans, lab.plans[1:], strict=False):
        wanted = {eviction.for_job_id for eviction in now.evictions}
        assert wanted <= {start.job_id for start in after.starts}


@settings(max_examples=examples(60), deadline=None)
@given(labs(sizes=SIZES, members=GANGS))
def test_reclaiming_leaves_all_others_their_guarantees(found: tuple[QuotaLab, list[Any]]) -> None:
    lab, waves = found
    for wave in waves:
        for job in wave:
            lab.submit(**job)
        for _ in range(50):
            before = {
                (node.name, model): held_in(lab, node.name, model)
                for node in lab.state.quota_nodes.values()
                for model in node.by_model
            }
            plan = lab.cycle()
            check_guarantees(lab, before, plan)
            if not plan.starts and not plan.evictions:
                break


def check_guarantees(lab: QuotaLab, before: dict[tuple[str, str], int], plan: Any) -> None:
    """A node from which others take keeps its guarantee, or what it held if that was less.

    A guarantee of a model comes before one of all models.
    """
    by_reclaiming = {e.job_id for e in plan.evictions if e.ground is PreemptionReason.LENT}
    tenants = {job.id: job.tenant for job in lab._jobs.values()}
    for node in lab.state.quota_nodes.values():
        inside = subtree(lab, node.name)
        taken = [e for e in plan.evictions if tenants[e.job_id] in inside]
        if not taken or any(tenants[e.for_job_id] in inside for e in taken):
            continue
        for model, quota in node.by_model.items():
            if model == "*" and len(node.by_model) > 1 and by_reclaiming:
                continue
            least = min(before[node.name, model], quota.guaranteed_milli)
            assert held_in(lab, node.name, model) >= least, (node.name, model)


@settings(max_examples=examples(60), deadline=None)
@given(found=labs(), late=st.data())
def test_guarantee_is_got_back_from_jobs_of_one_gpu(
    found: tuple[QuotaLab, list[Any]], late: st.DataObject
) -> None:
    lab, waves = found
    for wave in waves:
        for job in wave:
            lab.submit(**job | {"gpu_models": (), "member_models": ()})
        lab.settle()
    # The jobs of a node with children have only what these are not guaranteed.
    parents = {node.parent for node in lab.state.quota_nodes.values()}
    names = [
        name
        for name, node in lab.state.quota_nodes.items()
        if len(node.quotas) == 1 and name not in parents
    ]
    if not names:
        return
    name = late.draw(st.sampled_from(names))
    guaranteed = lab.state.quota_nodes[name].guaranteed_milli()
    lab.submit(name, 2 * EACH)
    lab.settle()
    assert held_in(lab, name, "*") >= guaranteed


@settings(max_examples=examples(60), deadline=None)
@given(labs(sizes=SIZES, members=GANGS))
def test_jobs_that_cannot_be_preempted_never_borrow(found: tuple[QuotaLab, list[Any]]) -> None:
    lab, waves = found
    for wave in waves:
        for job in wave:
            lab.submit(**job | {"preemptible": False})
        lab.settle()
    nodes = lab.state.quota_nodes.values()
    for model in {model for node in nodes for model in node.by_model}:
        column = {node.name: node.guaranteed_milli(model) for node in nodes}

        def excess(name: str, model: str = model, column: dict[str, int] = column) -> int:
            """What a subtree holds beyond its guarantee and what its nodes leave to it."""
            children = [node.name for node in nodes if node.parent == name]
            own = sum(
                entry.amounts.of(model)
                for entry in lab.state.running.values()
                if entry.running.job.tenant == name
            )
            unassigned = column[name] - sum(column[child] for child in children)
            return max(0, own + sum(map(excess, children)) - unassigned)

        total = EACH * 1000 * (len(MODELS) if model == "*" else 1)
        tops = [node.name for node in nodes if not node.parent]
        guests = sum(
            entry.amounts.of(model)
            for entry in lab.state.running.values()
            if entry.running.job.tenant == "guests"
        )
        assert guests + sum(map(excess, tops)) <= total - sum(column[top] for top in tops)


GRACE = 3 * MINUTE


def has_maximum_of_a_model(lab: QuotaLab, name: str) -> bool:
    """Tell whether what a node is guaranteed in total may be of models that it may not hold."""
    nodes = lab.state.quota_nodes
    path = [name, *ancestors(nodes, name)]
    return any(
        quota.model != "*" and quota.most_milli is not None
        for each in path
        for quota in nodes[each].quotas
    )


@settings(max_examples=examples(60), deadline=None)
@given(found=labs(grace_ms=GRACE), late=st.data())
def test_guarantee_is_got_back_within_the_grace_period_whatever_others_do(
    found: tuple[QuotaLab, list[Any]], late: st.DataObject
) -> None:
    """Others keep submitting jobs of all classes. At most eight jobs are within guarantees."""
    lab, waves = found
    parents = {node.parent for node in lab.state.quota_nodes.values()}
    rights = [
        (name, quota.model)
        for name, node in lab.state.quota_nodes.items()
        for quota in node.quotas
        if name not in parents
        and quota.guaranteed_milli
        and not (quota.model == "*" and has_maximum_of_a_model(lab, name))
    ]
    if not rights:
        return
    name, model = late.draw(st.sampled_from(rights))
    for wave in waves:
        for job in wave:
            if job["tenant"] != name:
                lab.submit(**job)
        lab.cycle()
    models = () if model == "*" else (model,)
    (own,) = lab.submit(name, gpu_models=models)
    arrival = lab.now_ms + MINUTE
    cycles = 1 + 8 // lab.state.policy.max_preempt_tries
    while own not in lab.running():
        assert lab.now_ms < arrival + GRACE + cycles * MINUTE, lab.why(own)
        lab.cycle()
        for job in late.draw(st.sampled_from(waves)):
            if job["tenant"] != name:
                lab.submit(**job | {"priority": 3000})
