"""Guarantee: what the plan and what-if say agrees with what the engine then does.

With true run times, no later submission, and a policy whose order changes by nothing but ends.
Tasks of an array behind its next one are left out: a forecast does not know which of them will get
a reservation.
"""

from dataclasses import dataclass, replace

from hypothesis import given, settings
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
    STEP_MS,
    TENANTS,
    Scenario,
    Step,
    Work,
    nodes,
    works,
)

STEADY = sorted(
    name
    for name, policy in BRISK.items()
    if policy.preemption is Preemption.NONE
    and not policy.order.is_fair
    and not policy.order.deadline_ms
    and policy.reserve_after_ms == 0
    and name not in {"random", "conservative"}
)
"""Policies of which a forecast foresees everything: no eviction, no use that decays, no chance.

Where every job has a reservation, a forecast can give a place to another one of two equal jobs.
"""
Starts = dict[tuple[str, int | None], int]


@dataclass(frozen=True, slots=True)
class Case:
    """Jobs that come one after another, and the policy that orders them."""

    scenario: Scenario
    policy: str
    further: Work


@st.composite
def cases(draw: st.DrawFn) -> Case:
    jobs = [
        replace(work, job=replace(work.job, pool=Pool.BATCH))
        for place in range(draw(st.integers(1, 9)))
        for work in [draw(works(f"job-{place + 1}", requests=PLAIN, arrays=False, manners=False))]
    ]
    steps = [Step(draw(st.sampled_from((0, 0, STEP_MS))), work) for work in jobs]
    further = draw(works(f"job-{len(jobs) + 1}", requests=PLAIN, arrays=False, manners=False))
    scenario = Scenario(
        nodes=draw(nodes(plain=True)),
        steps=tuple(steps),
        tenants=tuple(Tenant(id=name) for name in TENANTS),
    )
    return Case(scenario, draw(st.sampled_from(STEADY)), further)


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


def later_starts(rig: Rig) -> Starts:
    """Let the rig run to the end; returns what has started from now on."""
    before = set(rig.record.first_starts)
    rig.cycles()
    rig.run()
    return {key: at for key, at in rig.record.first_starts.items() if key not in before}


@settings(max_examples=examples(150))
@given(case=cases())
def test_plan_agrees_with_what_then_starts(case: Case) -> None:
    rig = when_all_have_come(case)
    found = answer(question_of(rig.core.state, rig.now_ms)).base
    assert found.is_whole
    assert expected(rig, found) == later_starts(rig)


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
