"""Guarantee: what the plan and what-if say agrees with what the engine then does.

With true run times and no later submission. A forecast leaves out evictions, so under a policy that
preempts, it holds until the first one. Approximate are `fair` (later usage changes the order),
`conservative` (later reservations are computed again), and tasks of an array behind its next one
where a policy makes reservations: there most starts agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpu_scheduler.api.planning.planner import question_of
from gpu_scheduler.control.messages import Reserve, SetTenant, Submit, SubmitAll
from gpu_scheduler.engine.forecast import Foresight
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.what_if import Changes, answer, blank_copy
from gpu_scheduler.model.errors import CallerError, ClusterError
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.node import NodeClosure
from gpu_scheduler.model.plan import ReservationSpec
from gpu_scheduler.model.tenant import Tenant
from tests.effort import examples
from tests.properties.rig import Rig
from tests.properties.strategies import (
    BRISK,
    PLAIN,
    RESERVING,
    STEP_MS,
    TENANTS,
    Scenario,
    Step,
    Work,
    nodes,
    works,
)

FORETOLD = sorted(
    name for name, policy in BRISK.items() if not policy.order.is_fair and name != "conservative"
)
"""Policies of which a forecast foresees everything up to the first eviction."""
STEADY = sorted(
    name
    for name in FORETOLD
    for policy in [BRISK[name]]
    if policy.preemption is Preemption.NONE and name != "random"
)
"""Those without evictions and chance."""
Starts = dict[tuple[str, int | None], int]


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs that come one after another, and the policy that orders them."""

    scenario: Scenario
    policy: str
    further: Work


@st.composite
def cases(
    draw: st.DrawFn, policies: Sequence[str] = tuple(STEADY), *, arrays: bool = False
) -> Case:
    jobs = [
        replace(work, job=replace(work.job, pool=Pool.BATCH))
        for place in range(draw(st.integers(1, 9)))
        for work in [draw(works(f"job-{place + 1}", requests=PLAIN, arrays=arrays, manners=False))]
    ]
    steps = [Step(draw(st.sampled_from((0, 0, STEP_MS))), work) for work in jobs]
    further = draw(works(f"job-{len(jobs) + 1}", requests=PLAIN, arrays=False, manners=False))
    scenario = Scenario(
        nodes=draw(nodes(plain=True)),
        steps=tuple(steps),
        tenants=tuple(Tenant(id=name) for name in TENANTS),
    )
    return Case(scenario, draw(st.sampled_from(policies)), further)


def when_all_have_come(case: Case) -> Rig:
    rig = Rig(case.scenario, case.policy)
    while rig._steps:
        assert rig.advance()
    return rig


def expected(rig: Rig, found: Foresight) -> Starts:
    """The first expected start of each task."""
    jobs = {record.job.number: job_id for job_id, record in rig.core.state.jobs.items()}
    starts: Starts = {}
    for run in found.runs or ():
        starts.setdefault((jobs[run.number], run.task), run.start_ms)
    return starts


def compared(case: Case) -> tuple[Starts, Starts]:
    """What the plan says and what then starts, both until the first eviction."""
    rig = when_all_have_come(case)
    found = answer(question_of(rig.core.state, rig.now_ms)).base
    assert found.is_whole
    foretold, before = expected(rig, found), len(rig.record.plans)
    rig.cycles()
    rig.run()
    plans = rig.record.plans[before:]
    until_ms = min((at_ms for at_ms, plan in plans if plan.evictions), default=math.inf)
    starts: Starts = {}
    for at_ms, plan in plans:
        for start in plan.starts:
            starts.setdefault((start.job_id, start.task), at_ms)

    def early(found: Starts) -> Starts:
        return {key: at_ms for key, at_ms in found.items() if at_ms < until_ms}

    return early(foretold), early(starts)


def later_starts(rig: Rig) -> Starts:
    """Let the rig run to the end; returns what has started from now on."""
    before = set(rig.record.first_starts)
    rig.cycles()
    rig.run()
    return {key: at for key, at in rig.record.first_starts.items() if key not in before}


@settings(max_examples=examples(200))
@given(case=cases(FORETOLD))
def test_plan_agrees_with_what_then_starts(case: Case) -> None:
    foretold, starts = compared(case)
    assert foretold == starts


@settings(max_examples=examples(100))
@given(case=cases([name for name in STEADY if name not in RESERVING], arrays=True))
def test_plan_agrees_with_what_every_task_of_arrays_then_does(case: Case) -> None:
    foretold, starts = compared(case)
    assert foretold == starts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policies", "arrays", "least"),
    [
        (["fair"], False, 0.9),
        (["conservative"], False, 0.97),
        (sorted({*RESERVING} - {"fair"}), True, 0.8),
        (["fair"], True, 0.7),
    ],
    ids=["fair", "conservative", "arrays", "fair with arrays"],
)
def test_most_starts_agree_where_the_plan_is_approximate(
    policies: list[str], arrays: bool, least: float
) -> None:
    total = agreed = 0

    @settings(
        max_examples=100 if arrays else 300,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
    )
    @given(case=cases(policies, arrays=arrays))
    def count(case: Case) -> None:
        nonlocal total, agreed
        foretold, starts = compared(case)
        total += len(starts)
        agreed += len(foretold.items() & starts.items())

    count()
    assert agreed >= least * total, f"{agreed} of {total} starts agree"


@settings(max_examples=examples(100))
@given(case=cases())
def test_supposed_job_starts_as_foretold_once_submitted(case: Case) -> None:
    rig = when_all_have_come(case)
    job = case.further.job
    rig.predictor.run_ms[job.id] = case.further.run_ms
    try:
        checked = rig.apply(SubmitAll((Submit(job),), dry_run=True)).jobs
    except (CallerError, ClusterError):
        return
    found = answer(question_of(rig.core.state, rig.now_ms, jobs=checked))
    assert rig.submit(case.further)
    assert expected(rig, found.with_job[0]) == later_starts(rig)


@settings(max_examples=examples(150))
@given(case=cases(), data=st.data())
def test_change_has_the_effect_that_was_foretold(case: Case, data: st.DataObject) -> None:
    rig = when_all_have_come(case)
    state = rig.core.state
    node = data.draw(st.sampled_from(case.scenario.nodes))
    kind = data.draw(st.sampled_from(("drain", "add", "quota", "reserve")))
    quota = data.draw(st.sampled_from((None, 1_000, 2_000)))
    wish = ReservationSpec(
        tenant=data.draw(st.sampled_from(TENANTS)),
        gpus=1,
        start_ms=rig.now_ms + data.draw(st.integers(0, 3)) * STEP_MS,
        end_ms=rig.now_ms + data.draw(st.integers(4, 9)) * STEP_MS,
    )
    changes = {
        "drain": Changes(drained_nodes=(node.id,)),
        "add": Changes(added_nodes=2, added_like=node.id),
        "quota": Changes(gpu_quotas=(("t1", quota),)),
        "reserve": Changes(reservation=wish),
    }[kind]
    found = answer(question_of(state, rig.now_ms, changes=changes))
    current = state.cluster.index.resources(node.id).node
    if kind == "drain":
        closed = NodeClosure(since_ms=rig.now_ms, drains=True)
        rig._set_node(replace(current, closed=closed))
    elif kind == "add":
        for number in (1, 2):
            ordinal = len(state.cluster.index.by_id)
            rig._set_node(blank_copy(current, f"{node.id}+{number}", ordinal))
    elif kind == "quota":
        tenant = state.cluster.tenant("t1")
        changed = replace(tenant, quota=replace(tenant.quota, gpu_milli=quota))
        rig.audit.tenants["t1"] = changed
        rig.apply(SetTenant(changed))
    else:
        try:
            rig.apply(Reserve(wish))
        except CallerError:
            assert found.error is not None
            return
    assert found.changed is not None
    foretold = expected(rig, found.changed)
    assert foretold == later_starts(rig)
